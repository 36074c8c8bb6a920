"""A buffer of checkpoints, filled and emptied in any order, and what a forward sweep saves."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat.memories import is_on_host, typed_as_on_host
from jax_revolve._compat.values import vary, varying_axes, with_weak_type
from jax_revolve.engine.codecs import decode, encode
from jax_revolve.engine.tape.layout import Tape
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.storage import Compressed
from jax_revolve.storage.buffers import Buffers, read, write


class Carries(NamedTuple):
    """One entry for each leaf of a checkpoint: a checkpoint, or a buffer of them."""

    leaves: list[Any]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["codes", "newest", "row"],
    meta_fields=["codec"],
)
@dataclass(frozen=True)
class Coded:
    """A buffer of encoded checkpoints. The newest one, in this row, is also kept as it is. So the
    steps after it are exact, and a loop goes on from there."""

    codes: Buffers
    newest: list[Any]
    row: Any
    codec: Compressed

    def read(self, row: Any) -> list[Any]:
        decoded = decode(self.codec, read(self.codes, row), self.newest)
        is_newest = lax.eq(self.row, jnp.asarray(row, jnp.int32))
        return [lax.select(is_newest, x, y) for x, y in zip(self.newest, decoded, strict=True)]

    def write(self, carry: list[Any], row: Any) -> "Coded":
        newest = [with_weak_type(x, jax.typeof(y)) for x, y in zip(carry, self.newest, strict=True)]
        codes = write(self.codes, encode(self.codec, carry), row)
        row = vary(jnp.asarray(row, jnp.int32), varying_axes(jax.typeof(self.row)))
        return replace(self, codes=codes, newest=newest, row=row)


Slots: TypeAlias = list[Any] | Coded
"""The slot buffer."""


class Record(NamedTuple):
    """The ys that an inverse reads."""

    leaves: list[Any]


class Taped(NamedTuple):
    """The residuals of the last block of a scan."""

    tape: Tape


class Saved(NamedTuple):
    """What a forward sweep saves for its reverse sweep, as far as the plan does not determine it:
    what its way of reversing keeps, what its last block keeps, and the number of steps that a while
    loop took. Each way and each kind of block has a tree of its own, which `autodiff` sees as
    `Carries`, a `Record`, and other arrays, which have no tangents."""

    way: Any
    block: Any = None
    steps: Any = None
    past: Any = ()
    """The histories at the end, with their journal."""

    @property
    def tape(self) -> list[Any]:
        """Its arrays."""
        return jax.tree.leaves(self.block) if isinstance(self.block, Taped) else []

    def without_tape(self) -> "Saved":
        return self._replace(block=None) if isinstance(self.block, Taped) else self

    def map(self, fun: Callable[[Any], Any]) -> "Saved":
        """The same tree with `fun` of each `Carries`, each `Record`, and each other leaf."""
        return jax.tree.map(fun, self, is_leaf=lambda x: isinstance(x, Carries | Record))


def saved_slots(slots: Slots) -> Carries | Coded:
    """The slots as a part of what is saved: codes have no tangents."""
    return slots if isinstance(slots, Coded) else Carries(slots)


def slots_of(saved: Carries | Coded) -> Slots:
    return saved if isinstance(saved, Coded) else saved.leaves


def are_on_host(slots: Slots) -> bool:
    return any(map(is_on_host, jax.tree.leaves(slots)))


def empty(checkpoints: int, carry: list[Any], plan: Plan) -> Slots:
    """The slot buffer: every carry leaf with a leading axis of slots. It is broadcast from the
    carry to get its dtype, key type, sharding and varying axes. A buffer in the host's memory is
    never on the device: see `typed_as_on_host`. For a single checkpoint there are no arrays, not
    empty ones, with which jaxlib 0.11 crashes in `jax.shard_map`."""
    if checkpoints == 1:
        return []
    codec = plan.codec
    leaves = carry if codec is None else encode(codec, carry, is_checked=False)
    slots = [jnp.broadcast_to(x, (checkpoints - 1, *x.shape)) for x in leaves]
    is_far = plan.storage is not None and not plan.segments
    slots = list(map(typed_as_on_host, slots)) if is_far else slots
    if codec is None:
        return slots
    axes = frozenset[str]().union(*(varying_axes(jax.typeof(x)) for x in carry))
    return Coded(slots, carry, vary(jnp.int32(-1), axes), codec)


def at_slot(slots: Slots, slot: Any, first: list[Any]) -> list[Any]:
    """The checkpoint in a slot; `first` is the one in slot 0."""
    if isinstance(slots, Coded):
        stored = slots.read(_row(slot))
    elif not slots:
        return first
    else:
        stored = read(slots, _row(slot))
    return [lax.select(slot == 0, f, x) for f, x in zip(first, stored, strict=True)]


def write_slot(slots: Slots, carry: list[Any], slot: Any) -> Slots:
    """Store a carry in a slot. Slot 0 is not in the buffer: its carry goes to slot 1, which is
    overwritten before it is first read."""
    if isinstance(slots, Coded):
        return slots.write(carry, _row(slot))
    if not slots:
        return slots
    return write(slots, carry, _row(slot))


def _row(slot: Any) -> Any:
    return max(slot - 1, 0) if isinstance(slot, int) else lax.max(slot - 1, lax.full_like(slot, 0))


def keep(slots: Slots, carry: list[Any], slot: jax.Array) -> tuple[Slots, list[Any]]:
    """Store a carry in a slot. Returns the slots, and the carry to go on from, read back from the
    slot. So XLA sees that the next step may overwrite its input. Otherwise it copies the carry
    twice in each step, once to store it and once to continue."""
    slots = write_slot(slots, carry, slot)
    if isinstance(slots, Coded):
        return slots, slots.newest
    if not slots or any(map(is_on_host, slots)):
        return slots, carry
    return slots, read(slots, _row(slot))


def runs_the_last_block(plan: Plan) -> bool:
    """Whether the forward sweep of a scan runs the last block by its own side, to tape it, for
    example. For a block of one step, a tape costs more than it saves: buffers between programs, and
    another copy of the step's code."""
    return plan.block_size > 1


def slots_used(plan: Plan) -> int:
    """The number of slots in use. The last block may need no slot."""
    if plan.segments or plan.levels or not runs_the_last_block(plan):
        return plan.checkpoints
    return min(plan.checkpoints, max(plan.blocks - 1, 1))
