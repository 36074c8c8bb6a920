"""Losses whose derivatives are measured, as data: `runner.programs.Workload`.

`recurrences.py` has the steps that most benchmarks share, run by scans or until a condition fails,
and `steps.py` has more of them.
"""
