"""Choosing a plan: blocks, what a plan is to keep to, budgets of memory, and what is asked for."""

from collections.abc import Sequence
from functools import cache, partial
from itertools import pairwise
from math import comb, isqrt
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.asked import for_bound, for_scan
from support.machine import calls_of, optimal_advances, run_abstract_machine

from jax_revolve import (
    Disk,
    HostMemory,
    Plan,
    bounded_while_loop,
    checkpointed_fori_loop,
    checkpointed_scan,
    plan,
)
from jax_revolve.schedule import cost, online
from jax_revolve.schedule.arguments import parse_bytes, readable
from jax_revolve.schedule.cost import Sizes
from jax_revolve.schedule.options import LARGEST_BOUND, LONGEST, Options
from jax_revolve.schedule.selection import TIE, quickest, trade_off

lengths = st.integers(0, 10**6)
short = st.integers(0, 64)
blocks = st.integers(1, 100)
few_bytes = st.integers(0, 12)


# The schedule in blocks


@pytest.mark.parametrize("checkpoints", [1, 2, 3, 8])
def test_schedule_in_blocks(checkpoints: int) -> None:
    """The machine checks every action, that all steps are taped in blocks, and the slots."""
    for length in (*range(13), 23, 40):
        for block_size in range(1, length + 1):
            p = Plan(length, checkpoints, block_size)
            expected = p.stride * optimal_advances(p.blocks + (block_size == 1), checkpoints)
            assert p.advances == expected == p.evaluations - length
            assert (p.blocks - 1) * block_size < length <= p.blocks * block_size
            last = length - (p.blocks - 1) * p.stride
            assert 0 < last <= block_size >= p.stride
            # The others cannot be shorter.
            assert p.blocks == 1 or length - (p.blocks - 1) * (p.stride - 1) > block_size
            ran = run_abstract_machine(p, length, checkpoints, block_size)
            assert sum(ran.advanced) == expected


def test_plan_in_blocks() -> None:
    p = plan(1000, 84, block_size=12)
    assert (p.blocks, p.repetitions, p.advances, p.evaluations) == (84, 1, 996, 1996)
    assert p.overhead == 0.996
    assert p.memory(1000, 10) == 84 * 1000 + 12 * 10 + 1000
    assert p.memory(1000, 10, 7) == 84 * 1000 + 12 * 10 + 7
    assert str(p) == (
        "1000 steps, blocks of at most 12 steps, 84 checkpoints: 1996 evaluations (1.00 extra "
        "forward passes, no step advanced more than once)"
    )


# What a plan is to keep to


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (plan(10, 5, block_size=99), Plan(10, 1, 10)),
        (plan(10, "all", block_size=3), Plan(10, 4, 3)),
        (plan(10, 99), Plan(10, 10, 1)),
        (plan(0, block_size=7), Plan(0, 1, 1)),
        (plan(10, repetitions=1, block_size=3), Plan(10, 3, 3)),
        (plan(10, repetitions=10**9), Plan(10, 1, 1)),
        (plan(10, memory=50, state_bytes=10, residual_bytes=10, block_size=3), Plan(10, 1, 3)),
        (plan(10, memory=10**9, state_bytes=10, residual_bytes=10), Plan(10, 1, 10)),
        (plan(0, memory=30, state_bytes=10, residual_bytes=10), Plan(0, 1, 1)),
        (plan(12345, block_size=7), plan(12345, repetitions=2, block_size=7)),
    ],
)
def test_plan(made: Plan, expected: Plan) -> None:
    assert made == expected


@given(lengths, st.integers(1, 10), blocks)
def test_fewest_checkpoints(length: int, repetitions: int, k: int) -> None:
    p = plan(length, repetitions=repetitions, block_size=k)
    assert p.repetitions <= repetitions
    if p.checkpoints > 1:
        assert plan(length, p.checkpoints - 1, block_size=k).repetitions > repetitions


def test_at_most_one_alternative() -> None:
    alternatives = {"checkpoints": 3, "repetitions": 2, "memory": "1kB"}
    for a, b in pairwise(alternatives.items()):
        both: dict[str, Any] = dict((a, b))
        with pytest.raises(ValueError, match="At most one of checkpoints, repetitions, ") as caught:
            plan(100, **both, state_bytes=1, residual_bytes=1)
        given = ", ".join(f"{name}={value!r}" for name, value in both.items())
        assert str(caught.value).endswith(f"these are: {given}.")


