"""Online placement on the device: `schedule.online` in 32-bit integers.

The positions held are an array of as many numbers as there are checkpoints, sorted; entries beyond
those in use are ignored. The arithmetic per store is a few vector operations on such arrays and on
rows of tables with one row a level. None of it overflows: the tables are saturated, and no sum
leaves the range of the positions.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve.schedule.binomial import MOST_REPETITIONS_IN_TABLES
from jax_revolve.schedule.online import NEVER, landmarks, level, limits


class Placement:
    """Where a loop of at most `bound` steps stores its checkpoints."""

    def __init__(self, checkpoints: int, bound: int) -> None:
        self.checkpoints = checkpoints
        # With a single slot there are as many levels as steps, but no rule is needed.
        levels = level(bound + 3, checkpoints) if checkpoints > 1 else 1
        levels = min(levels, MOST_REPETITIONS_IN_TABLES)
        self.landmarks = _table(landmarks, levels, checkpoints)
        self.limits = _table(limits, levels, checkpoints)
        self.ends = self.landmarks[:-1, -1]

    def next_store(self, positions: jax.Array, count: jax.Array) -> jax.Array:
        """Where to store next, with `count` positions held; `NEVER` for a single slot."""
        if self.checkpoints == 1:
            return jnp.int32(NEVER)
        newest = lax.dynamic_index_in_dim(positions, count - 1, keepdims=False)
        # The level of newest + 3 steps; that sum could overflow.
        row = jnp.sum(jnp.asarray(self.ends - 2) <= newest, dtype=jnp.int32)
        ahead = _row(self.landmarks, row)
        landmark = jnp.min(jnp.where(ahead > newest, ahead, NEVER))
        step = jnp.minimum(2 * (row + 1), landmark - newest)
        return newest + jnp.where(count < self.checkpoints, 1, step)

    def drop(self, positions: jax.Array, position: jax.Array) -> jax.Array:
        """The index into `positions`, all in use, of what makes place for one at `position`."""
        row = jnp.sum(jnp.asarray(self.ends) <= position, dtype=jnp.int32)
        after = jnp.append(positions[2:], position)
        fits = after - positions[:-1] <= _row(self.limits, row)
        kept = _is_in(positions[1:], _row(self.landmarks, row))
        index = np.arange(1, self.checkpoints, dtype=np.int32)
        return jnp.max(jnp.where(fits & ~kept, index, 1))


def _table(rule: Callable[[int, int], list[int]], levels: int, checkpoints: int) -> np.ndarray:
    rows = [[min(number, NEVER) for number in rule(q + 1, checkpoints)] for q in range(levels)]
    return np.array(rows, np.int32)


def _row(table: np.ndarray, index: jax.Array) -> jax.Array:
    return lax.dynamic_index_in_dim(jnp.asarray(table), index, keepdims=False)


def _is_in(values: jax.Array, numbers: jax.Array) -> jax.Array:
    """Which of `values` are among the sorted `numbers`, in one fused operation. Its size, unlike
    that of comparing all with all, grows with the logarithm of how many there are."""
    at = jnp.searchsorted(numbers, values, method="scan_unrolled")
    return numbers.at[at].get(mode="clip") == values
