"""Every use of JAX outside its stable public API.

Tried on jax 0.7.2, 0.10.2 and 0.12.0.1. What each entry stands on:

- `jax.extend.core`: `Primitive`, and jaxprs with their equations, variables and literals.
- `jax.interpreters`: the registries of derivative, transposition, partial evaluation, batching,
  dead code and lowering rules; dead-code elimination; symbolic zeros.
- the parameters of JAX's `scan` equation, whose names changed in 0.12 (`_read_scan`), and of its
  `while` equation.
- `get_asm` of a lowered program's MLIR module (`text_of`).
- the callbacks of a lowered program, and the closures in which JAX wraps a function that is called
  (`python_calls`). What is not as expected counts as a function that cannot be known.
- `jax.lax.cond_p` and its parameter (`kept_whole`).
- the names of the equations that run other jaxprs, and of their parameters (`equations`).
- the names of the equations that read and write entries of arrays, and of their parameters
  (`updates`).
- private names of JAX, in `interpreters` alone: the tables of rules of its interpreters, the
  discharge of mutable references, and the files that its tracebacks leave out.
"""
