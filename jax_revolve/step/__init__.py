"""One step of a loop as data, and what tracing it tells.

Begin with `loop`: a `Loop` is what `jax.lax` makes of a user's function, a jaxpr with the numbers
of its consts, carry and xs, together with the plan of its reversal. What tracing a step tells is
found once for each signature, and no step runs for it:

- `equation`: loops of `jax.lax`, as their equations describe them.
- `references`: mutable references of a loop, as values of a pure loop.
- `linearized`: which values have derivatives, the residuals and the pullback of a step, and which
  leaves of the carry a checkpoint holds.
- `derived`: the loop of values and tangents, which derivatives of gradients run.
- `dead_code`: which part of a loop is left if some results are unused.
- `work`: how long a step takes, as an estimate.

These files run steps in a reverse pass:

- `steps`: from the start, with their ys, and from one restart state to a later one.
- `examples`: steps under `jax.vmap`, where some examples of a while loop are done.
- `mixing`: which operations compute each example by itself.
- `updates`: equations that read and write entries of arrays.
- `cpu`: what is there because of how XLA compiles for CPUs.

May import `storage`, `progress`, `schedule`, `jaxprs` and `_compat`. `engine`, `autodiff` and
the rooms above import this one.
"""
