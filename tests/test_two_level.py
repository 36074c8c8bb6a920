"""Checkpoints on two levels: an abstract machine runs the schedule, and meets the recurrence."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_revolve import HostMemory, plan
from jax_revolve.schedule.actions import (
    Advance,
    Discard,
    Free,
    Load,
    Read,
    Store,
    Tape,
    Write,
)
from jax_revolve.schedule.multistage import Move
from jax_revolve.schedule.two_level import TwoLevelPlan

Cost = tuple[int, int, int]
"""Advances and transfers, in quarters of a step, and the writes and the reads among them. The least
is the optimum."""

SLOTS_AND_TRANSFERS = [
    *((1, 0), (1, 5), (1, 40), (2, 0.25), (2, 5), (3, 1.25), (3, 5), (3, 40)),
    *((5, 0.5), (5, 5), (10, 0), (10, 0.75), (10, 5), (30, 5)),
]
LONGEST = 300
LONGEST_LIMITED = 60

plans = st.builds(
    TwoLevelPlan,
    st.integers(0, 3000),
    st.integers(1, 40),
    st.integers(1, 5),
    st.builds(HostMemory, st.none() | st.integers(1, 60), st.floats(0, 60)),
)


@cache
def advances(slots: int) -> list[int]:
    """The dynamic programme for the device alone: t(n, s) for each n up to the longest."""
    if slots == 1:
        return [n * (n - 1) // 2 for n in range(LONGEST + 1)]
    fewer, found = advances(slots - 1), [0, 0]
    for n in range(2, LONGEST + 1):
        found.append(min(k + found[k] + fewer[n - k] for k in range(1, n)))
    return found


@cache
def segments(slots: int, transfer: int, longest: int) -> list[Cost]:
    """T(n): a segment whose carry has just been read, and can be again."""
    t, found = advances(slots), [(0, 0, 0)]
    for n in range(1, longest + 1):
        again = [
            (4 * (i + t[n - i]) + transfer + found[i][0], 0, found[i][2] + 1) for i in range(1, n)
        ]
        found.append(min([(4 * t[n], 0, 0), *again]))
    return found


def optimum(slots: int, transfer: int, longest: int, most: int | None) -> list[Cost]:
    """D(n), with so many writes at most."""
    found: list[Cost] = [(4 * t, 0, 0) for t in advances(slots)[: longest + 1]]
    if most is None:
        return with_another(slots, transfer, found, again=True)
    for _ in range(most):
        found = with_another(slots, transfer, found, again=False)
    return found


def with_another(slots: int, transfer: int, without: list[Cost], again: bool) -> list[Cost]:
    """The first checkpoint in the storage, and after it those that there are `without` it, or
    as many `again`."""
    below, found = segments(slots, transfer, len(without) - 1), list(without)
    after = found if again else without
    for n in range(2, len(without)):
        for j in range(1, n):
            cost = 2 * transfer + 4 * j + after[n - j][0] + below[j][0]
            if cost <= found[n][0]:
                (_, writes, reads), (_, _, more) = after[n - j], below[j]
                found[n] = min(found[n], (cost, writes + 1, reads + more + 1))
    return found


def cost(p: TwoLevelPlan) -> Cost:
    total = 4 * (p.advances + p.storage.transfer * (p.writes + p.reads))
    return int(total), p.writes, p.reads


def run_abstract_machine(p: TwoLevelPlan) -> tuple[int, int, int]:
    """Runs a schedule, checks every action and both limits, and counts advances, writes, reads."""
    slots: dict[int, int] = {}
    stored: dict[int, int] = {}
    current: int | None = 0
    still_to_tape = p.length
    counts = [0, 0, 0]
    for action in p:
        match action:
            case Store(slot, position):
                assert current == position
                assert slot == len(slots) < p.checkpoints
                slots[slot] = position
            case Load(slot, position):
                assert slots[slot] == position
                current = position
            case Free(slot):
                assert slots.pop(slot) == still_to_tape
            case Write(store, position):
                assert current == position
                assert still_to_tape == p.length
                assert store == len(stored) == counts[1]
                assert store < (p.storage.checkpoints or p.length)
                stored[store] = position
                counts[1] += 1
            case Read(store, position):
                assert stored[store] == position < still_to_tape
                assert store == len(stored) - 1
                assert not slots
                current = position
                counts[2] += 1
            case Discard(store):
                assert stored.pop(store) == still_to_tape
            case Advance(start, stop):
                assert current == start < stop < still_to_tape
                counts[0] += stop - start
                current = stop
            case Tape(start, stop):
                assert current == start
                assert stop == still_to_tape
                assert start == p.block * ((stop - 1) // p.block)
                still_to_tape, current = start, None
    assert still_to_tape == 0
    assert not slots
    assert not stored
    return counts[0], counts[1], counts[2]


@pytest.mark.parametrize(("slots", "transfer"), SLOTS_AND_TRANSFERS)
def test_plans_meet_the_recurrence(slots: int, transfer: float) -> None:
    expected = optimum(slots, int(4 * transfer), LONGEST, None)
    for length in range(LONGEST + 1):
        p = TwoLevelPlan(length, slots, 1, HostMemory(None, transfer))
        assert cost(p) == expected[length]
        if length % 11 == 0 or length < 30:
            assert run_abstract_machine(p) == (p.advances, p.writes, p.reads)


@pytest.mark.parametrize("most", [1, 2, 5])
@pytest.mark.parametrize(
    ("slots", "transfer"), [(1, 0), (1, 0.25), (1, 5), (2, 0.5), (2, 5), (4, 1.25)]
)
def test_limited_storage_meets_the_recurrence(slots: int, transfer: float, most: int) -> None:
    expected = optimum(slots, int(4 * transfer), LONGEST_LIMITED, most)
    for length in range(LONGEST_LIMITED + 1):
        p = TwoLevelPlan(length, slots, 1, HostMemory(most, transfer))
        assert cost(p) == expected[length]
        assert run_abstract_machine(p) == (p.advances, p.writes, p.reads)


@given(plans)
@settings(deadline=None)
def test_any_plan_runs_as_it_says(p: TwoLevelPlan) -> None:
    assert run_abstract_machine(p) == (p.advances, p.writes, p.reads)
    assert len(p.stores) == p.writes
    assert len(p.moves) == p.reads
    counts: dict[int, int] = {}
    for action in p:
        if isinstance(action, Advance):
            for step in range(action.start, action.stop):
                counts[step] = counts.get(step, 0) + 1
    assert max(counts.values(), default=0) == p.repetitions


@pytest.mark.parametrize("transfer", [1, 2, 3.5, 5])
def test_a_thousand_steps(transfer: float) -> None:
    p = plan(1000, 10, storage=HostMemory(transfer=transfer))
    assert (p.advances, p.writes, p.reads) == (1903, 85, 85)
    assert p.stores == tuple(range(0, 935, 11))
    assert p.tail == 935
    assert p.moves == tuple(Move(i, 11 * i, 11 * i + 11) for i in reversed(range(85)))
    assert run_abstract_machine(p) == (1903, 85, 85)
    assert plan(1000, 10).advances == 3636
