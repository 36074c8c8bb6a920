"""The schedule apart from JAX, on one level and on two: an abstract machine runs the actions, and
meets the optimum."""

import re
from fractions import Fraction
from functools import cache, partial
from itertools import takewhile
from math import comb
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.machine import calls_of, counts_of, optimal_advances, plans, run_abstract_machine

from jax_revolve import Disk, HostMemory, Plan, plan
from jax_revolve.schedule import binomial, multistage
from jax_revolve.schedule.actions import (
    Advance,
    Store,
    Tape,
    revolve,
)
from jax_revolve.schedule.cost import Sizes
from jax_revolve.schedule.two_level import AnyPlan, TwoLevelPlan
from jax_revolve.typing import Report

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


@given(plans)
@settings(max_examples=100)
def test_any_plan_runs_as_it_says(p: AnyPlan) -> None:
    if isinstance(p, TwoLevelPlan):
        assert counts_of(p) == (p.advances, p.writes, p.reads)
        assert (p.writes, p.reads) == (len(p.stores), len(p.moves))
        assert p.tail < max(p.length, 1)
    else:
        assert counts_of(p) == (p.advances, 0, 0)


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


# On two levels

Cost = tuple[int, int, int]
"""Advances and transfers, in quarters of a step, and the writes and the reads among them. The least
is the optimum."""

LONGEST = 150


@cache
def segments(slots: int, transfer: int, longest: int) -> list[Cost]:
    """T(n): a segment whose carry has just been read, and can be again."""
    found = [(0, 0, 0)]
    for n in range(1, longest + 1):
        again = [
            (4 * (i + optimal_advances(n - i, slots)) + transfer + found[i][0], 0, found[i][2] + 1)
            for i in range(1, n)
        ]
        found.append(min([(4 * optimal_advances(n, slots), 0, 0), *again]))
    return found


def optimum(slots: int, transfer: int, longest: int, most: int | None) -> list[Cost]:
    """D(n), with so many writes at most."""
    found: list[Cost] = [(4 * optimal_advances(n, slots), 0, 0) for n in range(longest + 1)]
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


@pytest.mark.parametrize(
    ("slots", "transfer", "most"),
    [
        *((1, 5, None), (2, 0.25, None), (3, 40, None), (5, 0.5, None), (10, 0, None)),
        *((10, 5, None), (1, 0, 1), (1, 0.25, 5), (2, 0.5, 2), (4, 1.25, 5)),
    ],
)
def test_plans_meet_the_recurrence(slots: int, transfer: float, most: int | None) -> None:
    longest = 40 if most else LONGEST
    expected = optimum(slots, int(4 * transfer), longest + 1, most)
    for length in range(longest + 1):
        p = TwoLevelPlan(length, slots, 1, HostMemory(checkpoints=most, transfer=transfer))
        cost = 4 * (p.advances + transfer * (p.writes + p.reads))
        assert (cost, p.writes, p.reads) == expected[p.scheduled_blocks]
        if most or length % 11 == 0 or length < 20:
            assert counts_of(p) == (p.advances, p.writes, p.reads)


def test_nothing_in_the_storage() -> None:
    for storage in (HostMemory(checkpoints=1, transfer=1e300), Disk(".", transfer=1e6)):
        p = plan(100, 5, storage=storage)
        assert (p.stores, p.tail, p.moves) == ((), 0, ())
        assert f"5 checkpoints and none in {storage}: 420 evaluations" in str(p)
        assert list(p) == list(plan(100, 5))
        assert (p.evaluations, p.repetitions) == (plan(100, 5).evaluations, 4)
    assert plan(100, "all", storage=HostMemory()).writes == 0
    assert list(plan(0, storage=HostMemory())) == []


def test_values() -> None:
    p = plan(1000, 10, storage=HostMemory())
    assert p == TwoLevelPlan(1000, 10, 1, HostMemory()) != Plan(1000, 10)
    assert {p: 1}[plan(1000, 10, storage=HostMemory(transfer=5))] == 1
    assert (p.advances, p.writes, p.reads) == counts_of(p) == (1905, 85, 85)
    assert (p.stores, p.tail) == (tuple(range(0, 935, 11)), 935)
    assert p.moves == tuple((i, 11 * i, 11 * i + 11) for i in reversed(range(85)))
    assert p.storage_bytes(8) == 85 * 8
    assert p.memory(1000, 10) == Plan(1000, 10).memory(1000, 10)
    assert str(p).startswith("1000 steps, 10 checkpoints and 85 more in host memory, read once: ")
    on_disk = plan(60, 1, storage=Disk(Path("x"), checkpoints=3, transfer=0.25))
    assert f"3 more in the directory {Path('x').resolve()}, read 15 times in all" in str(on_disk)


