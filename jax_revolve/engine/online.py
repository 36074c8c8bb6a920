"""The forward sweep of a while loop, whose number of steps is unknown.

It stores checkpoints according to `schedule.online`: wherever the loop stops, they are where the
reverse sweep wants them, or close. A new checkpoint takes the slot of the one that is dropped, so
the slots are not in the order of the positions. `Held.slot_index` maps stack levels to slots.
"""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve.engine.bars import OVER, Bar
from jax_revolve.engine.placement import Placement
from jax_revolve.engine.slots import Held, empty, write_slot
from jax_revolve.progress.listener import FORWARD
from jax_revolve.schedule.online import NEVER
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.two_level import AnyPlan, TwoLevelPlan
from jax_revolve.step.examples import any_example
from jax_revolve.step.loop import pick
from jax_revolve.step.steps import Steps
from jax_revolve.storage.stores import in_storage, put

_Progress = tuple[jax.Array, jax.Array, list[Any]]
"""The number of steps taken, whether each example goes on, and the carry."""

_Shown = tuple[Any, _Progress]
"""The step of the next report, if there are reports, and the progress."""


def run_forward_online(steps: Steps, plan: AnyPlan) -> tuple[list[Any], Held]:
    """The final carry, and the checkpoints."""
    loop = steps.loop
    consts, init, _ = steps.operands
    checkpoint = pick(init, steps.restart)
    keeping: _Keeping = _InSlots(plan) if isinstance(plan, Plan) else _InStorage(plan)
    bar = Bar(loop, FORWARD, None)

    def go_on(progress: _Progress, stop: Any) -> jax.Array:
        count, going, _ = progress
        return (count < stop) & any_example(going)

    def advance(state: _Shown, stop: jax.Array) -> _Shown:
        due, progress = state

        def step(progress: _Progress) -> _Progress:
            count, _, carry = progress
            carry, _ = steps.step_from(carry)(*steps.inputs(carry, count))
            return count + 1, loop.holds(consts, carry), carry

        def chunk(state: _Shown) -> _Shown:
            due, progress = state
            over = ~go_on(progress, plan.length)
            due = bar.report_if_due(due, progress[0], over)
            return due, lax.while_loop(lambda p: go_on(p, jnp.minimum(stop, due)), step, progress)

        if not bar.is_shown:
            return due, lax.while_loop(lambda p: go_on(p, stop), step, progress)
        return lax.while_loop(lambda s: go_on(s[1], stop) | is_to_end(s), chunk, state)

    def is_to_end(state: _Shown) -> jax.Array:
        """Whether the sweep is over, and its end is not reported yet."""
        due, progress = state
        return ~go_on(progress, plan.length) & (due < OVER)

    def store_and_advance(state: tuple[_Shown, Held]) -> tuple[_Shown, Held]:
        shown, held = state
        _, progress = shown
        count, _, carry = progress
        held, stop = keeping.keep(held, pick(carry, steps.restart), count // plan.block_size)
        # A position beyond the bound may overflow in the product.
        stop = jnp.where(stop < plan.blocks, plan.block_size * stop, plan.length)
        return advance(shown, stop), held

    progress = (jnp.int32(0), loop.holds(consts, init), init)
    due = bar.begin(~go_on(progress, plan.length)) if bar.is_shown else None
    (_, progress), held = lax.while_loop(
        lambda state: go_on(state[0][1], plan.length),
        store_and_advance,
        ((due, progress), keeping.begin(checkpoint)),
    )
    count, _, carry = progress
    if held.stores is not None:
        held = held._replace(positions=None, top=None)
    return carry, held._replace(steps=count)


class _Keeping(Protocol):
    """How checkpoints are stored."""

    def begin(self, checkpoint: list[Any]) -> Held:
        """No checkpoints yet, with room for carries like this one."""
        ...

    def keep(
        self, held: Held, checkpoint: list[Any], position: jax.Array
    ) -> tuple[Held, jax.Array]:
        """`held` with one more checkpoint, and the block at which to store the next one."""
        ...


class _InSlots:
    """Checkpoints in slots, at the positions of the online schedule."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._placement = Placement(plan.checkpoints, plan.blocks)

    def begin(self, checkpoint: list[Any]) -> Held:
        checkpoints = self._plan.checkpoints
        free = jnp.full(checkpoints, NEVER, jnp.int32)
        slot_index = jnp.arange(checkpoints, dtype=jnp.int32)
        slots = empty(checkpoints, checkpoint, self._plan)
        return Held(slots, free, slot_index, jnp.int32(-1), jnp.int32(0), None)

    def keep(
        self, held: Held, checkpoint: list[Any], position: jax.Array
    ) -> tuple[Held, jax.Array]:
        held = _store(self._placement, held, checkpoint, position)
        return held, self._placement.next_store(held.positions, held.top + 1)


class _InStorage:
    """Checkpoints in the storage, at the positions of the plan for a loop that reaches its bound.
    The start of the tail is stored, too, because the loop may stop in any part."""

    def __init__(self, plan: TwoLevelPlan) -> None:
        self._plan = plan

    def begin(self, checkpoint: list[Any]) -> Held:
        count = len(self._plan.stores) + 1
        stores = in_storage(self._plan.storage, checkpoint, count)
        none = Held([], None, None, None, jnp.int32(0), None, stores=stores)
        return after_unknown_steps(self._plan, none)._replace(top=jnp.int32(-1))

    def keep(
        self, held: Held, checkpoint: list[Any], position: jax.Array
    ) -> tuple[Held, jax.Array]:
        assert held.stores is not None
        top = held.top + 1
        stores = put(self._plan.storage, held.stores, checkpoint, top)
        starts = jnp.array([*self._plan.stores, self._plan.tail, NEVER], jnp.int32)
        return held._replace(stores=stores, top=top), starts[top + 1]


def after_unknown_steps(plan: AnyPlan, held: Held) -> Held:
    """The empty stack after a while loop whose checkpoints are all in the storage."""
    return held._replace(positions=jnp.zeros(plan.checkpoints, jnp.int32), top=jnp.int32(0))


def _store(placement: Placement, held: Held, carry: list[Any], position: jax.Array) -> Held:
    """The stack with one more checkpoint, in place of another one if no slot is free."""
    assert held.slot_index is not None
    levels = held.positions.size
    is_full = held.top + 1 == levels
    top = jnp.minimum(held.top + 1, levels - 1)
    dropped = top
    if levels > 1:
        dropped = jnp.where(is_full, placement.drop(held.positions, position), top)
    slot = held.slot_index[dropped]
    slots = write_slot(held.slots, carry, slot)
    positions = _without(held.positions, dropped).at[top].set(position)
    slot_index = _without(held.slot_index, dropped).at[top].set(slot)
    slot_index = jnp.where(is_full, slot_index, held.slot_index)
    return held._replace(slots=slots, positions=positions, slot_index=slot_index, top=top)


def _without(values: jax.Array, index: jax.Array) -> jax.Array:
    """The values, with those after the index moved down by one."""
    here = jnp.arange(values.size, dtype=jnp.int32)
    return jnp.where(here < index, values, jnp.roll(values, -1))
