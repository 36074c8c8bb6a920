"""The public loops, and their options.

Begin with `scan`, which shows the whole path: the arguments become a plan, or a request for one
(`options`); `jax.lax` checks and traces the step; and the loop that it would run becomes our
primitive (`autodiff.loop`), to which JAX applies its transformations.

- `scan`, `while_loop`, `fori_loop`: the public functions, with the semantics, the order of checks
  and the errors of `jax.lax`.
- `inverse`: the step of a scan together with its inverse.
- `options`: from `checkpoints=`, `block_size=`, `memory=` and `storage=` to a plan or a request,
  and a test of whether the storage works on this machine.
- `variables`: of Flax NNX modules, which functions change in place.

May import `autodiff` and all rooms below it. `layers`, `programs` and `integrations` import this
one.
"""
