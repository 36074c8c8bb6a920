"""Layers of different sizes: which to store and which to recompute, by dynamic programming.

`schedules` is what callers use; `table` fills the table of the dynamic program.
"""
