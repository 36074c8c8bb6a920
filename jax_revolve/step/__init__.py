"""One step of a loop as data, and what tracing it tells.

Begin with `loop`: a `Loop` is what `jax.lax` makes of a user's function, a jaxpr with the numbers
of its consts, carry and xs, together with the plan of its reversal. These files answer one question
about it each, by tracing the step and never by running it:

- `activity`: which values have derivatives.
- `restart`: which leaves of the carry a checkpoint holds.
- `dead_code`: which part of a loop is left if some results are unused.
- `work`: how long a step takes, as an estimate.
- `once`: the cache of such answers, so that each takes one trace.

These files run steps in a reverse pass:

- `steps`: from the start, with their ys, and from one restart state to a later one.
- `pullback`: one step linearized, and its pullback.
- `paired`: the loop of values and tangents, which derivatives of gradients run.
- `traced`: a step with its residuals as one jaxpr.
- `primal_half`: the part of a linearized function that runs before the cotangents are known.
- `examples`: steps under `jax.vmap`, where some examples of a while loop are done.
- `in_place`: arrays of which such a step writes entries alone.
- `cpu`: what is there because of how XLA compiles for CPUs.

May import `storage`, `progress`, `schedule` and `_compat`. `engine`, `autodiff` and the rooms above
import this one.
"""
