"""Engines: how a plan runs on the device.

Begin with the docstring of `slots`, then read `offline` and `reverse`. There are three engines:

- `plain`: `lax.scan` or `lax.while_loop` itself, used unless the loop is differentiated in reverse.
- `nested`: a scan inside a scan under `jax.checkpoint`. JAX differentiates it. It computes
  derivatives of gradients where a step has derivative rules that need not be derivatives.
- `slots`: the optimal schedule, with checkpoints in one buffer. The forward sweep is in `offline`
  for loops of known length, and in `online` for while loops. `reverse` is the reverse sweep.

Parts of the slots engine:

- `tape`: what is kept of a block of steps until they are transposed.
- `inverse`: how a block of reversible steps is walked back instead.
- `split`, `placement`: the decisions of the schedule, in 32-bit integers on the device.

All engines use `reports`, of their progress.

May import `step`, `storage`, `progress`, `schedule`, `jaxprs` and `_compat`. `autodiff` and the
rooms above import this one.
"""
