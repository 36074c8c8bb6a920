"""A loop as JAX primitives: what each transformation makes of it.

The transformation picks the engine, never the caller. Begin with `family`, whose rules say what
runs when; the list in its docstring is the plan of this room.

- `family`: a function, the function with its tangents, and its tangents alone as primitives: the
  rules that loops share with their sweeps, and with the segments of `layers`.
- `batching`: which results are batched under `jax.vmap`.
- `loop_primitive`: the primitive that stands for a whole loop, with its rules but for derivatives.
- `primitive`: its derivatives, what is particular to loops. Partial evaluation splits a `jvp` into
  a forward sweep, which stores checkpoints, and a linear part.
- `sweep`: what both sweeps share: they are primitives, too, of one example, mapped over axes.
- `forward_sweep`: its derivative is the forward sweep of the loop of values and tangents.
- `reverse_sweep`: it transposes the linear part. Its derivatives, of any order, are sweeps again.
- `sizes`: what checkpoints and residuals take, from which a request for a plan is answered.
- `refusal`: the error for loops that have no reverse mode, raised only if one is asked for.

May import `engine` and everything below it. `loops` and `layers` stand on it.
"""
