"""Engines: how a plan runs on the device.

Begin with the docstring of `slots`, then read `offline` and `reverse`. There are three engines:

- `plain`: `lax.scan` or `lax.while_loop` itself, unless the loop is differentiated in reverse mode.
- `nested`: a scan inside a scan under `jax.checkpoint`, which JAX differentiates. It serves second
  and higher derivatives of steps whose derivative rules need not be derivatives.
- `slots`: the optimal schedule, with checkpoints in one buffer. The forward sweep is in `offline`
  for loops of known length, and in `online` for while loops. `reverse` is the reverse sweep.

Parts of the slots engine:

- `tape`: the residuals of a block of steps, kept until they are transposed.
- `inverse`: walking back a block of reversible steps instead of taping it.
- `split`, `placement`: the decisions of the schedule, in 32-bit integers on the device.

All engines report their progress through `reports`.

May import `step`, `storage`, `progress`, `schedule`, `jaxprs` and `_compat`. `autodiff` and the
rooms above import this one.
"""
