"""Online placement on the device: `schedule.online` in 32-bit integers.

The positions held are a sorted array with one entry for each checkpoint. Entries beyond those in
use are ignored. A store takes a few vector operations on such arrays and on rows of tables, which
have one row for each level. Nothing overflows: the tables are saturated, and no sum leaves the
range of the positions.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve.schedule.binomial import MOST_REPETITIONS_IN_TABLES
from jax_revolve.schedule.online import NEVER, landmarks, level, limits

NEWEST = 64
"""The number of positions that are looked at first. Nearly always one of them can be dropped: of
1000 checkpoints it is the tenth newest on average."""


class Placement:
    """Where a loop of at most `bound` steps stores its checkpoints."""

    def __init__(self, checkpoints: int, bound: int, newest: int = NEWEST) -> None:
        self.checkpoints, self.newest = checkpoints, newest
        # A single slot has as many levels as steps, but needs no rule.
        levels = level(bound + 3, checkpoints) if checkpoints > 1 else 1
        levels = min(levels, MOST_REPETITIONS_IN_TABLES)
        self.landmarks = _table(landmarks, levels, checkpoints)
        self.limits = _table(limits, levels, checkpoints)
        self.ends = self.landmarks[:-1, -1]

    def next_store(self, positions: jax.Array, count: jax.Array) -> jax.Array:
        """The next position, with `count` positions held; `NEVER` for a single slot."""
        if self.checkpoints == 1:
            return jnp.int32(NEVER)
        newest = lax.dynamic_index_in_dim(positions, count - 1, keepdims=False)
        # The level of newest + 3 steps, without this sum, which could overflow.
        row = jnp.sum(jnp.asarray(self.ends - 2) <= newest, dtype=jnp.int32)
        ahead = _row(self.landmarks, row)
        landmark = jnp.min(jnp.where(ahead > newest, ahead, NEVER))
        step = jnp.minimum(2 * (row + 1), landmark - newest)
        return newest + jnp.where(count < self.checkpoints, 1, step)

    def drop(self, positions: jax.Array, position: jax.Array) -> jax.Array:
        """The index of the position that is dropped for one at `position`; all `positions` are in
        use."""
        row = jnp.sum(jnp.asarray(self.ends) <= position, dtype=jnp.int32)
        after = jnp.append(positions[1:], position)
        limits, kept = _row(self.limits, row), _row(self.landmarks, row)

        def newest_from(first: int) -> jax.Array:
            """The newest position from this index on that can be dropped; 0 if there is none."""
            fits = after[first:] - positions[first - 1 : -1] <= limits[first - 1 :]
            index = np.arange(first, self.checkpoints, dtype=np.int32)
            return jnp.max(jnp.where(fits & ~_is_in(positions[first:], kept), index, 0))

        def among_all() -> jax.Array:
            return jnp.maximum(newest_from(1), 1)

        if self.checkpoints <= self.newest + 1:
            return among_all()
        found = newest_from(self.checkpoints - self.newest)
        return lax.cond(found > 0, lambda: found, among_all)


def _table(rule: Callable[[int, int], list[int]], levels: int, checkpoints: int) -> np.ndarray:
    rows = [[min(number, NEVER) for number in rule(q + 1, checkpoints)] for q in range(levels)]
    return np.array(rows, np.int32)


def _row(table: np.ndarray, index: jax.Array) -> jax.Array:
    return lax.dynamic_index_in_dim(jnp.asarray(table), index, keepdims=False)


def _is_in(values: jax.Array, numbers: jax.Array) -> jax.Array:
    """Which of `values` are among the sorted `numbers`, in one fused operation. Its size grows with
    the logarithm of the number of `numbers`, and not with that number, as comparing all would."""
    at = jnp.searchsorted(numbers, values, method="scan_unrolled")
    return numbers.at[at].get(mode="clip") == values
