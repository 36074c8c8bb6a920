"""Losses whose derivatives are measured, as data: `runner.programs.Workload`.

`recurrences.py` has the steps that most benchmarks share, run by scans or until a condition fails;
`models.py` and `solves.py` have layers and differential equations; `packages.py` has programs of
other packages.
"""
