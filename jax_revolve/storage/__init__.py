"""Buffers, and checkpoints that are not on the device.

Begin with `stores`: the engines call `in_storage`, `put` and `get`, and nothing else. Another
storage is added there.

- `buffers`: arrays with a leading axis of slots or steps, on the device or in the host's memory.
- `stores`: the storage of a two-level plan: buffers in the host's memory, or tickets of files.
- `files`: one file for each checkpoint, written whole or not at all.

The value of `storage=` is data in `schedule.storage`, because plans depend on it. May import
`schedule` and `_compat`. `step`, `engine` and the rooms above import this one.
"""
