"""Online placement: against the offline optimum, against Equinox, and on the device."""

import math
import random
from collections.abc import Iterator
from functools import cache, partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jax_revolve.engine.placement import Placement, Stack
from jax_revolve.schedule import binomial, online

LONGEST = 1500
CHECKPOINTS = (3, 4, 7, 12)
INT32 = jnp.dtype("int32")


def held_along(checkpoints: int, longest: int) -> Iterator[tuple[int, list[int]]]:
    """For every number of steps, the positions that a loop which stops there holds."""
    held = [0]
    upcoming = online.next_store(held, checkpoints)
    for steps in range(longest + 1):
        if steps > upcoming:
            held = online.store(held, checkpoints, upcoming)
            upcoming = online.next_store(held, checkpoints)
        yield steps, held


@cache
def excesses(checkpoints: int, longest: int = LONGEST, stride: int = 1) -> dict[int, float]:
    """How much more loops of so many steps take than the fewest evaluations if the value has to be
    complete before the reverse sweep starts, as a fraction."""
    counted = {
        steps: steps + online.reverse_evaluations(held, steps, checkpoints)
        for steps, held in held_along(checkpoints, longest)
        if steps % stride == 0 and steps
    }
    return {
        n: count / (n + binomial.advances(n + 1, checkpoints)) - 1 for n, count in counted.items()
    }


@pytest.mark.parametrize("checkpoints", [2, *CHECKPOINTS])
def test_exact_for_short_loops(checkpoints: int) -> None:
    found = excesses(checkpoints)
    assert not any(found[n] for n in range(1, math.comb(checkpoints + 2, 2) + 1))


@pytest.mark.parametrize("checkpoints", [1, 2, *CHECKPOINTS])
def test_longer_loops_are_near_the_optimum(checkpoints: int) -> None:
    """With three checkpoints no online schedule has less than one evaluation too many in 32."""
    almost = math.comb(checkpoints + 3, 3) - 4
    near = {1: 0, 2: 0.11, 3: 1 / 32}.get(checkpoints, 0.025)
    found = excesses(checkpoints)
    assert max((found[n] for n in found if n <= almost), default=0) <= near
    beyond = [found[n] for n in found if n > almost]
    assert sum(beyond) / len(beyond) <= 0.016
    assert max(beyond) <= max(0.06, near)
    assert max(excesses(40, 20000, stride=97).values()) <= 0.002


@pytest.mark.parametrize("checkpoints", [1, 2, *CHECKPOINTS])
def test_invariants(checkpoints: int) -> None:
    """No gap but the last is longer than the limit of the level, and the last at most 2 q."""
    for n, held in held_along(checkpoints, LONGEST if checkpoints > 1 else 50):
        if n < 200:  # that is what a loop that stops anywhere holds
            assert online.positions_held(n, checkpoints) == held
        assert held[0] == 0
        assert len(held) == min(max(n, 1), checkpoints)
        assert max(held) < max(n, 1)
        if checkpoints > 1:
            q = online.level(n, checkpoints)
            gaps = [stop - start for start, stop in pairwise(held)]
            limits = [binomial.beta(slots, q) for slots in range(checkpoints, 0, -1)]
            assert all(0 < g <= limit for g, limit in zip(gaps, limits, strict=False))
            assert n - held[-1] <= 2 * q


@pytest.mark.parametrize(("checkpoints", "level"), [(2, 5), (4, 1), (4, 3), (9, 2)])
def test_landmarks_are_the_offline_schedule(checkpoints: int, level: int) -> None:
    longest = binomial.beta(checkpoints, level + 1)
    assert online.level(longest - 1, checkpoints) == level
    assert online.level(longest, checkpoints) == level + 1
    # The last gap ends at the step that is taped first, which needs no checkpoint.
    stored = [*binomial.first_positions(longest, checkpoints), longest - 1]
    assert [0, *online.landmarks(level, checkpoints)] == stored


@pytest.mark.parametrize(("steps", "checkpoints", "most"), [(90, 12, 0.65), (2000, 10, 0.18)])
def test_stores_are_few(steps: int, checkpoints: int, most: float) -> None:
    """At level q, every 2 q steps, but for landmarks and the first checkpoints."""
    held, stores = [0], 0
    while (position := online.next_store(held, checkpoints)) < steps:
        held, stores = online.store(held, checkpoints, position), stores + 1
    assert stores <= most * steps


# The device


@pytest.mark.parametrize(
    ("checkpoints", "steps", "bound", "window"),
    [
        *((2, 9000, 9000, 2), (3, 3000, 2**31 - 2, 64)),
        *((12, 3000, 2**31 - 2, 2), (40, 3000, 3000, 4)),
    ],
)
@pytest.mark.usefixtures("compile_quickly")
def test_device_agrees_along_a_loop(checkpoints: int, steps: int, bound: int, window: int) -> None:
    """Whether all positions are looked at at once or a few at a time. Each has its own slot."""
    placement = Placement(checkpoints, bound, window=window)
    with jax.numpy_dtype_promotion("strict"):
        history = jax.jit(partial(placements, placement, steps))()
    assert all(x.dtype == INT32 for x in history)
    positions, slots, count, stores = (x.tolist() for x in history)
    held, expected = [0], [0]
    while (position := online.next_store(held, checkpoints)) < steps:
        held = online.store(held, checkpoints, position)
        expected.append(sum(held) % 2**31)
    assert positions[:count] == held
    assert sorted(slots) == list(range(checkpoints))
    assert stores[: len(expected)] == expected
    assert not any(stores[len(expected) :])


