"""The loops in the ways of other libraries. Each module is imported when its user asks for it.

- `equinox`: the loops for carries, xs and ys with leaves that are not arrays, as Equinox's filtered
  transformations are to those of JAX. Begin here to add another library.
- `diffrax`: `RevolveAdjoint`, the adjoint for `diffrax.diffeqsolve`.

May import `loops` and everything below. Nothing stands on it.
"""
