"""Ways to run a loop, as data: `runner.programs.Contender`, by the names in `names.py`.

`nested.py` and `budgets.py` search for contenders that take as much memory as another one.
"""
