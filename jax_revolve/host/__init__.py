"""A loop that Python drives: one compiled step, and a plan whose actions Python runs.

Begin with `scan`, the public function. A `Problem` describes what to run, a `Position` says where
the run stands in its plan, and a `RunDirectory` saves it on the disk.

- `scan`: the public function.
- `problem`: the `Problem` of a call, and of each evaluation or gradient; its `Position`.
- `run`: the rule for JAX, the forward sweep, and the reverse sweep of each pullback.
- `directory`: the `RunDirectory` of a run that can be resumed.
- `states`: the saved states of a run in a directory, and its lock.
- `identity`: what must be the same for a run to resume.
- `step`: the step as compiled programs, forward and pulled back.
- `arrays`: shardings, data in the host's memory, and checkpoints; slices of the xs on their way to
  the device, and ys and cotangents of xs on their way back.
- `watch`: work between steps: progress, saving, interrupts, several processes.

May import `loops` and all rooms below it. No other room imports this one.
"""
