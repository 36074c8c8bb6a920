"""The forward sweep of a while loop, whose number of steps is unknown.

It stores checkpoints according to `schedule.online`: wherever the loop stops, they are where the
reverse sweep wants them, or close. A new checkpoint takes the slot of the one that is dropped, so
the slots are not in the order of the positions. `Held.slot_index` maps stack levels to slots.
"""

from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve.engine.placement import Placement, Stack
from jax_revolve.engine.reports import Reports
from jax_revolve.engine.slots import Held, empty, keep
from jax_revolve.engine.split import integers
from jax_revolve.progress.listener import FORWARD
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.two_level import AnyPlan, TwoLevelPlan
from jax_revolve.step.examples import any_example
from jax_revolve.step.loop import pick, substitute
from jax_revolve.step.steps import Steps
from jax_revolve.storage.stores import in_storage, put

_Progress = tuple[jax.Array, jax.Array, list[Any]]
"""Numbers, of which the first two are the step to run next and the step to store or stop before;
whether each example goes on; and the carry. On CPU, numbers that are not in one array would each
take kernels of their own, which last as long as a light step."""


def run_forward_online(steps: Steps, plan: AnyPlan) -> tuple[list[Any], Held]:
    """The final carry, and the checkpoints."""
    loop = steps.loop
    consts, init, _ = steps.operands
    keeping, reports = _keeping(plan), Reports(loop, FORWARD, None)

    def go_on(progress: _Progress, stop: Any) -> jax.Array:
        numbers, going, _ = progress
        return (numbers[0] < stop) & any_example(going)

    def step(progress: _Progress) -> _Progress:
        numbers, _, carry = progress
        reports.before_step(numbers[0])
        carry, _ = steps.step_from(carry)(*steps.inputs(carry, numbers[0]))
        one = np.eye(1, numbers.size, dtype=np.int32)[0]
        return numbers + one, loop.holds(consts, carry), carry

    def store_and_advance(state: tuple[_Progress, Any]) -> tuple[_Progress, Any]:
        (numbers, going, carry), kept = state
        kept, numbers, stored = keeping.keep(kept, numbers, pick(carry, steps.restart))
        progress = (numbers, going, substitute(carry, steps.restart, stored))
        if plan.block_size == 1 and plan.stores_every_block(is_while=True):
            return step(progress), kept
        return lax.while_loop(lambda p: go_on(p, p[0][1]), step, progress), kept

    kept, numbers = keeping.begin(pick(init, steps.restart))
    progress = (reports.begin(numbers), loop.holds(consts, init), init)
    progress, kept = lax.while_loop(
        lambda state: go_on(state[0], plan.length), store_and_advance, (progress, kept)
    )
    numbers, _, carry = progress
    reports.end(numbers[0])
    return carry, keeping.held(kept, numbers)


def _keeping(plan: AnyPlan) -> "_Keeping":
    if isinstance(plan, TwoLevelPlan):
        return _InStorage(plan)
    return _InOrder(plan) if plan.stores_every_block(is_while=True) else _InSlots(plan)


class _Keeping(Protocol):
    """How checkpoints are stored, and where."""

    def begin(self, checkpoint: list[Any]) -> tuple[Any, jax.Array]:
        """No checkpoints yet, with room for carries like this one; and the first numbers."""
        ...

    def keep(
        self, kept: Any, numbers: jax.Array, checkpoint: list[Any]
    ) -> tuple[Any, jax.Array, list[Any]]:
        """`kept` with one more checkpoint, the numbers, and the checkpoint to go on from."""
        ...

    def held(self, kept: Any, numbers: jax.Array) -> Held:
        """What is held in the end."""
        ...


def _first_step(plan: AnyPlan, block: Any) -> Any:
    """The first step of a block, or the bound: the product of a position beyond it may overflow."""
    return jnp.where(block < plan.blocks, plan.block_size * block, plan.length)


class _InSlots:
    """Checkpoints in slots, at the positions of the online schedule."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._placement = Placement(
            plan.checkpoints, plan.blocks, plan.block_size, partial(_first_step, plan)
        )

    def begin(self, checkpoint: list[Any]) -> tuple[Any, jax.Array]:
        rows, seen, numbers = self._placement.begin()
        return (empty(self._plan.checkpoints, checkpoint, self._plan), rows, seen), numbers

    def keep(
        self, kept: Any, numbers: jax.Array, checkpoint: list[Any]
    ) -> tuple[Any, jax.Array, list[Any]]:
        slots, rows, seen = kept
        stack = self._placement.store(Stack(rows, seen, numbers))
        slots, checkpoint = keep(slots, checkpoint, stack.slot)
        return (slots, stack.rows, stack.seen), stack.numbers, checkpoint

    def held(self, kept: Any, numbers: jax.Array) -> Held:
        slots, rows, seen = kept
        stack = Stack(rows, seen, numbers)
        return Held(slots, stack.positions, stack.slot_index, stack.top, numbers[0], None)


class _InOrder:
    """Each block's checkpoint in the slot of its number."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def begin(self, checkpoint: list[Any]) -> tuple[Any, jax.Array]:
        return empty(self._plan.blocks, checkpoint, self._plan), integers([0, 0])

    def keep(
        self, kept: Any, numbers: jax.Array, checkpoint: list[Any]
    ) -> tuple[Any, jax.Array, list[Any]]:
        step, size = numbers[0], self._plan.block_size
        kept, checkpoint = keep(kept, checkpoint, lax.div(step, jnp.int32(size)))
        # The last block may reach beyond the bound.
        stop = step + jnp.minimum(size, self._plan.length - step)
        return kept, jnp.stack([step, stop]), checkpoint

    def held(self, kept: Any, numbers: jax.Array) -> Held:
        return Held(kept, None, None, None, numbers[0], None)


class _InStorage:
    """Checkpoints in the storage, at the positions of the plan for a loop that reaches its bound.
    The start of the tail is stored, too, because the loop may stop in any part."""

    def __init__(self, plan: TwoLevelPlan) -> None:
        self._plan = plan
        first_steps = [plan.block_size * block for block in [*plan.stores[1:], plan.tail]]
        self._stops = np.array([*first_steps, plan.length], np.int32)

    def begin(self, checkpoint: list[Any]) -> tuple[Any, jax.Array]:
        stores = in_storage(self._plan.storage, checkpoint, len(self._stops))
        return stores, integers([0, 0, 0])

    def keep(
        self, kept: Any, numbers: jax.Array, checkpoint: list[Any]
    ) -> tuple[Any, jax.Array, list[Any]]:
        step, _, number = numbers
        kept = put(self._plan.storage, kept, checkpoint, number)
        stop = jnp.asarray(self._stops)[number]
        return kept, jnp.stack([step, stop, number + 1]), checkpoint

    def held(self, kept: Any, numbers: jax.Array) -> Held:
        return Held([], None, None, None, numbers[0], None, stores=kept)


def after_unknown_steps(plan: AnyPlan, held: Held) -> Held:
    """The stack after a while loop without one: of all its checkpoints, which are in the storage,
    or each in the slot of its block."""
    return held._replace(positions=integers([0] * plan.checkpoints), top=jnp.int32(0))
