"""Compiles, compares and times, and writes what was measured to `results`.

`programs.py` has the words: a workload, a contender, a program. `comparison.py` measures several
programs for one result, `benchmark.py` runs comparisons and writes the file, and `timing.py` times
functions in turns. `hlo.py` and `launches.py` read the text of a compiled program.
"""
