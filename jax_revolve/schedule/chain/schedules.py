"""The cheapest schedule for a chain of different layers, by dynamic programming.

Layer i maps carry i to carry i + 1. To *tape* a layer is to run it and to keep its residuals. To
*advance* is to run layers without keeping residuals, from a carry that is kept and from which they
run again. With `m` bytes in addition to carry i, the cheapest way to reverse the layers i to j is
the cheaper of

- taping layer i: u_i + C(i + 1, j, m - r_i - a_{i+1});
- advancing to some k: u_i + ... + u_{k-1} + C(k, j, m - a_k) + C(i, k, m).

A schedule is a tuple. An `int` entry is a layer that is taped. A tuple entry is the schedule of
layers that are advanced; it reverses them once all layers after them have been reversed.

Sources: O. Beaumont, L. Eyraud-Dubois, J. Herrmann, A. Joly and A. Shilova, "Optimal checkpointing
for heterogeneous chains: how to train deep neural networks with limited memory", 2019, for the
recursion; A. Griewank and A. Walther, "Evaluating Derivatives", SIAM, 2nd edition 2008, section
12.3, for the form that counts checkpoints.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

from jax_revolve.schedule.arguments import TooLittleMemory, readable
from jax_revolve.schedule.binomial import split
from jax_revolve.schedule.chain.table import Costs, Table, schedule_by

Schedule: TypeAlias = tuple[Any, ...]
"""Entries are an `int` or a `Schedule`."""

MOST_TERMS = 1_200_000_000
"""The most sums that filling a table may take. They take a second or two."""

MOST_SLOTS = 200
"""The most slots that a memory budget is divided into. Sizes are rounded up to whole slots."""

FEWEST_SLOTS = 40


class Layers(NamedTuple):
    """A chain: for each layer its work, the bytes of the carry that enters it, and the bytes of its
    residuals, carries excluded."""

    work: tuple[int, ...]
    carry: tuple[int, ...]
    residuals: tuple[int, ...]

    def hold(self, layer: int) -> int:
        """The bytes held when the layer has been taped and the next one runs: residuals and a
        carry."""
        following = self.carry[layer + 1 :]
        return self.residuals[layer] + (following[0] if following else 0)


def with_checkpoints(layers: Layers, checkpoints: int) -> Schedule:
    """The least work with `checkpoints` stored carries, the initial one included, and the residuals
    of one layer at a time. It is the least for equal layers, and for others unless there are
    hundreds."""
    count = len(layers.work)
    if checkpoints >= count - 1:
        return (*((i,) for i in range(count - 1)), count - 1)
    schedules = [schedule_by(count, checkpoints, _as_revolve)]
    slots = min(checkpoints - 1, _most_slots(count))
    if len(set(layers.work)) > 1 and slots >= 0:
        one, none = (1,) * count, (0,) * count
        costs = Costs(layers.work, keep=one, alone=none, tape=none, hold=(None,) * count)
        schedules.append(Table(costs, slots).schedule())
    return min(schedules, key=lambda found: work_of(found, layers))


def _as_revolve(start: int, stop: int, checkpoints: int) -> tuple[int, int, bool]:
    """The choice of Revolve, which is the best for layers of equal work."""
    return start + split(stop - start, checkpoints), checkpoints - 1, False


def _most_slots(count: int) -> int:
    """The most slots, in addition to none, of a table for so many layers."""
    return 6 * MOST_TERMS // count**3 - 1


def within(layers: Layers, memory: int) -> Schedule:
    """The least work within `memory` bytes for carries and residuals, the initial carry
    included."""
    least = least_memory(layers)
    if memory < least:
        raise TooLittleMemory(
            least,
            f"memory must be at least {least} bytes ({readable(least)}) for these "
            f"{len(layers.work)} layers, but is {memory}: the initial carry, and the carry and the "
            "residuals of the largest layer, take that much.",
        )
    left = memory - layers.carry[0]
    if left >= sum(map(layers.hold, range(len(layers.work)))):
        return tuple(range(len(layers.work)))
    costs, slots = _rounded(layers, left)
    table = Table(costs, slots)
    return table.schedule() if table.is_feasible else _one_by_one(len(layers.work))


def by_default(layers: Layers) -> Schedule:
    """The least work within the least memory with which no layer is advanced more than once."""
    least, segments = _least_for_one_advance(layers)
    if len(segments) == 1:
        return segments[0]
    simple = (*segments[:-1], *segments[-1])
    better = within(layers, least + layers.carry[0])
    return min(simple, better, key=lambda schedule: work_of(schedule, layers))


def layers_in(schedule: Schedule) -> Iterator[int]:
    """The layers that a schedule reverses, in the order of the chain."""
    return (layer for layer, _ in _with_depths(schedule))


def runs(schedule: Schedule) -> list[int]:
    """The number of runs of each layer: one when it is taped, and one for each schedule that it is
    advanced in."""
    return [depth + 1 for _, depth in _with_depths(schedule)]


def _with_depths(schedule: Schedule) -> Iterator[tuple[int, int]]:
    """The layers, each with the number of schedules around it but the outermost."""
    rest: list[tuple[int | Schedule, int]] = [(schedule, -1)]
    while rest:
        entry, depth = rest.pop()
        if isinstance(entry, int):
            yield entry, depth
        else:
            rest += [(inner, depth + 1) for inner in reversed(entry)]


def work_of(schedule: Schedule, layers: Layers) -> int:
    """The total work of all runs."""
    return sum(u * n for u, n in zip(layers.work, runs(schedule), strict=True))


def least_memory(layers: Layers) -> int:
    """The least memory of any schedule, which advances to every layer from the initial carry, and
    tapes it alone. The carries on the way are not kept."""
    return layers.carry[0] + max(
        r + (a if i else 0)
        for i, (a, r) in enumerate(zip(layers.carry, layers.residuals, strict=True))
    )


def _one_by_one(count: int) -> Schedule:
    schedule: Schedule = ()
    for layer in range(count):
        schedule = (schedule, layer) if schedule else (layer,)
    return schedule


def _rounded(layers: Layers, memory: int) -> tuple[Costs, int]:
    """Sizes in slots, and the number of slots with which rounding loses the least."""
    count = len(layers.work)
    holds = [layers.hold(i) for i in range(count)]
    sizes = [*layers.carry, *holds]
    most = min(MOST_SLOTS, max(_most_slots(count), FEWEST_SLOTS))

    def in_slots(size: int, slots: int) -> int:
        return -(-size * slots // memory) if memory else (slots + 1) * (size > 0)

    def lost(slots: int) -> float:
        return sum(in_slots(size, slots) for size in sizes) / slots

    slots = min(range(most // 2, most + 1), key=lost)
    keep, tape, hold = (
        tuple(in_slots(size, slots) for size in group)
        for group in (layers.carry, layers.residuals, holds)
    )
    return Costs(layers.work, keep, keep, tape, hold), slots


def _least_for_one_advance(layers: Layers) -> tuple[int, list[Schedule]]:
    """The least bytes, in addition to the initial carry, with which no layer is advanced more than
    once, and the segments of that schedule."""
    low, high = -1, sum(map(layers.hold, range(len(layers.work))))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _segments(layers, middle) else (middle, high)
    return high, _segments(layers, high)


def _segments(layers: Layers, memory: int) -> list[Schedule]:
    """Segments, each of which fits as a whole when it is taped while the carries that enter the
    earlier ones are held; none if there are no such segments. `held[k]` is the least that these
    carries take when a segment starts at layer k."""
    count = len(layers.work)
    held: list[int | None] = [0, *[None] * count]
    came_from = [0] * (count + 1)
    for start in range(count):
        before = held[start]
        if before is None:
            continue
        taped = before
        for stop in range(start + 1, count + 1):
            if taped + layers.residuals[stop - 1] > memory:
                break
            taped += layers.hold(stop - 1)
            carries = before + (layers.carry[stop] if stop < count else 0)
            known = held[stop]
            if known is None or carries < known:
                held[stop], came_from[stop] = carries, start
    if held[count] is None:
        return []
    segments: list[Schedule] = []
    stop = count
    while stop:
        segments.insert(0, tuple(range(came_from[stop], stop)))
        stop = came_from[stop]
    return segments
