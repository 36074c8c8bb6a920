"""Ways to run a loop, as data: `runner.programs.Contender`, found again in results by their names.

`scans.py` and `while_loops.py` have the loops, and `searches.py` finds those that take as much
memory as another one.
"""
