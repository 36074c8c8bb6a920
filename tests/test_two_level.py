"""Checkpoints on two levels: an abstract machine runs the schedule, and meets the recurrence."""

import re
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_schedule import calls_of, optimal_advances, run_abstract_machine

from jax_revolve import Disk, HostMemory, Plan, Report, plan
from jax_revolve.schedule import multistage
from jax_revolve.schedule.cost import Sizes
from jax_revolve.schedule.two_level import TwoLevelPlan

Cost = tuple[int, int, int]
"""Advances and transfers, in quarters of a step, and the writes and the reads among them. The least
is the optimum."""

LONGEST = 150

plans = st.builds(
    TwoLevelPlan,
    st.integers(0, 1000),
    st.integers(1, 40),
    st.integers(1, 5),
    st.builds(HostMemory, checkpoints=st.none() | st.integers(1, 60), transfer=st.floats(0, 60)),
)


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


def run_and_count(p: TwoLevelPlan) -> tuple[int, int, int]:
    """Advances, writes and reads, found by running the schedule."""
    room = p.storage.checkpoints or p.length
    ran = run_abstract_machine(p, p.length, p.checkpoints, p.block_size, room)
    assert max(ran.advanced, default=0) == p.repetitions
    return sum(ran.advanced), ran.writes, ran.reads


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
            assert run_and_count(p) == (p.advances, p.writes, p.reads)


@given(plans)
@settings(max_examples=50)
def test_any_plan_runs_as_it_says(p: TwoLevelPlan) -> None:
    assert run_and_count(p) == (p.advances, p.writes, p.reads)
    assert (p.writes, p.reads) == (len(p.stores), len(p.moves))
    assert p.tail < max(p.length, 1)


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
    assert (p.advances, p.writes, p.reads) == run_and_count(p) == (1905, 85, 85)
    assert (p.stores, p.tail) == (tuple(range(0, 935, 11)), 935)
    assert p.moves == tuple((i, 11 * i, 11 * i + 11) for i in reversed(range(85)))
    assert p.storage_bytes(8) == 85 * 8
    assert p.memory(1000, 10) == Plan(1000, 10).memory(1000, 10)
    assert str(p).startswith("1000 steps, 10 checkpoints and 85 more in host memory, read once: ")
    on_disk = plan(60, 1, storage=Disk(Path("x"), checkpoints=3, transfer=0.25))
    assert "3 more in the directory x, read 15 times in all" in str(on_disk)


def test_a_storage_limits_its_bytes() -> None:
    """The budget of the plan is that of the device alone."""
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
    for unused in ({"repetitions": 2}, {"overhead": 1.5}):
        name, value = unused.popitem()
        with pytest.raises(ValueError, match=f"^{name} must be None where .* but is {value!r}"):
            plan(100, storage=storage, **{name: value})


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
