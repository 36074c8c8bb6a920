"""The schedule apart from JAX, on one level and on two: an abstract machine runs the actions, and
meets the optimum."""

import re
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
from jax_revolve.schedule import binomial
from jax_revolve.schedule.actions import (
    Advance,
    Store,
    Tape,
    revolve,
)
from jax_revolve.schedule.cost import Sizes
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
def test_any_plan_runs_as_it_says(p: Plan) -> None:
    assert counts_of(p) == (p.advances, p.writes, p.reads)
    assert len(p.stores) == p.writes
    assert p.tail <= p.length


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


# With segments whose carries are in a storage

LONGEST = 150


@cache
def reversed_from_the_storage(slots: int, transfer: int, longest: int) -> list[int]:
    """Quarters of a step to reverse n blocks whose carry has just been read, and can be again."""
    found = [0]
    for n in range(1, longest + 1):
        again = [
            4 * (i + optimal_advances(n - i, slots)) + transfer + found[i] for i in range(1, n)
        ]
        found.append(min([4 * optimal_advances(n, slots), *again]))
    return found


def optimum(slots: int, transfer: int, longest: int) -> list[int]:
    """The least quarters of a step, transfers included, of any schedule that writes each carry at
    most once. It may read one several times, and segments may have different lengths."""
    found = [4 * optimal_advances(n, slots) for n in range(longest + 1)]
    below = reversed_from_the_storage(slots, transfer, longest)
    for n in range(2, longest + 1):
        costs = (2 * transfer + 4 * j + found[n - j] + below[j] for j in range(1, n))
        found[n] = min(found[n], *costs)
    return found


def best_segments(slots: int, transfer: int, blocks: int, most: int | None) -> int:
    """The least quarters of a step with equal segments in equal parts."""
    cost = lambda n: 4 * optimal_advances(n, slots)  # noqa: E731
    costs = [cost(blocks)]
    for count in range(1, min(most or blocks, blocks - 1) + 1):
        for parts in range(1, (blocks - 1) // count + 1 if most else 2):
            for size in range(1, (blocks - 1) // (count * parts) + 1):
                advanced = 2 * size * parts * (parts + 1) + parts * cost(size)
                of_segment = advanced + (1 + parts) * transfer
                costs.append(count * of_segment + cost(blocks - count * parts * size))
    return min(costs)


@pytest.mark.parametrize(
    ("slots", "transfer", "most", "price"),
    [
        *((1, 5, None, 1.05), (2, 0.25, None, 1.03), (3, 40, None, 1.01), (5, 0.5, None, 1.0)),
        *((10, 0, None, 1.0), (10, 5, None, 1.0)),
        *((1, 0, 1, None), (1, 0.25, 5, None), (2, 0.5, 2, None), (4, 1.25, 5, None)),
    ],
)
def test_segments(slots: int, transfer: float, most: int | None, price: float | None) -> None:
    """They cost about as much as the best equal ones, and at most the `price` of the optimum."""
    longest, in_quarters = LONGEST if price == 1 else 60, int(4 * transfer)
    expected = optimum(slots, in_quarters, longest + 1) if price else []
    storage = HostMemory(checkpoints=most, transfer=transfer)
    for length in range(longest + 1):
        p = plan(length, slots, storage=storage)
        cost = 4 * (p.advances + transfer * (p.writes + p.reads))
        if price:
            assert length + cost / 4 <= price * (length + expected[p.scheduled_blocks] / 4)
        if length % 7 == 0 or length < 20:
            best = best_segments(slots, in_quarters, p.scheduled_blocks, most)
            assert best <= cost <= best + 0.015 * (4 * length + best)
            assert counts_of(p) == (p.advances, p.writes, p.reads)


def test_nothing_in_the_storage() -> None:
    for storage in (HostMemory(checkpoints=1, transfer=1e300), Disk(".", transfer=1e6)):
        p = plan(100, 5, storage=storage)
        assert p == Plan(100, 5)
        assert (p.stores, p.tail) == ((), 0)
        assert list(p) == list(plan(100, 5))
        assert (p.evaluations, p.repetitions) == (plan(100, 5).evaluations, 4)
    assert plan(100, "all", storage=HostMemory()).writes == 0
    assert list(plan(0, storage=HostMemory())) == []


def test_values() -> None:
    p = plan(1000, 10, storage=HostMemory())
    assert p == Plan(1000, 10, 1, HostMemory(transfer=5), segments=85, segment=11)
    assert {p: 1}[plan(1000, 10, storage=HostMemory(transfer=5))] == 1
    assert (p.advances, p.writes, p.reads) == counts_of(p) == (1905, 85, 85)
    assert (p.stores, p.tail) == (tuple(range(0, 935, 11)), 935)
    assert p.storage_bytes(8) == 85 * 8
    assert p.memory(1000, 10) == Plan(1000, 10).memory(1000, 10)
    assert str(p).startswith("1000 steps, 10 checkpoints and 85 more in host memory, read once: ")
    on_disk = plan(60, 1, storage=Disk(Path("x"), checkpoints=3, transfer=0.25))
    assert f"3 more in the directory {Path('x').resolve()}, read 3 times each" in str(on_disk)


def test_a_storage_limits_its_bytes() -> None:
    """The budget of the plan counts the device alone."""
    sizes: dict[str, Any] = {"state_bytes": 1000, "residual_bytes": 1000}
    storage = HostMemory(memory="20.9 kB")
    p = plan(1000, memory="12kB", storage=storage, **sizes)
    assert p.memory(1000, 1000) <= 12_000
    assert p.storage == HostMemory(checkpoints=20, transfer=5.0)
    assert 0 < p.segments <= 20
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
    for length, slots, transfer in [(10**6, 30, 5), (10**9, 50, 1000), (10**7, 3, 0)]:
        make = partial(plan, length, slots, storage=HostMemory(transfer=transfer))
        assert calls_of(make) < 5_000
    assert plan(10**6, 3, storage=HostMemory(transfer=0)).writes > 10**5


def test_report() -> None:
    sizes = Sizes(100, 100, 100, 100)
    report = Report(plan(1000, 10, storage=HostMemory()), sizes, {}, is_while=False)
    text = str(report)
    assert re.search(r"in the storage +8.5 kB  85 checkpoints in host memory", text)
    chosen = next(line for line in text.splitlines() if "<- chosen" in line)
    assert chosen.split()[-4:-2] == ["85", "85"]
    assert str(report.plan.evaluations) in chosen
    assert "writes" not in str(Report(plan(1000, 10), sizes, {}, is_while=False))
    alike = [Plan(9, 2), Plan(9, 1, 2)]  # in memory and evaluations
    tied = Report(alike[1], sizes, {}, is_while=False)
    assert [p for p in tied.choices if p in alike] == alike  # in the same order in every process