NO_BYTES = ["much", "", "GB", "1 XB", "-1", "1e3", "1.", "1 GB 2", "1_000", "nan", "1,5 kB"]
TEN: Any = partial(plan, length=10)
IN_BYTES = partial(TEN, memory=100, state_bytes=1, residual_bytes=1)
FIELDS = [partial(Plan, length=10, checkpoints=3)]
SCAN = partial(checkpointed_scan, lambda c, _: (c, None), 1.0, length=10)
WHILE: Any = partial(bounded_while_loop, jnp.isfinite, jnp.sin, 1.0, max_steps=10)
FORI = partial(checkpointed_fori_loop, 0, 3, lambda _, c: c, 0)


@pytest.mark.parametrize(
    ("callables", "name", "values", "of_wrong_types"),
    [
        ([TEN, *FIELDS], "length", [-1], [2.0, None]),
        ([TEN, *FIELDS], "block_size", [0], [2.0, True]),
        ([*FIELDS, SCAN, WHILE, FORI], "checkpoints", [0], [3.0, True]),
        (FIELDS, "storage", [], ["host"]),
        ([TEN, SCAN, WHILE], "storage", [], ["pinned_host", HostMemory, 3]),
        ([TEN], "repetitions", [0], [1.5, False]),
        ([IN_BYTES, SCAN, WHILE], "memory", [-1, *NO_BYTES], [1.5, True, {"device": 99}]),
        ([IN_BYTES], "state_bytes", [-1], [None, 1.0]),
        ([IN_BYTES], "residual_bytes", [-1], [None, True]),
        ([TEN], "levels", [(3, 3)], [3]),
        ([partial(SCAN, storage=Disk("/tmp"))], "checkpoints", [0], [False]),
        ([WHILE, FORI], "max_steps", [-1, 2**31], [2.0, True]),
        ([SCAN, WHILE, FORI], "progress", [], [3]),
        ([HostMemory, partial(Disk, ".")], "checkpoints", [0], [2.0, "all", True]),
        ([HostMemory, partial(Disk, ".")], "memory", [-1, "many"], [1.5]),
        ([HostMemory, partial(Disk, ".")], "transfer", [-1, float("inf")], ["5", True]),
        ([Disk], "directory", [], [None, 3, b"x"]),
    ],
)
def test_bad_argument(callables: Any, name: str, values: Any, of_wrong_types: Any) -> None:
    """It is named, with its value and what is allowed."""
    for call in callables:
        for wrong, error in ((values, ValueError), (of_wrong_types, TypeError)):
            for value in wrong:
                with pytest.raises(error, match=f"^{name} must (be|have) ") as caught:
                    call(**{name: value})
                assert f"is {value!r}" in str(caught.value)


def test_fields_of_a_plan() -> None:
    p = Plan(np.int32(10), np.int64(3), np.uint8(2))  # pyright: ignore[reportArgumentType]
    assert repr(p) == repr(Plan(10, 3, 2))


@given(st.integers(1, 60), st.integers(0, 8), blocks)
def test_the_longest_loop(checkpoints: int, repetitions: int, block_size: int) -> None:
    length = block_size * comb(checkpoints + repetitions, checkpoints) - (block_size == 1)
    assert Plan(length, checkpoints, block_size).repetitions == repetitions
    assert Plan(length + 1, checkpoints, block_size).repetitions == repetitions + 1


# Budgets of memory


