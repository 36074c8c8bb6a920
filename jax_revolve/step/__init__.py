"""One step of a loop as data, and what tracing it shows.

Begin with `loop`: a `Loop` is what `jax.lax` makes of a user's function, a jaxpr with the numbers
of its consts, carry and xs, together with the plan of its reversal. These files trace a step once
for each signature, and run nothing:

- `equation`: loops of `jax.lax`, as their equations describe them.
- `references`: mutable references of a loop, as values of a pure loop.
- `linearized`: which values have derivatives, the residuals and the pullback of a step, and which
  leaves of the carry a checkpoint holds.
- `rules`: what derivative rules in a step close over, as operands of the loop.
- `derived`: the loop of values and tangents, which derivatives of gradients run.
- `dead_code`: the part of a loop that is left if some results are unused.
- `policies`: a loop with the values of its steps that a policy of `jax.checkpoint` keeps.
- `reports`: a loop that shows its progress.
- `operations`: what is known of JAX's operations, in one table.
- `work`: an estimate of the time of a step.

These files run steps:

- `steps`: from the start, with their ys, and from a checkpoint to a later one.
- `examples`: under `jax.vmap`, where some examples of a while loop are done.
- `mixing`: whether examples see each other in an operation, or in its derivative.
- `updates`: what a step does to an array: reads and writes of entries.
- `journal`: histories, and how their writes are undone.
- `cpu`: workarounds for how XLA compiles for CPUs.

May import `storage`, `progress`, `schedule`, `jaxprs` and `_compat`. `engine`, `autodiff` and
the rooms above import this one.
"""
