"""A loop that Python drives: one compiled step, and a plan whose actions Python runs.

Begin with `scan`, the public function. A `Problem` is what is run, a `Position` is where the run
stands in its plan, and a `RunDirectory` is what is on the disk.

- `scan`: the public function.
- `problem`: the `Problem` of a call, and of each evaluation or gradient; its `Position`.
- `run`: the rule for JAX, the forward sweep, and the reverse sweep of each pullback.
- `directory`: the `RunDirectory` of a run that can be resumed.
- `states`: a directory with the states of a run, from the newest of which it can go on, and its
  lock.
- `identity`: what has to be the same for a run to go on.
- `step`: the step as compiled programs, forward and pulled back.
- `arrays`: where values are, their data in the host's memory, and checkpoints of them; slices of
  the xs on their way to the device, and ys and cotangents of xs from it.
- `watch`: what happens between steps: progress, saving, interrupts, several processes.

May import `loops` and all rooms below it. No other room imports this one.
"""
