"""Programs as data: a library for jaxprs, which knows nothing of checkpoints.

Begin with `walk`: every function that looks into a program goes through it, so none passes over a
program inside another.

- `walk`: the programs inside equations, and equations with others in their places.
- `equations`: what an equation is, and the file and line that it comes from.
- `parts`: what depends on what, programs without dead code, and parts of them.
- `inline`: programs without calls.
- `evaluate`: running an equation, and calling a function in place of one.
- `meshes`: what is computed on another mesh than the one that is set.

May import `_compat`. `step` and the rooms above import this one.
"""