def test_a_storage_limits_its_bytes() -> None:
    """The budget of the plan counts the device alone."""
    sizes: dict[str, Any] = {"state_bytes": 1000, "residual_bytes": 1000}
    storage = HostMemory(memory="20.9 kB")
    p = plan(1000, memory="12kB", storage=storage, **sizes)
    assert p.memory(1000, 1000) <= 12_000
    assert p == TwoLevelPlan(1000, p.checkpoints, p.block_size, HostMemory(checkpoints=20))
    assert 0 < p.storage_bytes(1000) <= 20_000
    assert p.evaluations < plan(1000, memory="12kB", **sizes).evaluations
    with_limit = partial(plan, 1000, 10, state_bytes=1000)
    assert with_limit(storage=storage).storage == HostMemory(checkpoints=20, transfer=5.0)
    both = HostMemory(checkpoints=7, memory=20_000)
    assert with_limit(storage=both).storage == HostMemory(checkpoints=7, transfer=5.0)
    assert with_limit(storage=storage, state_bytes=0).storage == HostMemory(transfer=5.0)
    with pytest.raises(TypeError, match=r"^state_bytes must be an int >= 0 where memory is given"):
        plan(1000, 10, storage=storage)
    with pytest.raises(ValueError, match=r"^memory of the storage must be at least 30000 bytes"):
        plan(1000, 10, storage=storage, state_bytes=30_000)


def test_all_checkpoints_in_the_memory_of_the_host() -> None:
    p = plan(1000, 0, storage=HostMemory(checkpoints=30))
    assert p == Plan(1000, 30, 1, HostMemory())
    assert list(p) == list(plan(1000, 30))
    assert p.memory(1000, 10) == 10 + 1000
    assert p.storage_bytes(1000) == 30_000
    assert "30 checkpoints in host memory: 3475 evaluations" in str(p)
    assert plan(1000, 0, storage=HostMemory()).checkpoints == plan(1000).checkpoints
    assert plan(1000, 0, storage=HostMemory(memory=30_999), state_bytes=1000) == p


def test_long_loops() -> None:
    """The relaxation that bounds the cost from below is met within a few steps."""
    for length, slots, transfer in [(10**6, 30, 5), (10**6, 1, 5), (10**9, 50, 1000)]:
        p = TwoLevelPlan(length, slots, 1, HostMemory(transfer=transfer))
        total = p.advances + transfer * (p.writes + p.reads)
        bound = multistage.LowerBound(length, slots, Fraction(transfer))
        least = min(bound(p.writes + i) for i in (-2, -1, 0, 1, 2))
        assert 0 <= total * bound.unit - least <= 2 * transfer * bound.unit
    p = TwoLevelPlan(10**6, 3, 1, HostMemory(transfer=0))
    assert calls_of(lambda: (p.stores, p.parts)) < 5000  # and not one for each of a million moves
    assert len(p.stores) == p.writes > 10**5


def test_report() -> None:
    sizes = Sizes(100, 100, 100, 100)
    report = Report(plan(1000, 10, storage=HostMemory()), sizes, {}, is_while=False)
    text = str(report)
    assert re.search(r"in the storage +8.5 kB  85 checkpoints in host memory", text)
    chosen = next(line for line in text.splitlines() if "<- chosen" in line)
    assert chosen.split()[-4:-2] == ["85", "85"]
    assert str(report.plan.evaluations) in chosen
    assert "writes" not in str(Report(plan(1000, 10), sizes, {}, is_while=False))
    alike = [TwoLevelPlan(9, 3, 1, HostMemory(transfer=steps)) for steps in (1e9, 2e9)]
    for ordered in (alike, alike[::-1]):  # in the same order in every process
        measured: Any = dict.fromkeys(ordered)
        tied = Report(ordered[0], sizes, {}, is_while=False, measured=measured)
        assert [p for p in tied.choices if p in alike] == ordered
