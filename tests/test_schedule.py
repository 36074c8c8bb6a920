"""The schedule apart from JAX: an abstract machine runs the actions, and meets the optimum."""

import sys
from collections.abc import Iterable
from functools import cache
from itertools import accumulate, takewhile
from math import comb
from typing import Any, NamedTuple

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_revolve import Plan, plan
from jax_revolve.engine.split import SplitTable
from jax_revolve.schedule import binomial
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
    revolve,
)

ORACLES = [
    # length, checkpoints, repetitions, advances
    (100, 5, 4, 316),
    (1000, 10, 4, 3636),
    (1000, 30, 3, 2472),
    (10000, 20, 4, 37976),
    (10000, 100, 3, 24747),
    (1000000, 50, 5, 4658945),
    # Published logs of other programs
    (50, 7, 3, 105),
    (225, 15, 3, 522),
    (13465, 116, 3, 33374),
]


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
                assert start == k * ((stop - 1) // k)
                still_to_tape, current = start, None
    assert still_to_tape == 0
    assert not slots
    assert not stored
    return Ran([*accumulate(changes)][:-1], writes, reads)


def calls_of(run: Any) -> int:
    """The Python functions that are called: planning is nothing else."""
    calls = []
    sys.setprofile(lambda _, event, __: calls.append(None) if event == "call" else None)
    try:
        run()
    finally:
        sys.setprofile(None)
    return len(calls)


@pytest.mark.parametrize("checkpoints", [1, 2, 3, 7, 12])
def test_schedule_meets_the_dynamic_program(checkpoints: int) -> None:
    for length in range(161):
        expected = optimal_advances(length, checkpoints)
        assert binomial.advances(length, checkpoints) == expected
        ran = run_abstract_machine(revolve(length, checkpoints), length, checkpoints)
        assert sum(ran.advanced) == expected


@given(st.integers(1, 10**9), st.integers(1, 10**3))
def test_no_step_is_advanced_more_often_than_the_repetition_number(n: int, s: int) -> None:
    r = binomial.repetition(n, s)
    assert binomial.beta(s, r - 1) < n <= binomial.beta(s, r)


@given(st.integers(2, 10**9), st.integers(2, 10**3))
def test_any_split_is_optimal(steps: int, checkpoints: int) -> None:
    """Also where the dynamic program takes too long."""
    k = binomial.split(steps, checkpoints)
    assert 1 <= k < steps
    parts = binomial.advances(k, checkpoints) + binomial.advances(steps - k, checkpoints - 1)
    assert binomial.advances(steps, checkpoints) == k + parts


def test_first_positions_are_those_of_the_actions() -> None:
    cases = [(steps, s) for steps in range(2, 40) for s in range(1, steps + 2)]
    for steps, checkpoints in (*cases, (10**6, 1), (10**6, 300), (54321, 17)):
        before = takewhile(lambda a: not isinstance(a, Tape), revolve(steps, checkpoints))
        stored = [a.position for a in before if isinstance(a, Store)]
        assert binomial.first_positions(steps, checkpoints) == stored


@pytest.mark.parametrize(
    ("length", "checkpoints"), [(50, 1), (50, 2), (60, 7), (200, 30), (10**9, 12), (10**6, 3)]
)
def test_the_table_of_splits(length: int, checkpoints: int) -> None:
    """Of the splits that a schedule asks for, on the device."""
    table = SplitTable(Plan(length, checkpoints))
    repetitions = binomial.repetition(length + 1, checkpoints)
    for free in range(2, checkpoints + 1):
        longest = min(binomial.beta(free, repetitions), length + 1)
        asked = {2, 3, 5, longest // 3, longest // 2, longest - 1, longest}
        for steps in (n for n in asked if 2 <= n <= longest):
            got = int(table(jnp.int32(steps), jnp.int32(free)))
            assert got == binomial.split(steps, free)


@pytest.mark.parametrize(("length", "checkpoints", "repetitions", "advances"), ORACLES)
def test_oracles(length: int, checkpoints: int, repetitions: int, advances: int) -> None:
    """The end of the loop counts as one step: JAX wants the value before the derivative."""
    assert binomial.repetition(length, checkpoints) == repetitions
    assert binomial.advances(length, checkpoints) == advances
    p = plan(length - 1, checkpoints)
    assert (p.repetitions, p.advances) == (repetitions, advances)
    assert p.evaluations == p.length + advances
    assert p.overhead == advances / p.length


def test_a_billion_steps_answer_at_once() -> None:
    p = plan(10**9, 1000)
    assert (p.repetitions, p.evaluations) == (4, 10**9 + 4 * (10**9 + 1) - comb(1004, 3))
    assert plan(10**9, 1).advances == 10**9 * (10**9 + 1) // 2
    assert plan(10**9, "all").advances == 10**9
    actions = iter(p)
    assert next(actions) == Store(0, 0)
    assert isinstance(next(actions), Advance)


def test_plans_are_values() -> None:
    assert {plan(100, 5): 1}[plan(100, 5)] == 1
    assert str(plan(100, 5)) == (
        "100 steps, 5 checkpoints: 420 evaluations (3.20 extra forward passes, "
        "no step advanced more than 4 times)"
    )
    assert plan(7, "all") == plan(7, 7) == plan(7, 100)
    for length in range(4):
        p = plan(length, 5)
        assert (p.checkpoints, p.evaluations) == (max(length, 1), 2 * length)
        assert sum(isinstance(a, Tape) for a in p) == length
