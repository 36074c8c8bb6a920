"""Compiles, compares and times, and writes what was measured to `results`.

`programs.py` has the words: a workload, a contender, a program. `comparison.py` measures several
programs for one result, `benchmark.py` runs comparisons and writes the file, and `timing.py` times
functions in turns.

On a device that is seldom at hand, `pieces.py` runs a measurement in processes and goes on where it
ended, `tolerant.py` records contenders that fail, `hlo.py` and `trace.py` count what a program
does, in its text and while it runs, and `pytests.py` runs tests.
"""
