"""Interfaces to other libraries. Each module is imported only when a user imports it.

- `equinox`: the loops for carries, xs and ys with leaves that are not arrays, like Equinox's
  filtered transformations. Begin here to add another library.
- `diffrax`: `RevolveAdjoint`, the adjoint for `diffrax.diffeqsolve`.
- `optimistix`: `RevolveAdjoint`, the adjoint for Optimistix's solvers.
- `_adjoints`: what the adjoints have in common.
- `_stages`: the loop over the stages of Diffrax's Runge-Kutta solvers.

May import `loops` and all rooms below it; `_stages` needs `step` and `_compat`. No other room
imports this one.
"""
