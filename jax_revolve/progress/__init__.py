"""Progress: who is told how far a loop is, and how it is shown.

- `listener`: the protocol of progress callbacks, which a loop carries along as a static value.
- `meters`: what `progress=` takes. `ProgressMeter` is for subclasses; it sorts the reports that
  compiled programs send, which cannot say which run they are about.

The reports are made on the device by `engine.bars`. Nothing here imports JAX or another room.
"""
