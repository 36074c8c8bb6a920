"""The split of the schedule on the device: a look-up in a small table.

`schedule.binomial.split` needs a search over binomial coefficients. But as a function of the number
of steps, the split is piecewise linear, rising and flat in turns. So a row of corners replaces it:

    split(n) = 1 + sum over r of min(max(n - start[r], 0), height[r])
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve.schedule.binomial import MOST_REPETITIONS_IN_TABLES, repetition
from jax_revolve.schedule.plan import Reversal
from jax_revolve.step.steps import element
from jax_revolve.storage.buffers import read


class SplitTable:
    """`schedule.binomial.split` on the device, for every split that a plan can ask for.

    With repetition number r, the split rises from `shortest` to `longest`, the `shortest` of r + 1.
    The row of a number of checkpoints has, for each r >= 2, the number of steps where the rise
    starts, and its height.
    """

    def __init__(self, plan: Reversal) -> None:
        s = plan.checkpoints
        # An online schedule may need one more repetition. A single slot needs no rule.
        most = repetition(plan.blocks + 1, s) if s > 1 else 1
        most = max(min(most, MOST_REPETITIONS_IN_TABLES), 2)
        self.table = _table(s, most)

    def __call__(self, steps: jax.Array, checkpoints: jax.Array) -> jax.Array:
        """The split; 1 for a single step, which is not split."""
        (row,) = read([jnp.asarray(self.table)], lax.sub(checkpoints, ONE))
        starts, rises = element(row, 0), element(row, 1)
        beyond = lax.sub(lax.full_like(starts, steps), starts)
        return lax.add(jnp.sum(lax.clamp(ZERO, beyond, rises), dtype=jnp.int32), ONE)


def _table(checkpoints: int, most: int) -> np.ndarray:
    """The rows, from the terms of `schedule.binomial.split` for r = 2, ..., `most`."""
    row = np.ones(checkpoints + 1, np.int64)
    table = np.zeros((checkpoints, 2, most - 1), np.int64)
    for r in range(2, most + 1):
        shortest = row[2:]
        row = np.minimum(np.cumsum(row), _BEYOND)  # beta(c, r - 1) for all c
        longest, offset = row[2:], row[1:-1] + row[:-2]
        table[1:, :, r - 2] = np.stack([shortest + offset, longest - shortest], axis=1)
    table[0, :, 0], table[0, 0, 1:] = (2, _LARGEST), _LARGEST
    return np.minimum(table, _LARGEST).astype(np.int32)


def integers(values: Any) -> jax.Array:
    """These integers, as the result of an operation, so that they are on the mesh in use. A
    constant is on none, and JAX only writes values into an array of their own mesh."""
    return jnp.zeros(np.shape(values), jnp.int32) + np.asarray(values, np.int32)


def stacked(*numbers: jax.Array) -> jax.Array:
    return lax.concatenate([lax.expand_dims(n, (0,)) for n in numbers], 0)


ZERO, ONE = np.int32(0), np.int32(1)
_LARGEST = np.iinfo(np.int32).max
_BEYOND = 2**32
"""More than any difference of two 32-bit integers. 2**31 of these can be added in 64 bits."""
