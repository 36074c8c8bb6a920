"""Engines: how a plan runs on the device.

Begin with the docstring of `nest`. There are three engines:

- `plain`: `lax.scan` or `lax.while_loop` itself, unless the loop is differentiated in reverse mode.
- `nested`: a scan inside a scan under `jax.checkpoint`, which JAX differentiates. It serves second
  and higher derivatives of steps whose derivative rules need not be derivatives.
- `nest`: the plan's ways of reversing, put together.

Ways of reversing, each with its forward and its reverse side:

- `blocks`, `walk_back`: a block is taped, step by step or as a whole, or walked back by an inverse.
- `every`: all carries are stored that enter blocks, on one level or several.
- `slots`: Revolve.
- `far`: carries in a storage, for segments that are reversed on the device.

What they have in common:

- `sweep`: what a way is given; the classes that ways and blocks are.
- `buffers`: a buffer of slots, and what a forward sweep saves.
- `codecs`: checkpoints in fewer bits.
- `drift`: how far a leaf is from the exact one.
- `online`: the forward sweep of a while loop.
- `tape`: the residuals of a block of steps, kept until they are transposed.
- `split`, `placement`: the decisions of the schedule, in 32-bit integers on the device.

May import `step`, `storage`, `schedule`, `jaxprs` and `_compat`. `autodiff` and the
rooms above import this one.
"""
