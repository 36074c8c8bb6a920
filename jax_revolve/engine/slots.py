"""The slots engine: one buffer of checkpoints, filled and emptied in the optimal order.

Both sweeps follow `schedule.actions.revolve`, whose unit is a block of steps that are taped
together (`tape`).

The forward sweep runs all steps, because JAX needs the value before it passes a cotangent. It tapes
the last block on the way, and hands the tape over. There are two exceptions. With blocks of a
single step, it is the forward half of a schedule for one step more, whose last step is the end of
the loop. In a while loop, it does not know which block is the last (`online`).

The reverse sweep is the loop in `revolve`, with its stack on the device: slots, positions and the
number of the top level. The next position is looked up in a table, whose size depends on the
numbers of checkpoints and repetitions alone. So a scan in single steps has as many instructions at
every length.

The code is written for XLA:

- The slot buffer is a loop variable that is read and updated in place, and so is the tape. Neither
  goes through a `cond` or a gather, which would copy it.
- The vjp of the step appears only where a step is taped, never in an advance. On CPU, the
  linearization of a step that is taped alone is in a branch that is always taken (`reverse`).
- Slot 0 always holds the initial carry, which is an operand and is never overwritten. So the buffer
  holds the slots from 1 up.
- A slot holds only the leaves of the carry that are needed to run on from it (`restart`).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat.memories import is_on_host, typed_as_on_host
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.two_level import AnyPlan, TwoLevelPlan
from jax_revolve.step.loop import Loop
from jax_revolve.storage.buffers import Buffers, read, write


class Saved(NamedTuple):
    """Everything that a forward sweep saves for its reverse sweep, besides what the plan determines.

    - `slots`: the checkpoints on the device, from slot 1 up.
    - `tape`: the residuals of the last block of a scan.
    - `start`: with a storage, the checkpoint at the start of the tail, instead of the initial carry.
    - `storage`: the buffers of that storage.
    - `steps`: the number of steps that a while loop took.
    - `positions`, `slot_index`, `top`: where an online sweep placed its checkpoints: number i, up to
      `top`, is at block `positions[i]` in slot `slot_index[i]`.
    - `last_start`, `end`, `record`: for blocks that are walked back, the checkpoints at the start of
      the last block and at the end of the loop, and the ys that the inverse reads.
    - `example_steps`: the steps that each example of such a while loop took.
    """

    slots: list[Any]
    tape: Buffers | None = None
    start: list[Any] | None = None
    storage: Buffers | None = None
    steps: Any = None
    positions: Any = None
    slot_index: Any = None
    top: Any = None
    last_start: list[Any] | None = None
    end: list[Any] | None = None
    record: list[Any] | None = None
    example_steps: Any = None


def empty(checkpoints: int, carry: list[Any], plan: AnyPlan) -> list[Any]:
    """The slot buffer: every carry leaf with a leading axis of slots. It is made from the carry,
    and so has its dtype, key type, sharding and varying axes.

    A buffer in the host's memory is never on the device: see `typed_as_on_host`.
    """
    slots = [jnp.broadcast_to(x, (checkpoints - 1, *x.shape)) for x in carry]
    is_far = isinstance(plan, Plan) and plan.storage is not None
    return list(map(typed_as_on_host, slots)) if is_far else slots


def at_slot(slots: list[Any], slot: Any, first: list[Any]) -> list[Any]:
    """The checkpoint in a slot; `first` is the one in slot 0."""
    if slots and slots[0].shape[0] == 0:
        return first
    stored = read(slots, _row(slot))
    return [lax.select(slot == 0, f, x) for f, x in zip(first, stored, strict=True)]


def write_slot(slots: list[Any], carry: list[Any], slot: Any) -> list[Any]:
    """Store into a slot. Slot 0 is not in the buffer: a carry for it goes to slot 1, which is
    overwritten before it is first read."""
    if slots and slots[0].shape[0] == 0:
        return slots
    return write(slots, carry, _row(slot))


def _row(slot: Any) -> Any:
    return max(slot - 1, 0) if isinstance(slot, int) else lax.max(slot - 1, lax.full_like(slot, 0))


def keep(slots: list[Any], carry: list[Any], slot: jax.Array) -> tuple[list[Any], list[Any]]:
    """Store into a slot. Returns the slots, and the carry to go on from.

    That comes back from the slot. XLA then sees that the step may overwrite it, because it is
    stored by then. Otherwise it would make two copies, to store one and go on from the other.
    """
    slots = write_slot(slots, carry, slot)
    if not slots or slots[0].shape[0] == 0 or any(map(is_on_host, slots)):
        return slots, carry
    return slots, read(slots, _row(slot))


def tapes_the_last_block(plan: AnyPlan) -> bool:
    """Whether the forward sweep of a loop of known length tapes its last block. For a single step,
    the tape would cost more than it saves: buffers between programs, and another copy of the step.
    """
    return plan.block_size > 1


def is_walked_back(loop: Loop, plan: AnyPlan) -> bool:
    """Whether blocks are walked back by an inverse of the step. A block of one step is not."""
    return loop.inverse is not None and plan.block_size > 1


def slots_used(plan: AnyPlan) -> int:
    """The number of slots in use: a block that the forward sweep tapes needs none."""
    if isinstance(plan, TwoLevelPlan) or plan.levels or not tapes_the_last_block(plan):
        return plan.checkpoints
    return min(plan.checkpoints, max(plan.blocks - 1, 1))
