"""Layers of a model instead of steps: chains of layers, and single modules that are recomputed.

Begin with `chain`. A stack of identical layers is a loop. A list of different layers is a program
of segments, functions whose residuals are recomputed from their operands.

- `chain`: `checkpointed_chain`, which runs different layers by the cheapest schedule that
  `schedule.chain` finds.
- `stack`: identical layers with stacked arrays, in a `checkpointed_scan`.
- `checkpointed`: `Checkpointed` and `checkpoint_layers`, for single modules.
- `layer`: one layer of a chain, called as `equinox.nn.Sequential` calls it; its work and the bytes
  of its residuals, found by tracing.
- `segment`: the primitives of a function that is recomputed when it is transposed, in a way that
  XLA cannot merge with the first computation.

May import `loops`, `autodiff` and all rooms below them. No other room imports this one.
"""
