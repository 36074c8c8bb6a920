"""A loop as JAX primitives: what each transformation makes of it.

The transformation picks the engine, never the caller. Begin with `derivatives`, whose docstring
says what runs when.

- `derivatives`: how a primitive gets its derivatives, from rules for its own functions. Partial
  evaluation splits a `jvp` into a sweep and a linear part, which is transposed to the pullback.
- `sweeps`: a loop, its forward sweep and its reverse sweep are primitives. Why, and what the sweeps
  have in common. The derivatives of sweeps, of any order, are sweeps again.
- `loop`, `forward`, `reverse`: the rules of each, one file for each primitive.
- `batching`: which results are batched under `jax.vmap`, and functions mapped over axes.
- `check`: `JAX_REVOLVE_CHECK=1`, which compares every reverse sweep with a plain pullback.
- `log`: `JAX_REVOLVE_TRACE=1`, which writes what was decided about each loop.
- `refusal`: the error for loops that have no reverse mode, raised only if one is asked for.

May import `engine` and everything below it. `loops` and `layers` stand on it.
"""
