"""The table of the dynamic program for chains, in whole slots of memory."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import inf
from operator import add
from typing import Any, NamedTuple


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

    def part(self, start: int, stop: int) -> "Costs":
        part = slice(start, stop)
        return Costs(
            self.work[part], self.keep[part], self.alone[part], self.tape[part], self.hold[part]
        )


class Table:
    """C(i, j, m) of every part of the chain, for m from 0 to `slots`.

    The table of a chain of many layers would take too long. Then the lightest neighboring layers
    form groups. Carries are kept between groups, and also within a group while that is reversed, by
    a table of its own.
    """

    def __init__(self, costs: Costs, slots: int, most_terms: int) -> None:
        count = len(costs.work)
        most = int((6 * most_terms / (slots + 1)) ** (1 / 3))
        self._edges = _edges(costs, max(most, 2))
        self._slots = slots
        self._inner: list[Table] = []
        if len(self._edges) <= count:
            self._inner = [
                Table(costs.part(i, j), slots, most_terms) for i, j in pairwise(self._edges)
            ]
        self._costs = _grouped(costs, self._edges)
        self._starts = [0, *accumulate(self._costs.work)]
        self._fill()

    @property
    def is_feasible(self) -> bool:
        return self._least(0, self._count)[self._slots] < inf

    @property
    def whole(self) -> list[float]:
        """The least work for the whole chain, for each number of slots."""
        return self._least(0, self._count)

    def schedule(self) -> Any:
        return self._schedule(0, self._count, self._slots)

    @property
    def _count(self) -> int:
        return len(self._costs.work)

    def _least(self, start: int, stop: int) -> list[float]:
        return self._table[start][stop - start - 1]

    def _fill(self) -> None:
        """Fill the table from the last layer to the first, and from short parts to long ones.

        For each m there are two rows over the layer k of the next carry. One is the work of
        advancing to k, and of reversing the layers before k. The other is the work of reversing the
        layers from k on, and is filled from the right.
        """
        count, slots = self._count, range(self._slots + 1)
        self._table: list[list[list[float]]] = [[] for _ in range(count)]
        after: list[list[list[float]]] = [[[] for _ in slots] for _ in range(count + 1)]
        for start in range(count - 1, -1, -1):
            before: list[list[float]] = [[] for _ in slots]
            for stop in range(start + 1, count + 1):
                if stop == start + 1:
                    least = self._alone(start)
                else:
                    least = [
                        min(map(add, row, reversed(after_k)))
                        for row, after_k in zip(before, after[stop], strict=True)
                    ]
                    least = list(map(min, least, self._taped(start, stop)))
                self._table[start].append(least)
                advance = self._starts[stop] - self._starts[start]
                keep = self._keep(start, stop)
                shifted = [inf] * min(keep, len(least)) + least[: max(len(least) - keep, 0)]
                for m in slots:
                    before[m].append(advance + least[m])
                    after[stop][m].append(shifted[m])

    def _keep(self, start: int, stop: int) -> int:
        """The slots that the first carry of a part occupies while that part is reversed."""
        return self._costs.alone[start] if stop == start + 1 else self._costs.keep[start]

    def _alone(self, layer: int) -> list[float]:
        if self._inner:
            return self._inner[layer].whole
        least, work = self._costs.tape[layer], self._costs.work[layer]
        return [work if m >= least else inf for m in range(self._slots + 1)]

    def _taped(self, start: int, stop: int) -> list[float]:
        """The least work if the residuals of the first layer are kept."""
        hold = self._costs.hold[start]
        if hold is None or hold > self._slots:
            return [inf] * (self._slots + 1)
        rest, work = self._least(start + 1, stop), self._costs.work[start]
        return [inf] * hold + [work + w for w in rest[: self._slots + 1 - hold]]

    def _schedule(self, start: int, stop: int, slots: int) -> Any:
        entries: list[Any] = []
        while stop - start > 1:
            hold = self._costs.hold[start]
            if (
                hold is not None
                and self._taped(start, stop)[slots] == self._least(start, stop)[slots]
            ):
                entries += range(self._edges[start], self._edges[start + 1])
                start, slots = start + 1, slots - hold
            else:
                middle = self._next(start, stop, slots)
                entries.append(self._schedule(start, middle, slots))
                start, slots = middle, slots - self._keep(middle, stop)
        return (*entries, *self._schedule_alone(start, slots))

    def _schedule_alone(self, layer: int, slots: int) -> Any:
        if not self._inner:
            return (self._edges[layer],)
        inner = self._inner[layer]
        return _shifted(inner._schedule(0, inner._count, slots), self._edges[layer])

    def _next(self, start: int, stop: int, slots: int) -> int:
        """The layer whose carry is kept next."""

        def work(middle: int) -> float:
            left = slots - self._keep(middle, stop)
            after = self._least(middle, stop)[left] if left >= 0 else inf
            return self._starts[middle] + self._least(start, middle)[slots] + after

        return min(range(start + 1, stop), key=work)


def _edges(costs: Costs, most: int) -> list[int]:
    """The starts of at most `most` groups, and the end."""
    edges = list(range(len(costs.work) + 1))
    total = [0, *accumulate(costs.work)]
    while len(edges) - 1 > most:
        work = [total[c] - total[a] for a, c in zip(edges, edges[2:], strict=False)]
        del edges[1 + min(range(len(work)), key=work.__getitem__)]
    return edges


def _grouped(costs: Costs, edges: list[int]) -> Costs:
    parts = [costs.part(i, j) for i, j in pairwise(edges)]
    holds = [[h for h in part.hold if h is not None] for part in parts]
    return Costs(
        work=[sum(part.work) for part in parts],
        keep=[part.keep[0] for part in parts],
        alone=[part.keep[0] if len(part.keep) > 1 else part.alone[0] for part in parts],
        tape=[0 if len(part.tape) > 1 else part.tape[0] for part in parts],
        hold=[
            sum(held) if len(held) == len(part.hold) else None
            for held, part in zip(holds, parts, strict=True)
        ],
    )


def _shifted(schedule: Any, by: int) -> Any:
    return tuple(e + by if isinstance(e, int) else _shifted(e, by) for e in schedule)
