"""The forward sweep of a while loop, whose number of steps is unknown.

It stores checkpoints according to `schedule.online`: wherever the loop stops, they are at or near
the positions that suit the reverse sweep.

    while the condition holds:
        drop a checkpoint if all slots are taken, and store this carry in its slot   # placement
        while the condition holds and no checkpoint is due:
            run a step

A new checkpoint takes the slot of the dropped one, so slots are not in the order of positions:
`Saved.slot_index` maps one to the other. The outer loop's invariant: `numbers[0]` steps are done,
`carry` is the carry after them, and a checkpoint is due unless the loop is over.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve.engine.buffers import Saved, empty, keep
from jax_revolve.engine.nest import is_walked_back
from jax_revolve.engine.placement import Placement, Stack
from jax_revolve.engine.reports import Reports
from jax_revolve.engine.split import integers
from jax_revolve.progress.listener import FORWARD
from jax_revolve.schedule.plan import Plan
from jax_revolve.step.examples import any_example
from jax_revolve.step.loop import pick, substitute
from jax_revolve.step.steps import Steps
from jax_revolve.storage.stores import in_storage, put

_LoopState = tuple[jax.Array, jax.Array, Any, list[Any]]
"""Numbers, the first two being the next step and the step to store or stop before; whether each
example goes on; the steps of each example, if they are walked back; and the carry. The numbers are
one array, because on a CPU each scalar would be a kernel that takes as long as a light step."""


def run_forward_online(steps: Steps, plan: Plan) -> tuple[list[Any], Saved]:
    """The final carry, and the checkpoints."""
    loop, restart = steps.loop, steps.restart
    consts, init, _ = steps.operands
    storage = plan.storage_of_segments
    reports, every = Reports(loop, FORWARD, None), plan.stores_every_block(is_while=True)
    stack, place = _placing(plan)

    def go_on(numbers: jax.Array, going: jax.Array, stop: Any) -> jax.Array:
        return (numbers[0] < stop) & any_example(going)

    def step(running: _LoopState) -> _LoopState:
        numbers, going, example_steps, carry = running
        reports.before_step(numbers[0])
        carry, _ = steps.step(carry, numbers[0])
        one = np.eye(1, numbers.size, dtype=np.int32)[0]
        example_steps = None if example_steps is None else example_steps + going
        return numbers + one, loop.holds(consts, carry), example_steps, carry

    def store_and_advance(state: tuple[Stack, jax.Array, Any, list[Any], Any]) -> Any:
        stack, going, example_steps, carry, buffers = state
        stack, stored = place(stack), pick(carry, restart)
        if storage is not None:
            buffers = put(storage, buffers, stored, stack.slot)
        else:
            buffers, stored = keep(buffers, stored, stack.slot)
        running = (stack.numbers, going, example_steps, substitute(carry, restart, stored))
        if every and plan.block_size == 1:
            numbers, *running = step(running)
        else:
            before_stop = lambda p: go_on(p[0], p[1], p[0][1])  # noqa: E731
            numbers, *running = lax.while_loop(before_stop, step, running)
        return stack._replace(numbers=numbers), *running, buffers

    if storage is not None:
        buffers = in_storage(storage, steps.initial(), plan.segments + 1)
    else:
        buffers = empty(plan.blocks if every else plan.checkpoints, steps.initial(), plan)
    stack = stack._replace(numbers=reports.begin(stack.numbers))
    going = loop.holds(consts, init)
    is_walked = is_walked_back(loop, plan)
    none = jnp.zeros_like(going, jnp.int32) if is_walked else None
    stack, _, example_steps, carry, buffers = lax.while_loop(
        lambda state: go_on(state[0].numbers, state[1], plan.length),
        store_and_advance,
        (stack, going, none, init, buffers),
    )
    num_steps = stack.numbers[0]
    reports.end(num_steps)
    saved = Saved(
        buffers,
        steps=num_steps,
        example_steps=example_steps,
        end=pick(carry, restart) if is_walked else None,
    )
    if storage is not None:
        return carry, saved._replace(slots=[], storage=buffers)
    if every:
        return carry, saved
    positions, slot_index, top = stack.positions, stack.slot_index, stack.top
    return carry, saved._replace(positions=positions, slot_index=slot_index, top=top)


def _placing(plan: Plan) -> tuple[Stack, Callable[[Stack], Stack]]:
    """The stack at the start, and the function that updates it at a store: its numbers then give
    the slot to write and the step before which to store next."""
    size = plan.block_size
    if plan.segments or plan.stores_every_block(is_while=True):
        # Store wherever a loop that reaches its bound would, and at the start of the tail: the
        # loop may stop in any segment.
        span = size * max(plan.segment, 1)

        def in_order(stack: Stack) -> Stack:
            step, _, slot = stack.numbers
            slot += 1
            left = plan.length - step  # the last block may reach beyond the bound
            stop = step + jnp.minimum(span, left)
            if plan.segments:
                stop = jnp.where(slot < plan.segments, stop, plan.length)
            return stack._replace(numbers=jnp.stack([step, stop, slot]))

        return Stack((), (), integers([0, 0, -1])), in_order
    placement = Placement(plan.checkpoints, plan.length, size)
    return placement.begin(), placement.store
