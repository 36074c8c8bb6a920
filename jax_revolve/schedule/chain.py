"""The cheapest schedule for a chain of different layers, by dynamic programming.

Layer i maps carry i to carry i + 1, with work u_i, residuals of r_i bytes and a carry of a_i bytes.
To *advance* is to run layers without keeping residuals, from a stored carry from which they run
again. With `m` bytes besides carry i, the cheapest way C to reverse the layers i to j is either

- to tape layer i: u_i + C(i + 1, j, m - r_i - a_{i+1}), or
- to advance to some k: u_i + ... + u_{k-1} + C(k, j, m - a_k) + C(i, k, m).

A schedule is a tuple. An `int` entry is a taped layer. A tuple entry stands for advanced layers: it
is the schedule that reverses them once all later layers have been reversed. So `((0, 1), 2, 3)`
advances over the layers 0 and 1, tapes and reverses 2 and 3, and then 0 and 1.

Sources: O. Beaumont, L. Eyraud-Dubois, J. Herrmann, A. Joly and A. Shilova, "Optimal checkpointing
for heterogeneous chains: how to train deep neural networks with limited memory", 2019, for the
recursion; A. Griewank and A. Walther, "Evaluating Derivatives", SIAM, 2nd edition 2008, section
12.3, for the form that counts checkpoints.
"""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from operator import sub
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from jax_revolve.schedule.arguments import TooLittleMemory, readable
from jax_revolve.schedule.binomial import smallest, split

Schedule: TypeAlias = tuple[Any, ...]
"""Entries are an `int` or a `Schedule`."""

Rows = np.ndarray[Any, np.dtype[np.float64]]
"""A row for each part of some length, with a column for each number of units of memory."""

MOST_TERMS = 1_200_000_000
"""The most sums for filling a table, which take a second or two."""

MOST_UNITS = 2000
"""A memory budget is divided into at most this many units."""

MANY_UNITS, FEWEST_UNITS = 200, 40
"""More than many units are for tables that a twelfth of `MOST_TERMS` fills. The fewest are for any
number of layers."""


class Layers(NamedTuple):
    """For each layer its work, and the bytes of the carry before it and of its residuals alone."""

    work: tuple[int, ...]
    carry: tuple[int, ...]
    residuals: tuple[int, ...]

    @property
    def hold(self) -> list[int]:
        """For each layer, the bytes of its residuals and of the carry after it."""
        after = (*self.carry[1:], 0)
        return [r + a for r, a in zip(self.residuals, after, strict=True)]


def with_checkpoints(layers: Layers, checkpoints: int) -> Schedule:
    """The schedule with the least work for `checkpoints` stored carries, including the initial one,
    and the residuals of one layer at a time. For hundreds of unequal layers, about the least."""
    count = len(layers.work)
    if checkpoints >= count - 1:
        return (*((i,) for i in range(count - 1)), count - 1)
    # Revolve's choice is the best for layers of equal work.
    revolve = lambda i, j, left: (i + split(j - i, left), left - 1, False)  # noqa: E731
    found = [_schedule(count, checkpoints, revolve)]
    units = min(checkpoints - 1, _most_units(count))
    if len(set(layers.work)) > 1 and units >= 0:
        one, none = (1,) * count, (0,) * count
        costs = Costs(layers.work, keep=one, alone=none, tape=none, hold=(units + 1,) * count)
        found.append(_by_table(costs, units)(units) or found[0])
    return min(found, key=lambda schedule: work_of(schedule, layers))


def _most_units(count: int) -> int:
    """The most units, besides none, of a table for so many layers."""
    return 6 * MOST_TERMS // count**3 - 1