@cache
def every_plan(length: int) -> list[Plan]:
    """Of a loop of so many steps: checkpoints beyond the number of blocks are of no use."""
    return [
        Plan(length, checkpoints, block_size)
        for block_size in range(1, max(length, 1) + 1)
        for checkpoints in range(1, max(-(-length // block_size), 1) + 1)
    ]


@given(short, few_bytes, few_bytes, st.integers(0, 400))
@example(7, 1, 1, 4)
@settings(max_examples=100)
def test_budget_is_kept_and_made_the_most_of(
    length: int, state: int, residuals: int, memory: int
) -> None:
    """The least is stated if it is not met."""
    least = 2 * state + residuals
    within = partial(plan, length, state_bytes=state, residual_bytes=residuals)
    p = within(memory=max(memory, least))
    assert p.memory(state, residuals) <= max(memory, least)
    fitting = [
        q.evaluations
        for q in every_plan(length)
        if (q.checkpoints + 1) * state + q.block_size * residuals <= max(memory, least)
    ]
    assert p.evaluations == min(fitting)
    if length and memory < least:
        with pytest.raises(ValueError, match=f"^memory must be at least {least} bytes here, but "):
            within(memory=memory)


# Loops that stop by themselves


@pytest.mark.parametrize("checkpoints", [1, 3, 8])
def test_evaluations_of_a_loop_that_stops_by_itself(checkpoints: int) -> None:
    """Once for the value, once taped, and what reversing each gap between checkpoints takes."""
    for length in (*range(12), 31, 79):
        for block_size in (1, 2, 7):
            p = Plan(length, checkpoints, block_size)
            gaps = pairwise([*online.positions_held(p.blocks, checkpoints), p.blocks])
            again = sum(
                optimal_advances(stop - start, checkpoints - i)
                for i, (start, stop) in enumerate(gaps)
            )
            counted = cost.evaluations(p, is_while=True)
            assert counted == 2 * length + block_size * again
    # The offline optimum stands for the online schedule of a long loop, which is near it.
    long, simulated = Plan(2001, 30), Plan(2000, 30)
    assert cost.evaluations(long, is_while=True) == long.evaluations
    counted = cost.evaluations(simulated, is_while=True)
    assert simulated.evaluations <= counted <= 1.01 * simulated.evaluations


# Predicted time


@st.composite
def all_sizes(draw: st.DrawFn) -> Sizes:
    """As a loop may have them: a tape of many steps keeps at least what that of one does."""
    checkpoint, alone = draw(st.integers(0, 10**6)), draw(st.integers(0, 10**6))
    return Sizes(
        checkpoint=checkpoint,
        residuals=alone + draw(st.sampled_from([0, 0, 1, 10**5])),
        alone=alone,
        carry=checkpoint + draw(st.sampled_from([0, 0, 8, 10**5])),
        weights=draw(st.sampled_from([0, 0, 10**5])),
        work=draw(st.none() | st.floats(0, 1e7)),
    )


HEAVY = Sizes(80_000, 240_000, 240_000, 80_000, work=10_000.0)
"""Touching the memory of a checkpoint takes as long as three evaluations."""


def time_and_memory(plans: Sequence[Plan], sizes: Sizes, online: bool) -> list[tuple[float, int]]:
    return [(cost.time(p, sizes, is_while=online), cost.memory(p, sizes)) for p in plans]


@given(st.integers(0, 30), all_sizes(), st.integers(0, 10**7), st.booleans())
@example(19, HEAVY, 800_000, False)
@example(30, HEAVY, 10**7, False)
@example(13, Sizes(80_000, 240_500, 240_000, 80_008), 800_000, True)
@settings(max_examples=50)
def test_quickest_has_the_least_predicted_time(
    length: int, sizes: Sizes, more: int, online: bool
) -> None:
    memory = cost.memory(Plan(length, 1), sizes) + more
    chosen = quickest(length, sizes, memory, is_while=online)
    assert isinstance(chosen, Plan)
    assert chosen.length == length
    assert cost.memory(chosen, sizes) <= memory
    candidates = time_and_memory(every_plan(length), sizes, online)
    least = min(time for time, taken in candidates if taken <= memory)
    tie = TIE if chosen.blocks <= 1 else 1  # a single block runs no step again
    assert cost.time(chosen, sizes, is_while=online) <= least * tie * (1 + 1e-12)


def test_blocks_of_a_loop_that_stops_by_itself_have_a_checkpoint_each() -> None:
    """Which one is the last is not known when it is run, so that one is not taped before."""
    chosen = quickest(6, Sizes(1, 1, 1, 1), 100, block_size=2, is_while=True)
    assert chosen == Plan(6, 3, 2)
    assert quickest(6, Sizes(1, 1, 1, 1), 100, block_size=2) == Plan(6, 2, 2)


@pytest.mark.parametrize("share", [0.95, 0.9, 0.7, 0.5, 0.4])
def test_few_blocks_use_all_of_the_memory(share: float) -> None:
    """What does not fit on one tape runs again, and no more."""
    sizes, memory = Sizes(10, 10, 10, 10), int(10_000 * share) + 50
    chosen = quickest(1000, sizes, memory)
    assert memory - 30 < cost.memory(chosen, sizes) <= memory
    assert chosen.evaluations - 2000 + chosen.block_size in range(3)
    assert chosen.block_size > 1000 * share - 5


def test_products_of_weights_need_room() -> None:
    sizes = Sizes(10, 10, 10, 10, weights=100)
    assert cost.memory(quickest(1000, sizes, 200), sizes) <= 200
    with pytest.raises(ValueError, match="10 for the residuals of one step, 100 for products of"):
        quickest(1000, sizes, 100)


@given(st.integers(0, 100), all_sizes(), st.booleans())
@example(57, Sizes(10**6, 240_000, 240_000, 1_100_000, 10**5, 10_000.0), False)
@example(19, HEAVY, False)
@settings(max_examples=50)
def test_trade_off(length: int, sizes: Sizes, online: bool) -> None:
    """More memory is less time."""
    plans = trade_off(length, sizes, is_while=online)
    assert len(set(plans)) == len(plans)
    assert cost.memory(plans[0], sizes) == cost.memory(Plan(length, 1), sizes)
    assert sizes.work is not None or plans[-1].evaluations <= (3 if online else 2) * length
    assert all(p.length == length for p in plans)
    found = time_and_memory(plans, sizes, online)
    for (time, memory), (next_time, next_memory) in pairwise(found):
        assert memory < next_memory
        assert time > next_time


@pytest.mark.parametrize(("work", "whole"), [(31_800.0, True), (10_300.0, False)])
def test_residuals_that_leave_the_caches_cost_more_than_a_light_step(
    work: float, whole: bool
) -> None:
    """With ample memory, a stencil of 20000 numbers in blocks of 250 steps took 29 ms, in blocks of
    59 steps 25: the profile took 24 MB to be as quick as a cache. A step that costs three times as
    much is not worth repeating."""
    sizes = Sizes(80_000, 80_000, 80_000, 80_000, work=work)
    chosen = quickest(1000, sizes, 10**9)
    assert chosen == Plan(1000, 1, 1000) if whole else cost.memory(chosen, sizes) < 8 * 10**6


# What is asked of a loop


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (for_scan(LONGEST, 3), Plan(LONGEST, 3)),
        (for_bound(LARGEST_BOUND, 3), Plan(LARGEST_BOUND, 3)),
        (for_scan(100, "all"), Plan(100, 100)),
        (for_scan(100, 5, 4), Plan(100, 5, 4)),
        (for_scan(100, None, 4), plan(100, repetitions=2, block_size=4)),
        (for_scan(100, None, 1000), Plan(100, 1, 100)),
        (for_bound(100, 5, 4), Plan(100, 5, 4)),
        (for_bound(100, None, 4), plan(100, repetitions=3, block_size=4)),
        (for_bound(None, 7, 4), Plan(LARGEST_BOUND, 7, 4)),
        (for_bound(None, None), None),
        (for_scan(100, None), Options()),
        (for_bound(100, None), Options()),
        (for_scan(100, None, 200, 2000), Options(None, 200, 2000)),
        (for_bound(100, 3, storage=HostMemory()), Options(3, storage=HostMemory())),
    ],
)
def test_plan_of_options(wanted: Any, expected: Plan | Options | None) -> None:
    assert wanted == expected


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (partial(for_bound, None, None, None, "1GB"), "memory must be None where max_steps is "),
        (partial(for_bound, None, "all"), "checkpoints must be an int where max_steps is None"),
        (partial(for_bound, 10, 0, None, "1GB"), "checkpoints must be None where memory is given"),
        (partial(for_scan, LONGEST + 1, 3), f"length must be at most {LONGEST}, but is "),
        (partial(TEN, levels=(10, 1)), "levels must be a sequence of ints >= 2"),
        (partial(TEN, levels=(5, 2), checkpoints=3), "At most one of .*levels"),
        (partial(TEN, levels=(5, 2), storage=HostMemory()), "levels must be None where"),
        (partial(Plan, 10, 3, levels=(3, 4)), "Plan must be made with"),
        (partial(Plan, 10, 3, levels=(3,)), "Plan must be made with"),
        (partial(WHILE, plan=TEN(levels=(5, 2))), "plan must have no levels for a while loop"),
        (
            partial(TEN, storage=HostMemory(), repetitions=2),
            "repetitions must be None where .* is 2",
        ),
        (partial(Plan, 10, 3, 1, Disk(".")), "Plan must be made with"),
        (partial(Plan, 10, 3, 1, HostMemory(memory=99), (), 2, 3), "Plan must be made with"),
        (partial(Plan, 10, 3, 1, None, (), 2, 3), "Plan must be made with"),
        (partial(Plan, 10, 3, 1, HostMemory(), (), 2, 6), "Plan must be made with"),
    ],
)
def test_what_does_not_go_together(ask: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        ask()


@given(st.integers(0, 300), all_sizes(), st.booleans())
@settings(max_examples=100)
def test_default_takes_no_more_memory_nor_time(length: int, sizes: Sizes, online: bool) -> None:
    """Than the fewest checkpoints with single steps, with few enough repetitions; but a scan may
    take the memory of two nested scans for a plan that advances no step more than once."""
    call = for_bound if online else for_scan
    assert isinstance(call(length), Options)
    single = plan(length, repetitions=3 if online else 2)
    chosen = call(length, sizes=sizes)
    assert chosen.length == length
    (time, memory), (least_time, most_memory) = time_and_memory([chosen, single], sizes, online)
    if memory > most_memory:
        assert not online
        assert chosen.repetitions <= 1
        assert memory <= cost.memory(Plan(length, isqrt(4 * length)), sizes)
    assert time <= least_time


@given(st.integers(0, 200), all_sizes(), st.integers(0, 10**8), st.none() | st.integers(1, 40))
@settings(max_examples=100)
def test_a_budget_of_memory(length: int, sizes: Sizes, more: int, block_size: int | None) -> None:
    k = min(block_size or 1, max(length, 1))
    memory = cost.memory(Plan(length, 1, k), sizes) + more
    for call in (for_scan, for_bound):
        assert isinstance(call(length, None, block_size, memory), Options)
        chosen = call(length, None, block_size, memory, sizes=sizes)
        assert cost.memory(chosen, sizes) <= memory
        assert block_size is None or chosen.block_size == k
        if memory > more:
            with pytest.raises(ValueError, match=f"^memory must be at least {memory - more} "):
                call(length, None, block_size, memory - more - 1, sizes=sizes)


def test_bytes() -> None:
    written = {0: 0, "7": 7, " 7 ": 7, "1.5 kB": 1500, "1.5KiB": 1536, "0.5 gib": 2**29}
    written |= {"1 TiB": 2**40, "1.001 kB": 1001, "9007199254740993": 2**53 + 1}
    written |= {f"1{'0' * 400} B": 10**400}  # more than a float
    for text, expected in written.items():
        assert parse_bytes(text) == expected
        assert isinstance(parse_bytes(text), int)
    shown = {0: "0 B", 1000: "1 kB", 12345: "12.3 kB", 999_499: "999 kB", 999_500: "1 MB"}
    shown |= {10**9: "1 GB", 999_600_000_000: "0.9996 TB", 65_540 * 10**9: "65.54 TB"}
    for size, expected in shown.items():
        assert readable(size) == expected
        assert parse_bytes(readable(size)) == pytest.approx(size, rel=0.00501)


@pytest.mark.parametrize(
    ("memory", "storage", "is_while"),
    [
        *((None, None, True), (10**8, None, False)),
        *((10**8, HostMemory(), True), (None, Disk("folder"), False)),
    ],
)
def test_planning_does_not_iterate_over_the_steps(
    memory: int | None, storage: Any, is_while: bool
) -> None:
    """It does over block sizes, of which there are about as many as the length has digits."""

    def calls(length: int) -> int:
        options, sizes = Options(None, None, memory, storage), Sizes(400, 500, 500, 400, work=500.0)
        return calls_of(lambda: options.resolve(length, sizes, is_while=is_while))

    assert calls(10**6) <= min(700_000, 4 * calls(10**4))
