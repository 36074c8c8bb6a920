"""Online placement on the device, against the same schedule in Python."""

import random
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jax_revolve.engine.placement import Placement, Stack
from jax_revolve.schedule import binomial, online

INT32 = jnp.dtype("int32")


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
