"""Programs as data: a library for jaxprs, which knows nothing of checkpoints.

Begin with `walk`: every function that looks into a program goes through it, so none passes over a
program inside another.

- `walk`: the programs inside equations, and equations with others in their places.
- `equations`: what an equation is, and the file and line that it comes from.
- `parts`: what depends on what, and the part of a program that computes some of its variables.
- `prune`: programs without dead code.
- `inline`: programs without calls.
- `evaluate`: running an equation, and calling a function in place of one.

May import `_compat`. `step` and the rooms above import this one.
"""
