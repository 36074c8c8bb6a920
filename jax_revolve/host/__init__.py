"""A loop that Python drives: one compiled step, and a plan whose actions Python runs.

Begin with `scan`, the public function. `run` follows the actions of a plan, as `schedule.actions`
lists them, in a forward and a reverse sweep.

- `scan`: the public function.
- `trace`: its arguments, as a step and its operands.
- `differentiable`: the loop as a function that JAX differentiates, and what it refuses.
- `loop`: a loop that is about to run: its plan, its two sweeps, and what they return.
- `step`: the step as compiled programs, forward and pulled back.
- `run`: the sweeps, action by action: a `Problem`, and a `Position` in it.
- `levels`: checkpoints on the device, in the host's memory, and in files.
- `inputs`: the slices of the xs, arrays or a function, one ahead.
- `rows`: ys, and the cotangents of xs, in the host's memory.
- `placement`: where values are, and their data in the host's memory.
- `processes`: the processes that run a loop together.
- `watch`: what happens between steps: progress, saving, and interrupts.
- `directory`: the `RunDirectory` of a run that can be resumed.
- `fingerprint`: what has to be the same for a run to go on.
- `program`: jaxprs as nested tuples, to tell whether two of them are the same program.

May import `loops` and all rooms below it. No other room imports this one.
"""
