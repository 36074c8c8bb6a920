"""A buffer of checkpoints, filled and emptied in any order, and what a forward sweep saves."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat.memories import is_on_host, typed_as_on_host
from jax_revolve.schedule.plan import Plan
from jax_revolve.storage.buffers import Buffers, read, write


class Saved(NamedTuple):
    """What a forward sweep saves for its reverse sweep, as far as the plan does not determine it.

    - `slots`: the checkpoints on the device, from slot 1 up.
    - `tape`: the residuals of the last block of a scan.
    - `start`: with a storage, the checkpoint at the start of the tail.
    - `storage`: the buffers of that storage.
    - `steps`: the number of steps that a while loop took.
    - `positions`, `slot_index`, `top`: where an online sweep placed its checkpoints. Number i, up
      to `top`, is at block `positions[i]` in slot `slot_index[i]`.
    - `last_start`, `end`, `record`: for blocks that are walked back, the checkpoints at the start
      of the last block and at the loop's end, and the ys that the inverse reads.
    - `example_steps`: the steps that each example of a while loop took, for blocks walked back.
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


def empty(checkpoints: int, carry: list[Any], plan: Plan) -> list[Any]:
    """The slot buffer: every carry leaf with a leading axis of slots. It is broadcast from the
    carry to get its dtype, key type, sharding and varying axes. A buffer in the host's memory is
    never on the device: see `typed_as_on_host`."""
    slots = [jnp.broadcast_to(x, (checkpoints - 1, *x.shape)) for x in carry]
    is_far = plan.storage is not None and not plan.segments
    return list(map(typed_as_on_host, slots)) if is_far else slots


def at_slot(slots: list[Any], slot: Any, first: list[Any]) -> list[Any]:
    """The checkpoint in a slot; `first` is the one in slot 0."""
    if slots and slots[0].shape[0] == 0:
        return first
    stored = read(slots, _row(slot))
    return [lax.select(slot == 0, f, x) for f, x in zip(first, stored, strict=True)]


def write_slot(slots: list[Any], carry: list[Any], slot: Any) -> list[Any]:
    """Store a carry in a slot. Slot 0 is not in the buffer: its carry goes to slot 1, which is
    overwritten before it is first read."""
    if slots and slots[0].shape[0] == 0:
        return slots
    return write(slots, carry, _row(slot))


def _row(slot: Any) -> Any:
    return max(slot - 1, 0) if isinstance(slot, int) else lax.max(slot - 1, lax.full_like(slot, 0))


def keep(slots: list[Any], carry: list[Any], slot: jax.Array) -> tuple[list[Any], list[Any]]:
    """Store a carry in a slot. Returns the slots, and the carry to go on from, read back from the
    slot. So XLA sees that the next step may overwrite its input. Otherwise it copies the carry
    twice in each step, once to store it and once to continue."""
    slots = write_slot(slots, carry, slot)
    if not slots or slots[0].shape[0] == 0 or any(map(is_on_host, slots)):
        return slots, carry
    return slots, read(slots, _row(slot))


def tapes_the_last_block(plan: Plan) -> bool:
    """Whether the forward sweep of a scan tapes its last block. For a block of one step, the tape
    costs more than it saves: buffers between programs, and another copy of the step's code."""
    return plan.block_size > 1


def slots_used(plan: Plan) -> int:
    """The number of slots in use. A block that the forward sweep tapes needs no slot."""
    if plan.segments or plan.levels or not tapes_the_last_block(plan):
        return plan.checkpoints
    return min(plan.checkpoints, max(plan.blocks - 1, 1))
