"""The loops that users call, and what they ask of them.

Begin with `scan`: it is the whole story in one file. A caller's arguments become a plan, or a
request for one (`options`); `jax.lax` itself checks the step and traces it; what it would have run
becomes one primitive (`autodiff.loop_primitive`), and JAX's transformations do the rest.

- `scan`, `while_loop`, `fori_loop`: the public functions, with the semantics, the order of checks
  and the errors of `jax.lax`.
- `explain`: what the gradient of each of them takes for every sensible plan, before it runs.
- `options`: from `checkpoints=`, `block_size=`, `memory=` and `storage=` to a plan or a request.
- `try_storage`: whether a storage works on this machine, tried before it is relied upon.

May import `autodiff` and everything below it. `layers`, `programs` and `integrations` stand on it.
"""
