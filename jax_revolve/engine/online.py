"""The forward sweep of a while loop, whose number of steps is unknown.

It stores checkpoints according to `schedule.online`: wherever the loop stops, they are where the
reverse sweep wants them, or close. A new checkpoint takes the slot of the one that is dropped, so
the slots are not in the order of the positions. `Held.slot_index` maps stack levels to slots.
"""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve.engine.bars import OVER, Bar
from jax_revolve.engine.placement import Placement, Stack
from jax_revolve.engine.slots import Held, empty, stores_every_block, write_slot
from jax_revolve.progress.listener import FORWARD
from jax_revolve.schedule.online import NEVER
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.two_level import AnyPlan, TwoLevelPlan
from jax_revolve.step.examples import any_example
from jax_revolve.step.loop import pick
from jax_revolve.step.steps import Steps
from jax_revolve.storage.buffers import Buffers
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
    keeping = _keeping(plan)
    bar = Bar(loop, FORWARD, None)

    def go_on(progress: _Progress, stop: Any) -> jax.Array:
        count, going, _ = progress
        return (count < stop) & any_example(going)

    def step(progress: _Progress) -> _Progress:
        count, _, carry = progress
        carry, _ = steps.step_from(carry)(*steps.inputs(carry, count))
        return count + 1, loop.holds(consts, carry), carry

    def advance(state: _Shown, kept: Any) -> _Shown:
        due, progress = state

        def stop() -> jax.Array:
            """The next step to store at. The loops that stop there look it up: by itself it would
            be one more kernel."""
            block = keeping.next_block(kept)
            # A position beyond the bound may overflow in the product.
            return jnp.where(block < plan.blocks, plan.block_size * block, plan.length)

        def chunk(state: _Shown) -> _Shown:
            due, progress = state
            over = ~go_on(progress, plan.length)
            due = bar.report_if_due(due, progress[0], over)
            return due, lax.while_loop(lambda p: go_on(p, jnp.minimum(stop(), due)), step, progress)

        if bar.is_shown:
            return lax.while_loop(lambda s: go_on(s[1], stop()) | is_to_end(s), chunk, state)
        if plan.block_size == 1 and stores_every_block(plan, is_while=True):
            return due, step(progress)
        return due, lax.while_loop(lambda p: go_on(p, stop()), step, progress)

    def is_to_end(state: _Shown) -> jax.Array:
        """Whether the sweep is over, and its end is not reported yet."""
        due, progress = state
        return ~go_on(progress, plan.length) & (due < OVER)

    def store_and_advance(state: tuple[_Shown, Any]) -> tuple[_Shown, Any]:
        shown, kept = state
        count, _, carry = shown[1]
        kept = keeping.keep(kept, pick(carry, steps.restart), count // plan.block_size)
        return advance(shown, kept), kept

    progress = (jnp.int32(0), loop.holds(consts, init), init)
    due = bar.begin(~go_on(progress, plan.length)) if bar.is_shown else None
    (_, progress), kept = lax.while_loop(
        lambda state: go_on(state[0][1], plan.length),
        store_and_advance,
        ((due, progress), keeping.begin(checkpoint)),
    )
    count, _, carry = progress
    return carry, keeping.held(kept, count)


def _keeping(plan: AnyPlan) -> "_Keeping":
    if isinstance(plan, TwoLevelPlan):
        return _InStorage(plan)
    return _InOrder(plan) if stores_every_block(plan, is_while=True) else _InSlots(plan)


class _Keeping(Protocol):
    """How checkpoints are stored, and where."""

    def begin(self, checkpoint: list[Any]) -> Any:
        """No checkpoints yet, with room for carries like this one."""
        ...

    def keep(self, kept: Any, checkpoint: list[Any], block: jax.Array) -> Any:
        """`kept` with one more checkpoint, at the block at which it was to be stored."""
        ...

    def next_block(self, kept: Any) -> jax.Array:
        """The block at which to store next."""
        ...

    def held(self, kept: Any, steps: jax.Array) -> Held:
        """What is held after so many steps."""
        ...


class _InSlots:
    """Checkpoints in slots, at the positions of the online schedule."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._placement = Placement(plan.checkpoints, plan.blocks)

    def begin(self, checkpoint: list[Any]) -> tuple[list[Any], Stack]:
        slots = empty(self._plan.checkpoints, checkpoint, self._plan)
        return slots, self._placement.begin()

    def keep(
        self, kept: tuple[list[Any], Stack], checkpoint: list[Any], block: jax.Array
    ) -> tuple[list[Any], Stack]:
        slots, stack = kept
        stack = self._placement.store(stack, block)
        return write_slot(slots, checkpoint, stack.slot), stack

    def next_block(self, kept: tuple[list[Any], Stack]) -> jax.Array:
        return kept[1].next_position

    def held(self, kept: tuple[list[Any], Stack], steps: jax.Array) -> Held:
        slots, stack = kept
        return Held(slots, stack.positions, stack.slot_index, stack.top, steps, None)


class _InOrder:
    """Each block's checkpoint in the slot of its number."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def begin(self, checkpoint: list[Any]) -> tuple[list[Any], jax.Array]:
        return empty(self._plan.blocks, checkpoint, self._plan), jnp.int32(0)

    def keep(
        self, kept: tuple[list[Any], jax.Array], checkpoint: list[Any], block: jax.Array
    ) -> tuple[list[Any], jax.Array]:
        slots, block = kept
        return write_slot(slots, checkpoint, block), block + 1

    def next_block(self, kept: tuple[list[Any], jax.Array]) -> jax.Array:
        return kept[1]

    def held(self, kept: tuple[list[Any], jax.Array], steps: jax.Array) -> Held:
        slots, _ = kept
        return Held(slots, None, None, None, steps, None)


class _InStorage:
    """Checkpoints in the storage, at the positions of the plan for a loop that reaches its bound.
    The start of the tail is stored, too, because the loop may stop in any part."""

    def __init__(self, plan: TwoLevelPlan) -> None:
        self._plan = plan
        self._starts = np.array([*plan.stores, plan.tail, NEVER], np.int32)

    def begin(self, checkpoint: list[Any]) -> tuple[Buffers, jax.Array]:
        count = len(self._plan.stores) + 1
        return in_storage(self._plan.storage, checkpoint, count), jnp.int32(0)

    def keep(
        self, kept: tuple[Buffers, jax.Array], checkpoint: list[Any], block: jax.Array
    ) -> tuple[Buffers, jax.Array]:
        stores, count = kept
        return put(self._plan.storage, stores, checkpoint, count), count + 1

    def next_block(self, kept: tuple[Buffers, jax.Array]) -> jax.Array:
        return jnp.asarray(self._starts)[kept[1]]

    def held(self, kept: tuple[Buffers, jax.Array], steps: jax.Array) -> Held:
        stores, _ = kept
        return Held([], None, None, None, steps, None, stores=stores)


def after_unknown_steps(plan: AnyPlan, held: Held) -> Held:
    """The stack after a while loop without one: of all its checkpoints, which are in the storage,
    or each in the slot of its block."""
    return held._replace(positions=jnp.zeros(plan.checkpoints, jnp.int32), top=jnp.int32(0))
