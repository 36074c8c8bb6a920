"""Online placement on the device: `schedule.online` in 32-bit integers.

The stack holds the positions in order. A store at `position` drops one of them, moves the rows
above it down by one, and appends the new one:

    rows   0  4  9  11  12          store 14, drop 11
    rows   0  4  9  12  14

A store looks at a window of the newest rows, and rarely at a second window. Looking at the whole
stack would save thirty lines, but the gradient of a loop of light steps would take 4 % longer with
10 checkpoints, 10 % with 30, and 2.6 times as long with 300.

A store is one loop, usually of a single iteration, because XLA compiles a loop over so few bytes as
one CPU kernel; as separate operations, each would take as long as a light step. An iteration
changes a window in place, and reads the next one for the next iteration: reading and changing the
same window would make XLA copy the stack. Nothing overflows: the tables are saturated, and no sum
leaves the range of the positions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve.engine.split import integers
from jax_revolve.schedule.binomial import MOST_REPETITIONS_IN_TABLES
from jax_revolve.schedule.online import NEVER, landmarks, level, limits
from jax_revolve.storage.buffers import read

WINDOW = 4
"""The number of positions in a window. On average, a store drops the fourth newest of 30
checkpoints, and the tenth newest of 1000."""

_POSITION, _SLOT = range(2)


class Stack(NamedTuple):
    """The stored positions, in order, as `rows`: each with its slot, inverted (`~slot`) if the
    position was a landmark when it was stored. `seen` is the next window. `numbers` are:

    - `step` and `stop`: the step to run next, and the one before which to store next;
    - `slot`: the slot of the newest position;
    - `level` and `landmark`: the level of the next position, and the index of its next landmark,
      both from 0;
    - `end`: rows from here on have been looked at and moved; while slots are free, minus their
      number;
    - `above`: the row that moves into the last place of the rows not yet looked at.
    """

    rows: Any
    seen: Any
    numbers: jax.Array

    @property
    def top(self) -> jax.Array:
        return len(self.rows) - 1 + jnp.minimum(self.numbers[5], 0)

    @property
    def slot(self) -> jax.Array:
        return self.numbers[2]

    @property
    def positions(self) -> jax.Array:
        return self.rows[:, _POSITION]

    @property
    def slot_index(self) -> jax.Array:
        return _slot(self.rows)


def in_order(span: int, length: int, most: int | None = None) -> tuple[Stack, Any]:
    """The stack of a loop that stores every `span` steps, at most `most` times after the start, in
    one slot after another; and the function that updates it at a store."""

    def store(stack: Stack) -> Stack:
        step, _, slot = stack.numbers
        slot += 1
        stop = step + jnp.minimum(span, length - step)  # the last block may reach beyond the bound
        if most is not None:
            stop = jnp.where(slot < most, stop, length)
        return stack._replace(numbers=jnp.stack([step, stop, slot]))

    return Stack((), (), integers([0, 0, -1])), store


class Placement:
    """Where a loop of at most `length` steps stores its checkpoints."""

    def __init__(
        self, checkpoints: int, length: int, block_size: int = 1, window: int = WINDOW
    ) -> None:
        self.checkpoints, self.window = checkpoints, min(window, checkpoints - 1)
        self._length, self._block_size = length, block_size
        # A single slot has as many levels as steps, but needs no rule.
        levels = level(-(-length // block_size) + 3, checkpoints) if checkpoints > 1 else 1
        levels = min(levels, MOST_REPETITIONS_IN_TABLES)
        self.landmarks = _table(lambda q: [*landmarks(q, checkpoints), NEVER], levels)
        self.limits = _table(lambda q: limits(q, checkpoints), levels)

    def begin(self) -> Stack:
        """The empty stack, before the store at position 0."""
        slots = np.arange(self.checkpoints)
        rows = np.stack([0 * slots, slots], axis=1)
        numbers = [*[0] * 5, -self.checkpoints, 0, 0]
        return Stack(*map(integers, (rows, rows[: self.window + 1], numbers)))

    def store(self, stack: Stack) -> Stack:
        """The stack after a store at the current step."""
        if self.checkpoints == 1:  # position 0 forever
            numbers = jnp.int32(0), jnp.int32(self._length)
            return stack._replace(numbers=jnp.pad(jnp.stack(numbers), (0, 6)))
        is_due = lambda stack: stack.numbers[1] <= stack.numbers[0]  # noqa: E731
        return lax.while_loop(is_due, self._look, stack)

    def _look(self, stack: Stack) -> Stack:
        """One iteration of a store. From the newest on, rows move down by one until one of them can
        be dropped. Invariant: rows below `end` are as before the store."""
        step, stop, _, level, landmark, end, *above = stack.numbers
        size, last = self.checkpoints, len(self.landmarks) - 1
        marks, position = jnp.asarray(self.landmarks), lax.div(step, jnp.int32(self._block_size))
        end_of_level = _at(marks, level, size - 1)
        is_landmark = position == _at(marks, level, landmark)

        # The window
        now = jnp.minimum(level + _as_int(end_of_level <= position), last)
        first = self._first(end)
        moved, removed, is_found = self._moved(stack.seen, jnp.stack(above), first, end, now)
        is_done = is_found | (first == 1)
        slot = jnp.where(end < 0, end + size, _slot(removed))
        rows = lax.dynamic_update_slice(stack.rows, moved, _unsigned(first, 0))
        top = size - 1 + jnp.minimum(end + 1, 0)
        new = jnp.stack([position, jnp.where(is_landmark, ~slot, slot)])
        rows = lax.dynamic_update_slice(rows, new[None], _unsigned(top, 0))

        # The next position, on the level of `position + 3` steps, a sum that might overflow.
        upcoming = jnp.minimum(level + _as_int(end_of_level - 2 <= position), last)
        mark = jnp.where(upcoming > level, 0, landmark + _as_int(is_landmark))
        ahead = _at(marks, upcoming, mark)
        distance = jnp.minimum(2 * (upcoming + 1), ahead - position)
        following = position + jnp.where(end < -1, 1, distance)
        above = [following, jnp.where(following == ahead, -1, 0)]
        next_end = jnp.where(end < -1, end + 1, size)
        done = [step, self._first_step(following), slot, upcoming, mark, next_end, *above]
        going = [step, stop, slot, level, landmark, first, *removed]
        numbers = jnp.where(is_done, jnp.stack(done), jnp.stack(going))
        start = self._first(numbers[5]) - 1
        seen = lax.dynamic_slice(rows, _unsigned(start, 0), (self.window + 1, 2))
        return Stack(rows, seen, numbers)

    def _first_step(self, block: jax.Array) -> jax.Array:
        """The first step of a block; the length for a position beyond the loop, whose product with
        the block size may overflow."""
        is_inside = block < -(-self._length // self._block_size)
        return jnp.where(is_inside, self._block_size * block, self._length)

    def _first(self, end: jax.Array) -> jax.Array:
        """The first row of the window before `end`."""
        return jnp.maximum(end - self.window, 1)

    def _moved(
        self, seen: jax.Array, above: jax.Array, first: jax.Array, end: jax.Array, level: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The rows of the window at `first` after the rows from the dropped one on have moved; the
        dropped row; and whether it may be dropped. If none may, the first row moves out."""
        index, here = first + np.arange(self.window, dtype=np.int32), seen[1:]
        after = jnp.concatenate([seen[2:], above[None]])
        after = jnp.where((index < end - 1)[:, None], after, above)
        limit = lax.dynamic_slice(
            jnp.asarray(self.limits), _unsigned(level, first - 1), (1, self.window)
        )[0]
        fits = after[:, _POSITION] - seen[:-1, _POSITION] <= limit
        first_of_level = _at(jnp.asarray(self.landmarks), level, 0)
        kept = (here[:, _SLOT] < 0) & (here[:, _POSITION] >= first_of_level)
        found = jnp.max(jnp.where(fits & ~kept & (index < end), index, 0))
        dropped = jnp.maximum(found, first)
        shifts = (dropped <= index) & (index < end)
        (removed,) = read([seen], dropped - first + 1)
        return jnp.where(shifts[:, None], after, here), removed, found > 0


def _slot(rows: jax.Array) -> jax.Array:
    slots = rows[..., _SLOT]
    return jnp.where(slots < 0, ~slots, slots)


def _as_int(flag: jax.Array) -> jax.Array:
    return flag.astype(jnp.int32)


def _at(table: jax.Array, row: jax.Array, column: jax.Array | int) -> jax.Array:
    return lax.dynamic_slice(table, _unsigned(row, column), (1, 1))[0, 0]


def _unsigned(*indices: jax.Array | int) -> list[jax.Array]:
    return [jnp.asarray(i).astype(jnp.uint32) for i in indices]


def _table(rule: Callable[[int], list[int]], levels: int) -> np.ndarray:
    rows = [[min(value, NEVER) for value in rule(q + 1)] for q in range(levels)]
    return np.array(rows, np.int32)
