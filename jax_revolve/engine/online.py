"""The forward sweep of a while loop, whose number of steps is unknown.

It stores checkpoints according to `schedule.online`: wherever the loop stops, they are where the
reverse sweep wants them, or close. A new checkpoint takes the slot of the one that is dropped, so
the slots are not in the order of the positions, and `Held.slot_index` tells the slot of each.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve.engine.placement import Placement, Stack
from jax_revolve.engine.reports import Reports
from jax_revolve.engine.slots import Held, empty, keep
from jax_revolve.engine.split import integers
from jax_revolve.progress.listener import FORWARD
from jax_revolve.schedule.two_level import AnyPlan, TwoLevelPlan
from jax_revolve.step.examples import any_example
from jax_revolve.step.loop import pick, substitute
from jax_revolve.step.steps import Steps
from jax_revolve.storage.stores import in_storage, put

_Progress = tuple[jax.Array, jax.Array, list[Any]]
"""Numbers, of which the first two are the step to run next and the step to store or stop before;
whether each example goes on; and the carry. On CPU, numbers that are not in one array would each
take kernels of their own, which last as long as a light step."""

_Place = Callable[[jax.Array, Any], tuple[jax.Array, jax.Array, Any]]
"""From the numbers and other arrays, at a step that is stored: the slot to store into, the numbers
with the next step to store before, and the other arrays."""


def run_forward_online(steps: Steps, plan: AnyPlan) -> tuple[list[Any], Held]:
    """The final carry, and the checkpoints."""
    loop, restart = steps.loop, steps.restart
    consts, init, _ = steps.operands
    reports = Reports(loop, FORWARD, None)
    numbers, arrays, place = _placing(plan)

    def go_on(progress: _Progress, stop: Any) -> jax.Array:
        numbers, going, _ = progress
        return (numbers[0] < stop) & any_example(going)

    def step(progress: _Progress) -> _Progress:
        numbers, _, carry = progress
        reports.before_step(numbers[0])
        carry, _ = steps.step(carry, numbers[0])
        one = np.eye(1, numbers.size, dtype=np.int32)[0]
        return numbers + one, loop.holds(consts, carry), carry

    def store_and_advance(state: tuple[_Progress, Any, Any]) -> tuple[_Progress, Any, Any]:
        (numbers, going, carry), kept, arrays = state
        slot, numbers, arrays = place(numbers, arrays)
        stored = pick(carry, restart)
        if isinstance(plan, TwoLevelPlan):
            kept = put(plan.storage, kept, stored, slot)
        else:
            kept, stored = keep(kept, stored, slot)
        progress = (numbers, going, substitute(carry, restart, stored))
        if plan.block_size == 1 and plan.stores_every_block(is_while=True):
            return step(progress), kept, arrays
        return lax.while_loop(lambda p: go_on(p, p[0][1]), step, progress), kept, arrays

    kept = _empty(plan, pick(init, restart))
    progress = (reports.begin(numbers), loop.holds(consts, init), init)
    (numbers, _, carry), kept, arrays = lax.while_loop(
        lambda state: go_on(state[0], plan.length), store_and_advance, (progress, kept, arrays)
    )
    reports.end(numbers[0])
    if isinstance(plan, TwoLevelPlan):
        return carry, Held([], stores=kept, steps=numbers[0])
    held = Held(kept, steps=numbers[0])
    if plan.stores_every_block(is_while=True):
        return carry, held
    stack = Stack(arrays[0], arrays[1], numbers)
    placed = {"positions": stack.positions, "slot_index": stack.slot_index, "top": stack.top}
    return carry, held._replace(**placed)


def _empty(plan: AnyPlan, checkpoint: list[Any]) -> list[Any]:
    """Room for the checkpoints."""
    if isinstance(plan, TwoLevelPlan):
        return in_storage(plan.storage, checkpoint, len(plan.stores) + 1)
    every = plan.stores_every_block(is_while=True)
    return empty(plan.blocks if every else plan.checkpoints, checkpoint, plan)


def _placing(plan: AnyPlan) -> tuple[jax.Array, Any, _Place]:
    """The numbers and other arrays at the start, and how checkpoints are placed."""
    size = plan.block_size
    if isinstance(plan, TwoLevelPlan):
        # Where a loop that reaches its bound stores, and the start of the tail, because the loop
        # may stop in any part.
        stops = [*(size * block for block in [*plan.stores[1:], plan.tail]), plan.length]

        def in_storage(numbers: jax.Array, arrays: Any) -> tuple[jax.Array, jax.Array, Any]:
            step, _, number = numbers
            stop = jnp.asarray(stops, jnp.int32)[number]
            return number, jnp.stack([step, stop, number + 1]), arrays

        return integers([0, 0, 0]), (), in_storage
    if plan.stores_every_block(is_while=True):

        def in_order(numbers: jax.Array, arrays: Any) -> tuple[jax.Array, jax.Array, Any]:
            step = numbers[0]
            # The last block may reach beyond the bound.
            stop = step + jnp.minimum(size, plan.length - step)
            return lax.div(step, jnp.int32(size)), jnp.stack([step, stop]), arrays

        return integers([0, 0]), (), in_order

    def first_step(block: Any) -> Any:
        """Or the bound: the product of a position beyond it may overflow."""
        return jnp.where(block < plan.blocks, size * block, plan.length)

    placement = Placement(plan.checkpoints, plan.blocks, size, first_step)

    def in_slots(numbers: jax.Array, arrays: Any) -> tuple[jax.Array, jax.Array, Any]:
        rows, seen, numbers = stack = placement.store(Stack(arrays[0], arrays[1], numbers))
        return stack.slot, numbers, (rows, seen)

    rows, seen, numbers = placement.begin()
    return numbers, (rows, seen), in_slots
