"""Running a plan on the device, by one of three engines.

- `plain` is `lax.scan` or `lax.while_loop` itself. It runs loops that are not differentiated in
  reverse mode.
- `nested` is scans inside scans with `jax.checkpoint`. JAX transforms it any number of times, so
  it is what derivatives of gradients run; it recomputes more than the optimal schedule does.
- The slots engine follows the optimal schedule, with checkpoints in one buffer. Its forward sweep
  is in `offline` for loops whose length is known, and in `online` for while loops; `reverse` is its
  reverse sweep. Begin with the docstring of `slots`, then read `offline` and `reverse`.

What they are made of:

- `slots`: the buffer of checkpoints. `tape`: the residuals of a block of steps.
- `weight_gradients`: cotangents of weights, one matrix product for each block of steps.
- `split`, `placement`: the schedule's decisions in 32-bit integers, as the device makes them.
- `bars`: loops that report how far they are, if progress is asked for.

May import `step`, `storage`, `progress`, `schedule` and `_compat`. `autodiff` stands on it.
"""
