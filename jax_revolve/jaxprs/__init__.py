"""Programs as data: a library for jaxprs, which knows nothing of checkpoints.

Begin with `walk`: every function that looks into a program goes through it, so none passes over a
program inside another.

- `walk`: the programs inside equations, and replacing them.
- `equations`: properties of an equation, and its source line.
- `parts`: dependencies, dead-code elimination, and parts of programs.
- `inline`: programs without calls.
- `evaluate`: running an equation, and calling a function in place of one.
- `meshes`: equations on another mesh than the current one.

May import `_compat`. `step` and the rooms above import this one.
"""
