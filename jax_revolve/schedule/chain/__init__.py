"""Layers of different sizes: which to store and which to recompute, by dynamic programming.

- `schedules`: the schedules for a number of checkpoints, for a memory budget, and by default.
- `table`: the table of the dynamic program.
"""
