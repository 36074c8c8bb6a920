"""The step of a loop that Python drives.

- `prepared`: the arguments of a call, as a step and its operands.
- `trace`: the step as a jaxpr, with the checks of `jax.lax`.
- `compiled`: the step as compiled programs: forward, taped, and pulled back.
- `same`: whether two steps are the same program, so that it is compiled once.
- `eager`: the same of a step that is called directly.
"""
