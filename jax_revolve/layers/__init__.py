"""Layers instead of steps: chains of modules, and single modules that are recomputed.

- `chain`: `checkpointed_chain`, one name for two mechanisms:
  - `stack`: identical layers, whose arrays are stacked, are a `checkpointed_scan`;
  - `unlike`: layers of different sizes, for which `schedule.chain` finds the cheapest schedule.
- `checkpointed`: `Checkpointed` and `checkpoint_layers`, single modules that keep no residuals.
- `layer`: what a layer is, and how it is called. `measure`, `sizes`: its bytes and its work.
- `segment`: the primitive for a function that is recomputed when it is transposed. `region`: how it
  is kept apart from the rest of a program, so that XLA cannot undo that.

May import `loops`, `autodiff` and everything below. Nothing stands on it.
"""