def within(layers: Layers, memory: int) -> Schedule:
    """The least work within `memory` bytes of residuals and carries, including the initial one."""
    least, count = least_memory(layers), len(layers.work)
    if memory < least:
        raise TooLittleMemory(
            least,
            f"memory must be at least {least} bytes ({readable(least)}) for these {count} layers, "
            f"but is {memory}: the initial carry, and the carry and the residuals of the largest "
            "layer, take that much.",
        )
    left = memory - layers.carry[0]
    if left >= sum(layers.hold):
        return tuple(range(count))
    # Sizes are rounded to the nearest unit, so a schedule may take more or less than by the table.
    # Rounded up, near the least memory, none takes more, but for residuals of less than a unit.
    for up in (False, True):
        costs, units = _rounded(layers, left, up=up)
        most = units + (0 if up else max(units // 10, 2))
        read, less = _by_table(costs, most), 0
        while less <= most and (found := read(most - less)) is not None:
            if memory_of(found, layers) <= memory:
                return found
            less += max(abs(units - most + less) // 4, 1)
    found = (0,)
    for layer in range(1, count):
        found = (found, layer)
    return found


def by_default(layers: Layers) -> Schedule:
    """The least work within the least memory in which no layer is advanced more than once."""
    least = smallest(lambda memory: bool(_segments(layers, memory)))
    segments = _segments(layers, least)
    if len(segments) == 1:
        return segments[0]
    simple = (*segments[:-1], *segments[-1])
    better = within(layers, least + layers.carry[0])
    return min(simple, better, key=lambda schedule: work_of(schedule, layers))


def layers_in(schedule: Schedule) -> Iterator[int]:
    """The layers that a schedule reverses, in the order of the chain."""
    return (layer for layer, _ in _with_depths(schedule))


def runs(schedule: Schedule) -> list[int]:
    """How often each layer runs: once taped, and once for each schedule that advances it."""
    return [depth + 1 for _, depth in _with_depths(schedule)]


def _with_depths(schedule: Schedule) -> Iterator[tuple[int, int]]:
    """The layers, each with its number of enclosing schedules, not counting the outermost."""
    rest: list[tuple[int | Schedule, int]] = [(schedule, -1)]
    while rest:
        entry, depth = rest.pop()
        if isinstance(entry, int):
            yield entry, depth
        else:
            rest += [(inner, depth + 1) for inner in reversed(entry)]


def work_of(schedule: Schedule, layers: Layers) -> int:
    return sum(u * n for u, n in zip(layers.work, runs(schedule), strict=True))


def memory_of(schedule: Schedule, layers: Layers) -> int:
    """The most bytes that a schedule holds at once, with the initial carry."""
    most, rest = 0, [(schedule, 0, layers.carry[0])]
    while rest:
        entries, first, held = rest.pop()
        for i, entry in enumerate(entries):
            before, is_last = held, i + 1 == len(entries)
            if isinstance(entry, int):
                after = entry + 1
                held += layers.residuals[entry]
            else:
                rest.append((entry, first, before))
                after = first + sum(1 for _ in layers_in(entry))
            held += 0 if is_last else layers.carry[after]
            first = after
        most = max(most, held)
    return most


def least_memory(layers: Layers) -> int:
    """The least memory of any schedule: the initial carry, and the largest layer taped alone."""
    entering = (0, *layers.carry[1:])
    return layers.carry[0] + max(map(sum, zip(entering, layers.residuals, strict=True)))


def _segments(layers: Layers, memory: int) -> list[Schedule]:
    """Segments that each fit when taped whole, beside the carries that enter the earlier ones; none
    if impossible. `held[k]` is the least memory of these carries for a segment that starts at layer
    k."""
    count, hold, carries = len(layers.work), layers.hold, (*layers.carry, 0)
    held, came_from = [0, *[inf] * count], [0] * (count + 1)
    for start in range(count):
        taped = held[start]
        for stop in range(start + 1, count + 1):
            if taped + layers.residuals[stop - 1] > memory:
                break
            taped += hold[stop - 1]
            if held[start] + carries[stop] < held[stop]:
                held[stop], came_from[stop] = held[start] + carries[stop], start
    segments: list[Schedule] = []
    stop = count if held[count] < inf else 0
    while stop:
        segments.insert(0, tuple(range(came_from[stop], stop)))
        stop = came_from[stop]
    return segments


class Costs(NamedTuple):
    """A chain, with its memory in units: five numbers for each layer."""

    work: Sequence[int]  # the work of a run
    keep: Sequence[int]  # the carry that enters it, while further layers run
    alone: Sequence[int]  # the same carry, while the layer is taped alone
    tape: Sequence[int]  # its residuals, while it is taped alone
    hold: Sequence[int]  # its residuals and the carry after it, while further layers run


def _rounded(layers: Layers, memory: int, *, up: bool) -> tuple[Costs, int]:
    """Sizes in units, and the number of units, whose rounding to the nearest cancels out. A layer
    that is taped alone fits if nothing but its carry is held, as it does in fact."""
    room = _most_units(len(layers.work))
    most = min(MOST_UNITS, max(room // 12, min(MANY_UNITS, room), FEWEST_UNITS))

    def in_units(sizes: Sequence[int], units: int) -> list[int]:
        if up:
            return [-(-size * units // memory) for size in sizes]
        return [(2 * size * units + memory) // (2 * memory) for size in sizes]

    def error(units: int) -> float:
        lost = (units * size / memory for size in every)
        return abs(sum(map(sub, in_units(every, units), lost))) / units

    every = [*layers.carry, *layers.hold]
    units = min(range(most - most // 10, most + 1), key=error)
    groups = ((0, *layers.carry[1:]), layers.residuals, layers.hold)
    carry, tape, hold = (in_units(group, units) for group in groups)
    tape = [min(t, units - a) for t, a in zip(tape, carry, strict=True)]
    return Costs(layers.work, carry, carry, tape, hold), units


def _by_table(costs: Costs, units: int) -> Callable[[int], Schedule | None]:
    """The cheapest schedule within at most so many units, from a table of C(i, j, m) for every part
    of the chain and m from 0 to `units`; `None` if nothing fits.

    The table is filled from short parts to long ones, for all parts of a length and all m at once.
    Invariant: for shorter parts, `before` has C plus the work of advancing over the part, and
    `after` has C with so many fewer units as the part's first carry takes.
    """
    count = len(costs.work)
    until = np.concatenate([[0.0], np.cumsum(costs.work, dtype=np.float64)])
    work = np.array(costs.work, np.float64)[:, None]
    hold, keep = np.array(costs.hold), np.array(costs.keep)
    least = np.where(np.arange(units + 1) >= np.array(costs.tape)[:, None], work, inf)
    before, after = [least, least + work], [least, _with_less(least, np.array(costs.alone))]
    for length in range(2, count + 1):
        parts = count - length + 1
        least = work[:parts] + _with_less(least[1:], hold[:parts])
        some = np.empty_like(least)
        for k in range(1, length):
            np.add(before[k][:parts], after[length - k][k : k + parts], out=some)
            np.minimum(least, some, out=least)
        before.append(least + (until[length:] - until[:parts])[:, None])
        after.append(_with_less(least, keep[:parts]))

    def least_of(start: int, stop: int, units: int) -> float:
        return float(before[stop - start][start, units] - (until[stop] - until[start]))

    def choose(start: int, stop: int, units: int) -> tuple[int, int, bool]:
        left = units - costs.hold[start]
        if left >= 0:
            rest = least_of(start + 1, stop, left)
            if costs.work[start] + rest == least_of(start, stop, units):
                return start + 1, left, True
        middle = min(
            range(start + 1, stop),
            key=lambda k: before[k - start][start, units] + after[stop - k][k, units],
        )
        kept = costs.alone if middle == stop - 1 else costs.keep
        return middle, units - kept[middle], False

    def read(units: int) -> Schedule | None:
        return _schedule(count, units, choose) if least_of(0, count, units) < inf else None

    return read


def _with_less(least: Rows, used: np.ndarray[Any, Any]) -> Rows:
    """The rows, each with so many fewer units."""
    left = np.arange(least.shape[1]) - used[: len(least), None]
    return np.where(left >= 0, np.take_along_axis(least, np.maximum(left, 0), axis=1), inf)


def _schedule(
    count: int, units: int, choose: Callable[[int, int, int], tuple[int, int, bool]]
) -> Schedule:
    """The schedule of a chain. `choose(start, stop, units)` returns where the entry after the first
    begins, the units left for it, and whether the first is a taped layer. There is no recursion,
    because schedules may be nested deeper than Python's calls."""
    whole: list[Any] = []
    made: list[tuple[list[Any], int, list[Any]]] = []
    rest = [(0, count, units, whole)]
    while rest:
        start, stop, units, entries = rest.pop()
        while stop - start > 1:
            following, left, is_taped = choose(start, stop, units)
            if is_taped:
                entries.append(start)
            else:
                advanced: list[Any] = []
                made.append((entries, len(entries), advanced))
                entries.append(advanced)
                rest.append((start, following, units, advanced))
            start, units = following, left
        entries.append(start)
    for entries, index, advanced in reversed(made):
        entries[index] = tuple(advanced)
    return tuple(whole)
