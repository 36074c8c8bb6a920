"""The split of the schedule on the device: a look-up in a small table."""

import jax
import jax.numpy as jnp
import numpy as np

from jax_revolve.schedule.binomial import MOST_REPETITIONS_IN_TABLES, beta, repetition, split_terms
from jax_revolve.schedule.plan import Reversal


class SplitTable:
    """`schedule.binomial.split` on the device, for every split that a plan can ask for."""

    def __init__(self, plan: Reversal) -> None:
        s = plan.checkpoints
        # An online schedule may need one more repetition. With a single slot, the repetition number
        # is the length of the loop, but no rule is needed.
        most = repetition(plan.blocks + 1, s) if s > 1 else 1
        most = min(most, MOST_REPETITIONS_IN_TABLES)
        rules = [[(0, 1, _LARGEST)] * most] + [
            [split_terms(c, r) for r in range(1, most + 1)] for c in range(2, s + 1)
        ]
        longest = [[beta(c, r) for r in range(1, most)] for c in range(1, s + 1)]
        self.rules = np.minimum(np.array(rules, dtype=object), _LARGEST).astype(np.int32)
        shape = (s, most - 1)
        self.longest = np.minimum(np.array(longest, dtype=object).reshape(shape), _LARGEST).astype(
            np.int32
        )

    def __call__(self, steps: jax.Array, checkpoints: jax.Array) -> jax.Array:
        row = checkpoints - 1
        repetitions = jnp.sum(jnp.asarray(self.longest)[row] < steps, dtype=jnp.int32)
        shortest, offset, longest = jnp.asarray(self.rules)[row, repetitions]
        return jnp.clip(steps - offset, shortest, longest)


_LARGEST = np.iinfo(np.int32).max
