"""The public loops, and their options.

Begin with `scan`, which shows the whole path in one file. The arguments become a plan, or a request
for one (`options`). `jax.lax` checks the step and traces it. The loop that it would run becomes one
primitive (`autodiff.sweeps`), and JAX's transformations do the rest.

- `scan`, `while_loop`, `fori_loop`: the public functions, with the semantics, the order of checks
  and the errors of `jax.lax`.
- `inverse`: the step of a scan together with its inverse.
- `options`: from `checkpoints=`, `block_size=`, `memory=` and `storage=` to a plan or a request,
  and a test of whether the storage works on this machine.

May import `autodiff` and all rooms below it. `layers`, `programs` and `integrations` import this
one.
"""
