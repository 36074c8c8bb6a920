"""A loop as JAX primitives, and what each transformation makes of it.

The transformation picks the engine, never the caller. Begin with `_compat.functions`, which says
which method JAX calls when.

- `derivatives`: what the classes of primitives have in common, and sweeps that are pushed forward.
- `sweeps`: why a loop, its forward sweep and its reverse sweep are primitives, and what the sweeps
  have in common. The derivatives of sweeps, of any order, are sweeps again.
- `loop`, `forward`, `reverse`: the class of each primitive.
- `batching`: which results are batched under `jax.vmap`, and functions mapped over axes.
- `check`: `JAX_REVOLVE_CHECK=1`, which compares every reverse sweep with a plain pullback.
- `log`: `JAX_REVOLVE_TRACE=1`, which prints what was decided about each loop.
- `refusal`: the error for loops without reverse mode, raised only where reverse mode is used.

May import `engine` and everything below it. `loops` and `layers` import this one.
"""
