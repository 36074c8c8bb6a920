"""A loop that Python drives: one compiled step, and a plan whose actions Python runs.

Begin with `scan`, the public function. `run` follows the actions of a plan, as `schedule.actions`
lists them, in a forward and a reverse sweep.

- `scan`: the public function.
- `differentiable`: the loop as a function that JAX differentiates, and what it refuses.
- `body`: the step, compiled or called directly.
- `loop`: a loop that is about to run: its plan, its two sweeps, and what they return.
- `reversal`: by which step and which plan it is reversed.
- `run`: the sweeps, action by action.
- `levels`: checkpoints on the device, in the host's memory, and in files.
- `inputs`: the slices of the xs, arrays or a function, fetched one ahead.
- `rows`: ys, and the cotangents of xs, in the host's memory.
- `placement`: where values are, and their data in the host's memory.
- `processes`: the processes that run a loop together.
- `watch`: what happens between steps: progress, saving, and interrupts.
- `resume`: the directory of a run that can be resumed.

May import `loops` and all rooms below it. No other room imports this one.
"""