def placements(placement: Placement, steps: int) -> tuple[jax.Array, ...]:
    """The positions held by a loop of `steps` steps, their slots and number, and a checksum per
    store, which is 0 if the slot of the newest position is not the one that is told."""
    index = jnp.arange(placement.checkpoints, dtype=jnp.int32)

    def goes_on(state: tuple[Stack, jax.Array, jax.Array]) -> jax.Array:
        return state[0].numbers[1] < steps

    def store(state: tuple[Stack, jax.Array, jax.Array]) -> tuple[Stack, jax.Array, jax.Array]:
        stack, sums, number = state
        numbers = stack.numbers.at[0].set(stack.numbers[1])
        stack = placement.store(stack._replace(numbers=numbers))
        total = jnp.sum(jnp.where(index <= stack.top, stack.positions, 0), dtype=jnp.int32)
        is_told = stack.slot_index[stack.top] == stack.slot
        return stack, sums.at[number].set(jnp.where(is_told, total, 0)), number + 1

    state = (placement.begin(), jnp.zeros(steps, jnp.int32), jnp.int32(0))
    stack, sums, _ = lax.while_loop(goes_on, store, state)
    return stack.positions, stack.slot_index, stack.top + 1, sums


def stack_of(placement: Placement, held: list[int], position: int) -> Stack:
    """The stack that holds these positions, in the slots of their numbers, and stores next at
    `position`."""
    checkpoints, begun = placement.checkpoints, placement.begin()
    level = min(online.level(held[-1] + 3, checkpoints), len(placement.landmarks))
    passed = sum(mark <= held[-1] for mark in online.landmarks(level, checkpoints))

    def is_landmark(position: int) -> bool:
        return position in online.landmarks(online.level(position, checkpoints), checkpoints)

    rows = [[p, ~i if is_landmark(p) else i] for i, p in enumerate(held)]
    seen = rows[checkpoints - 1 - placement.window :]
    numbers = [position, position, 0, level - 1, passed, checkpoints, position]
    numbers.append(-is_landmark(position))
    return Stack(*(jnp.array(x, begun.rows.dtype) for x in (rows, seen, numbers)))


@pytest.mark.parametrize("checkpoints", [3, 60])
def test_device_does_not_overflow(checkpoints: int) -> None:
    """The longest loops that 32 bits can count, and positions all over them."""
    placement = Placement(checkpoints, online.NEVER)
    store = jax.jit(placement.store)
    draw, compared = random.Random(0), 0
    while compared < 100:
        newest = 2**31 - 4 - draw.choice([0, 1, 2, 3, draw.randrange(2**31 - 1000)])
        marks = online.landmarks(online.level(newest, checkpoints), checkpoints)
        choices = {*draw.sample(range(1, newest), checkpoints), *marks, newest - 1}
        choices = [p for p in choices if p < newest]
        held = [0, *sorted(draw.sample(choices, checkpoints - 2)), newest]
        position = online.next_store(held, checkpoints)
        try:
            dropped = online.dropped(held, checkpoints, position)
        except ValueError:  # nothing to drop: such positions are never held
            continue
        if position >= online.NEVER:
            continue
        compared += 1
        stack = store(stack_of(placement, held, position))
        after = [*held[:dropped], *held[dropped + 1 :], position]
        assert stack.positions.tolist() == after
        assert int(stack.slot) == dropped
        assert int(stack.numbers[1]) == min(online.next_store(after, checkpoints), online.NEVER)
        assert stack.numbers.dtype == stack.rows.dtype == INT32


def test_tables_for_few_checkpoints_end_before_the_longest_loops() -> None:
    """Beyond, the rule for two still names a step ahead, and a checkpoint to drop. A single one is
    never moved."""
    placement = Placement(2, 2**31 - 1)
    assert placement.landmarks.shape[0] == binomial.MOST_REPETITIONS_IN_TABLES
    for newest in [10**7, 2**30, 2**31 - 4]:
        stack = placement.store(stack_of(placement, [0, newest - 1], newest))
        assert stack.positions.tolist() == [0, newest]
        assert newest < int(stack.numbers[1]) <= online.NEVER
    assert online.next_store([0], 1) == online.NEVER
    alone = Placement(1, online.NEVER)
    stack = alone.store(alone.begin())
    assert (stack.numbers.dtype, int(stack.numbers[1])) == (INT32, online.NEVER)
    assert (stack.positions.tolist(), int(stack.top), int(stack.slot)) == ([0], 0, 0)
