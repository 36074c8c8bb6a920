"""Compiles, compares and times, and writes what was measured to `results`.

`programs.py` has the words: a workload, a contender, a program. `comparison.py` measures several
programs for one result, `timing.py` times functions in turns, `benchmark.py` runs comparisons and
writes the file, and `machine.py` says where and of which sources.
"""
