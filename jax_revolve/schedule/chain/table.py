"""The table of the dynamic program for chains, in whole slots of memory."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

Rows = np.ndarray[Any, np.dtype[np.float64]]
"""A row for each part of some length, with a number for each number of slots."""


class Costs(NamedTuple):
    """A chain, with its memory in slots. For each layer:

    - `work`: the work of a run;
    - `keep`: the carry that enters it, while further layers run;
    - `alone`: the same carry, while the layer is taped alone;
    - `tape`: its residuals, while it is taped alone;
    - `hold`: its residuals and the carry after it, while further layers run, or `None` if they must
      not be held so long.
    """

    work: Sequence[int]
    keep: Sequence[int]
    alone: Sequence[int]
    tape: Sequence[int]
    hold: Sequence[int | None]


class Table:
    """C(i, j, m) of every part of the chain, for m from 0 to `slots`: see `schedules`.

    It is filled from short parts to long ones, for all parts of a length and all m at once. Of each
    length there are two arrays: C and the work of advancing over the part, and C with the slots
    that the first carry of the part occupies meanwhile.
    """

    def __init__(self, costs: Costs, slots: int) -> None:
        count = len(costs.work)
        self._costs, self._count, self._slots = costs, count, slots
        self._starts = np.concatenate([[0.0], np.cumsum(costs.work, dtype=np.float64)])
        work = np.array(costs.work, np.float64)[:, None]
        hold = np.array([slots + 1 if h is None else h for h in costs.hold])
        keep = np.array(costs.keep)
        no = np.full((count, slots + 1), np.inf)
        least = np.where(np.arange(slots + 1) >= np.array(costs.tape)[:, None], work, no)
        self._before = [no, least + work]
        self._after = [no, _with_less(least, np.array(costs.alone))]
        for length in range(2, count + 1):
            parts = count - length + 1
            least = work[:parts] + _with_less(self._least_of(length - 1)[1:], hold[:parts])
            some = np.empty_like(least)
            for k in range(1, length):
                np.add(self._before[k][:parts], self._after[length - k][k : k + parts], out=some)
                np.minimum(least, some, out=least)
            self._before.append(least + self._advances(length))
            self._after.append(_with_less(least, keep[:parts]))

    @property
    def is_feasible(self) -> bool:
        return self._least(0, self._count, self._slots) < np.inf

    def schedule(self) -> tuple[Any, ...]:
        return schedule_by(self._count, self._slots, self._next)

    def _advances(self, length: int) -> Rows:
        return (self._starts[length:] - self._starts[: self._count - length + 1])[:, None]

    def _least_of(self, length: int) -> Rows:
        return self._before[length] - self._advances(length)

    def _least(self, start: int, stop: int, slots: int) -> float:
        advance = self._starts[stop] - self._starts[start]
        return float(self._before[stop - start][start, slots] - advance)

    def _next(self, start: int, stop: int, slots: int) -> tuple[int, int, bool]:
        hold, least = self._costs.hold[start], self._least(start, stop, slots)
        if hold is not None and hold <= slots:
            rest = self._least(start + 1, stop, slots - hold)
            if self._costs.work[start] + rest == least:
                return start + 1, slots - hold, True
        between = range(start + 1, stop)
        middle = min(
            between,
            key=lambda k: self._before[k - start][start, slots] + self._after[stop - k][k, slots],
        )
        is_last = middle == stop - 1
        keep = (self._costs.alone if is_last else self._costs.keep)[middle]
        return middle, slots - keep, False


def _with_less(least: Rows, taken: np.ndarray[Any, Any]) -> Rows:
    """The rows with so many slots fewer each."""
    left = np.arange(least.shape[1]) - taken[: len(least), None]
    return np.where(left >= 0, np.take_along_axis(least, np.maximum(left, 0), axis=1), np.inf)


def schedule_by(
    count: int, slots: int, choose: Callable[[int, int, int], tuple[int, int, bool]]
) -> tuple[Any, ...]:
    """The schedule of a chain. `choose(start, stop, slots)` returns where the next entry of the
    layers from `start` to `stop` begins, the slots that are left for what follows, and whether the
    entry is a layer that is taped.

    Schedules may be nested deeper than Python's calls may.
    """
    whole: list[Any] = []
    made: list[tuple[list[Any], int, list[Any]]] = []
    rest = [(0, count, slots, whole)]
    while rest:
        start, stop, slots, entries = rest.pop()
        while stop - start > 1:
            following, left, is_taped = choose(start, stop, slots)
            if is_taped:
                entries.append(start)
            else:
                advanced: list[Any] = []
                made.append((entries, len(entries), advanced))
                entries.append(advanced)
                rest.append((start, following, slots, advanced))
            start, slots = following, left
        entries.append(start)
    for entries, index, advanced in reversed(made):
        entries[index] = tuple(advanced)
    return tuple(whole)
