"""The time that operations, loops and bytes take on kinds of devices, as data.

- `profile`: a profile, and the file that it is read from. Without JAX.
- `in_force`: the profile of the device that JAX uses.
- `cpu.json`, `gpu.json`, `tpu.json`: the profiles of the platforms.

May import `_compat`. `schedule` imports `profile`, and the rooms above import both.
"""
