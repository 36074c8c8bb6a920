"""The split of the schedule on the device: a look-up in a small table.

`schedule.binomial.split` needs a search over binomial coefficients. But as a function of the number
of steps, the split is piecewise linear, rising and flat in turns. So a row of corners replaces it:

    split(n) = 1 + sum over r of min(max(n - start[r], 0), height[r])

The table is for the distance n - 1 that is asked for, and its first rise begins at 1 instead of 0.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve.schedule.binomial import MOST_REPETITIONS_IN_TABLES, repetition
from jax_revolve.schedule.plan import Plan
from jax_revolve.step.steps import element
from jax_revolve.storage.buffers import read


class SplitTable:
    """`schedule.binomial.split` on the device, for every split that a plan can ask for, with a row
    for each entry that can be the top of a stack."""

    def __init__(self, plan: Plan, capacity: int) -> None:
        s = plan.checkpoints
        # An online schedule may need one more repetition. A single slot needs no rule.
        most = repetition(plan.blocks + 1, s) if s > 1 else 1
        most = max(min(most, MOST_REPETITIONS_IN_TABLES), 2)
        self.rows = _table(s, most)[:capacity][::-1]

    def __call__(self, distance: jax.Array, top: jax.Array) -> jax.Array:
        """The split of `distance + 1` steps with the entries from `top` on; 1 for a single step,
        which is not split. All three are arrays of one number."""
        (row,) = read([jnp.asarray(self.rows)], lax.squeeze(top, (0,)))
        starts, rises = element(row, 0), element(row, 1)
        beyond = lax.sub(lax.broadcast_in_dim(distance, starts.shape, (0,)), starts)
        least = np.eye(1, starts.size, dtype=np.int32)[0]
        return jnp.sum(lax.clamp(least, beyond, rises), dtype=jnp.int32, keepdims=True)


def _table(checkpoints: int, most: int) -> np.ndarray:
    """For each number of checkpoints, the starts and heights of the rises.

    With repetition number r, the split rises from `shortest` to `longest`, the `shortest` of r + 1.
    The numbers are from the terms of `schedule.binomial.split` for r = 2, ..., `most`.
    """
    row = np.ones(checkpoints + 1, np.int64)
    table = np.zeros((checkpoints, 2, most - 1), np.int64)
    for r in range(2, most + 1):
        shortest = row[2:]
        row = np.minimum(np.cumsum(row), _BEYOND)  # beta(c, r - 1) for all c
        longest, offset = row[2:], row[1:-1] + row[:-2]
        table[1:, :, r - 2] = np.stack([shortest + offset, longest - shortest], axis=1)
    table[0, :, 0], table[0, 0, 1:] = (2, _LARGEST), _LARGEST
    table[:, 0] -= 1
    table[:, :, 0] += -1, 1
    return np.minimum(table, _LARGEST).astype(np.int32)


def integers(values: Any) -> jax.Array:
    """These integers, as the result of an operation, so that they are on the mesh in use. A
    constant is on none, and JAX only writes values into an array of their own mesh."""
    return jnp.zeros(np.shape(values), jnp.int32) + np.asarray(values, np.int32)


def stacked(*numbers: Any) -> jax.Array:
    return lax.concatenate([lax.expand_dims(n, (0,)) for n in numbers], 0)


ZERO, ONE = np.int32(0), np.int32(1)
_LARGEST = np.iinfo(np.int32).max
_BEYOND = 2**32
"""More than any difference of two 32-bit integers. 2**31 of these can be added in 64 bits."""
