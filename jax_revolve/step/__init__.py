"""One step of a loop as data, and what can be known of it before it runs.

Begin with `loop`: a `Loop` is what `jax.lax` made of a caller's function, a jaxpr with the number
of its consts, carry and xs, and how it is to be reversed. The other files each answer one question
about it, by tracing the step and never by running it:

- `activity`: which values have derivatives.
- `restart`: which leaves of the carry a checkpoint has to hold.
- `dead_code`: what is left of a loop if some results are unused, or some operands known.
- `work`: an estimate of the time of a step.
- `batching`: which results have an axis under `jax.vmap`.
- `once`: the memory of such answers, so that each is found by one trace.

And how a step is run in a reverse pass:

- `steps`: from a restart state to later ones.
- `pullback`: one step linearized, and its cotangents.
- `primal_half`: the part of a linearized function that runs before the cotangents are known.
- `examples`: steps under `jax.vmap`, where some examples of a while loop have stopped.

May import `storage` and `progress`, `schedule` and `_compat`. `engine` and `autodiff` stand on it.
"""
