"""The forward sweep of a while loop, whose number of steps is unknown.

It stores checkpoints according to `schedule.online`: wherever the loop stops, they are at or near
the positions that suit the reverse sweep.

    while the condition holds:
        drop a checkpoint if all slots are taken, and store this carry in its slot   # placement
        while the condition holds and no checkpoint is due:
            run a step

A new checkpoint takes the slot of the dropped one, so slots are not in the order of positions:
`slots.Placed.slot_index` maps one to the other. The outer loop's invariant: `numbers[0]` steps are
done, `carry` is the carry after them, and a checkpoint is due unless the loop is over.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve._compat.values import pick, substitute
from jax_revolve.engine.buffers import Saved
from jax_revolve.engine.every import Every
from jax_revolve.engine.nest import block_of, way_of
from jax_revolve.engine.placement import Stack
from jax_revolve.schedule.plan import Plan
from jax_revolve.step.examples import any_example
from jax_revolve.step.steps import Steps
from jax_revolve.storage.buffers import write

_LoopState = tuple[jax.Array, jax.Array, Any, list[Any], list[Any]]
"""Numbers, the first two being the next step and the step to store or stop before; whether each
example goes on; the steps of each example, if they are walked back; the carry; and the journal. The
numbers are one array, because on a CPU each scalar would be a kernel that takes as long as a light
step."""


def run_forward_online(steps: Steps, plan: Plan) -> tuple[list[Any], Saved]:
    """The final carry, and the checkpoints."""
    loop, kept = steps.loop, steps.kept
    consts, init, _ = steps.operands
    way = way_of(plan, is_while=True)
    stores_each = isinstance(way, Every) and plan.block_size == 1
    stack, place = way.placing()

    def go_on(numbers: jax.Array, going: jax.Array, stop: Any) -> jax.Array:
        return (numbers[0] < stop) & any_example(going)

    def step(running: _LoopState) -> _LoopState:
        numbers, going, example_steps, carry, log = running
        carry, entries = steps.step(carry, numbers[0])
        one = np.eye(1, numbers.size, dtype=np.int32)[0]
        example_steps = None if example_steps is None else example_steps + going.astype(jnp.int32)
        log = write(log, entries, numbers[0])
        return numbers + one, loop.holds(consts, carry), example_steps, carry, log

    def store_and_advance(state: tuple[Stack, jax.Array, Any, list[Any], list[Any], Any]) -> Any:
        stack, going, example_steps, carry, log, buffers = state
        stack, stored = place(stack), pick(carry, kept)
        buffers, stored = way.store(buffers, stored, stack.slot)
        running = (stack.numbers, going, example_steps, substitute(carry, kept, stored), log)
        if stores_each:
            numbers, *running = step(running)
        else:
            before_stop = lambda p: go_on(p[0], p[1], p[0][1])  # noqa: E731
            numbers, *running = lax.while_loop(before_stop, step, running)
        return stack._replace(numbers=numbers), *running, buffers

    buffers = way.empty(steps.initial())
    going = loop.holds(consts, init)
    kind = block_of(loop, plan)
    none = jnp.zeros_like(going, jnp.int32) if kind.counts_steps_of_examples else None
    stack, _, example_steps, carry, log, buffers = lax.while_loop(
        lambda state: go_on(state[0].numbers, state[1], plan.length),
        store_and_advance,
        (stack, going, none, init, steps.empty_log(), buffers),
    )
    num_steps = stack.numbers[0]
    of_block = kind.saved(pick(carry, kept), example_steps)
    past = steps.past(carry, log)
    return carry, Saved(way.saved(buffers, stack), of_block, num_steps, past)
