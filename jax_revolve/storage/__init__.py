"""Buffers, and checkpoints that are kept beside the device.

- `buffers`: arrays with a leading axis of slots or steps, on the device or in the host's memory.
- `stores`: the storage level of a plan with two levels: buffers in the host's memory, or tickets
  of files. Begin here to add another storage: `put` and `get` are all that the engines call.
- `files`: one file for each checkpoint, written whole or not at all.

What a user passes as `storage=` is data, in `schedule.storage`, as plans are made for it. This room
may import `schedule` and `_compat`; `step` and `engine` stand on it.
"""
