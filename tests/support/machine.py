"""An abstract machine that runs schedules, the optimum that they are to meet, and random plans."""

import sys
from collections.abc import Iterable
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

from hypothesis import strategies as st

from jax_revolve import HostMemory, Plan
from jax_revolve.schedule.actions import (
    Action,
    Advance,
    Discard,
    Free,
    Load,
    Read,
    Store,
    Tape,
    Write,
)
from jax_revolve.schedule.selection import in_segments


@cache
def optimal_advances(length: int, checkpoints: int) -> int:
    """The dynamic program: advance k steps, store, reverse the rest, then the first k."""
    if length <= 1:
        return 0
    if checkpoints == 1:
        return length * (length - 1) // 2
    return min(
        k + optimal_advances(k, checkpoints) + optimal_advances(length - k, checkpoints - 1)
        for k in range(1, length)
    )


class Ran(NamedTuple):
    """How often each step was advanced, and the writes and reads of a storage."""

    advanced: list[int]
    writes: int
    reads: int


def run_abstract_machine(
    actions: Iterable[Action],
    length: int,
    checkpoints: int,
    k: int = 1,
    room: int = 0,
    is_stack: bool = True,
) -> Ran:
    """Runs a schedule, and checks every action and the limits of the slots and the storage. If the
    slots are a stack, they are filled from the bottom."""
    slots, stored = dict[int, int](), dict[int, int]()
    current: int | None = 0
    still_to_tape, changes, reads, writes = length, [0] * (length + 1), 0, 0
    for action in actions:
        match action:
            case Store(slot, position):
                assert current == position
                assert slot < checkpoints
                assert slot == len(slots) if is_stack else slots.get(slot, position) == position
                slots[slot] = position
            case Load(slot, position):
                assert slots[slot] == position
                current = position
            case Free(slot):
                assert slots.pop(slot) == still_to_tape
            case Write(store, position):
                assert current == position
                assert still_to_tape == length
                assert store == len(stored) == writes < room
                stored[store] = position
                writes += 1
            case Read(store, position):
                assert stored[store] == position < still_to_tape
                assert store == len(stored) - 1
                assert not slots
                current = position
                reads += 1
            case Discard(store):
                assert stored.pop(store) == still_to_tape
            case Advance(start, stop):
                assert current == start < stop <= still_to_tape
                changes[start] += 1
                changes[stop] -= 1
                current = stop
            case Tape(start, stop):
                assert current == start
                assert stop == still_to_tape
                assert 0 < stop - start <= k
                still_to_tape, current = start, None
    assert still_to_tape == 0
    assert not slots
    assert not stored
    return Ran([*accumulate(changes)][:-1], writes, reads)


def counts_of(p: Plan) -> tuple[int, int, int]:
    """Advances, writes and reads, found by running the schedule."""
    ran = run_abstract_machine(p, p.length, p.checkpoints, p.block_size, p.segments, not p.levels)
    often = max(ran.advanced, default=0)
    assert often == p.repetitions or (p.levels and often < p.repetitions)
    return sum(ran.advanced), ran.writes, ran.reads


storages = st.builds(
    HostMemory,
    checkpoints=st.none() | st.integers(1, 60),
    transfer=st.sampled_from([0, 0.25, 1, 5]) | st.floats(0, 60),
)


plans = st.builds(Plan, st.integers(1, 400), st.integers(1, 30), st.integers(1, 5)) | st.builds(
    lambda *numbers, storage: in_segments(Plan(*numbers), storage),
    *(st.integers(0, 1000), st.integers(1, 40), st.integers(1, 5)),
    storage=storages,
)


def calls_of(run: Any) -> int:
    """The Python functions that are called: planning is nothing else."""
    calls = []
    sys.setprofile(lambda _, event, __: calls.append(None) if event == "call" else None)
    try:
        run()
    finally:
        sys.setprofile(None)
    return len(calls)
