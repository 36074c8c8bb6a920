"""What every way of reversing is given: the steps of a sweep, and the state of a reverse sweep.

The ways themselves are `slots`, `every`, `far` and `blocks`; `nest` puts them together.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp

from jax_revolve._compat.values import pick
from jax_revolve.engine.buffers import (
    Slots,
    are_on_host,
    at_slot,
    empty,
    keep,
    saved_slots,
    slots_of,
    slots_used,
    write_slot,
)
from jax_revolve.engine.placement import Stack
from jax_revolve.engine.tape.tape import Pullback, TapedStep
from jax_revolve.schedule.plan import Plan
from jax_revolve.step.loop import Loop, Operands, for_loop
from jax_revolve.step.steps import Steps
from jax_revolve.storage.buffers import write

Results = tuple[list[Any], list[Any]]
"""The carry after the steps so far, and their ys that are kept."""

Kept = tuple[Results, Any]
"""The results so far, and the checkpoints so far."""


Reached = tuple[list[Any], Any]
"""What steps go on from, or its part with histories, and before which step."""


class Advances(NamedTuple):
    """Consecutive advances of `size` steps each, from step `start` on. The carry that enters the
    first is stored at index `first`, the carry that enters advance j > 0 at index `base + j`."""

    start: int
    size: int
    number: int
    first: int
    base: int

    @property
    def newest(self) -> tuple[int, int]:
        """The index of the last checkpoint, and the step that it enters."""
        last = self.number - 1
        return self.base + last if last else self.first, self.start + self.size * last


class Forward(NamedTuple):
    """The forward sweep of a scan."""

    steps: Steps
    keep_ys: Sequence[bool]

    def run_step(self, step: Any, results: Results) -> Results:
        carry, y = self.steps.step(results[0], step)
        return carry, write(results[1], pick(y, self.keep_ys), self.steps.loop.entry(step))

    def run_block(self, plan: Plan, results: Results) -> Results:
        """Run the last block."""
        first = plan.stride * (plan.blocks - 1)
        step = lambda i, results: self.run_step(first + i, results)  # noqa: E731
        return for_loop(0, plan.length - first, step, results)

    def checkpoint(self, results: Results) -> list[Any]:
        return pick(results[0], self.steps.kept)

    def run(
        self,
        advances: Advances,
        store: Callable[[Any, list[Any], Any], Any],
        kept: Kept,
    ) -> Kept:
        """Run advances, each from a checkpoint, in loops of static length. `store(buffers,
        checkpoint, index)` returns the buffers with one more checkpoint."""

        # Invariant: after advance j, the carry is at step `start + size * (j + 1)`.
        def keep_and_advance(j: Any, kept: Kept) -> Kept:
            results, buffers = kept
            index = advances.base + j
            if advances.first != advances.base:
                index = jnp.where(j == 0, advances.first, index)
            buffers = store(buffers, self.checkpoint(results), index)
            start = advances.start + advances.size * j
            step = lambda i, results: self.run_step(start + i, results)  # noqa: E731
            return for_loop(0, advances.size, step, results), buffers

        return for_loop(0, advances.number, keep_and_advance, kept)

    def run_all(self, all_advances: Sequence[Advances], kept: Kept) -> Kept:
        """Run these advances, and store the checkpoints in slots."""
        store, is_far = write_slot, bool(all_advances) and are_on_host(kept[1])
        if is_far:
            kept, store = (kept[0], [kept[1], self.checkpoint(kept[0])]), _write_behind
        for each in all_advances:
            kept = self.run(each, store, kept)
        if is_far:
            slots, waiting = kept[1]
            each = all_advances[-1]
            kept = kept[0], write_slot(slots, waiting, each.base + each.number - 1)
        return kept


def _write_behind(kept: list[Any], carry: list[Any], index: Any) -> list[Any]:
    """Write the waiting carry to the host, and let this one wait. Its transfer can then take until
    the next store; written at once, it would delay the next step, which overwrites the carry. The
    first to wait is the initial carry, for slot 0, which is not in the buffer."""
    slots, waiting = kept
    return [write_slot(slots, waiting, index - 1), carry]


class Block:
    """How the steps between two neighboring positions of checkpoints are reversed: see `blocks` and
    `walk_back`. `work` is what the blocks of a sweep have in common, such as a buffer."""

    tapes = False
    """Whether the forward sweep of a scan tapes the last block on its way."""
    counts_steps_of_examples = False
    """Whether the forward sweep of a while loop must count the steps of each example."""

    @staticmethod
    def serves(loop: Loop, plan: Plan) -> bool:
        """Whether the blocks of this loop are reversed in this way."""
        raise NotImplementedError

    @staticmethod
    def kept_ys(steps: Steps, wanted: Sequence[bool]) -> Sequence[bool]:
        """The ys that the forward sweep keeps."""
        del steps
        return wanted

    @staticmethod
    def run_last(
        sweep: Forward, plan: Plan, results: Results, *, tapes: bool
    ) -> tuple[Results, Any]:
        """Run the last block of a scan. Returns what is saved, too, which is `Saved.block`. The
        block is not taped unless the sweep `tapes`."""
        del tapes
        return sweep.run_block(plan, results), None

    @staticmethod
    def saved(end: list[Any], example_steps: Any) -> Any:
        """What is saved at the end of a while loop, as `Saved.block`."""
        del end, example_steps
        return None

    def __init__(self, plan: Plan, pull: "Pull", saved: Any) -> None:
        """All blocks but the last have `size` steps, and none has more than `most`."""
        del saved
        is_while = pull.steps.loop.condition is not None
        self.size, self.most = plan.block_size if is_while else plan.stride, plan.block_size
        self.pull = pull

    def begin(self) -> Any:
        """The work before the first block that is reversed."""
        return []

    def reverse_last(
        self, start: int, count: int, gradient: Operands, work: Any
    ) -> tuple[Operands, Any]:
        """Pull cotangents back through the last block of a scan, from what is saved of it."""
        raise NotImplementedError

    def reverse(
        self, restarted: list[Any], start: Any, count: Any, gradient: Operands, work: Any
    ) -> tuple[Operands, Any, Reached]:
        """Pull cotangents back through the `count` steps from `start` on, from what steps go on
        from there. Also returns where its own run has left that, and before which step."""
        raise NotImplementedError

    def end(self, gradient: Operands, work: Any) -> Operands:
        """The cotangents after the last one."""
        del work
        return gradient


class Way(ABC):
    """Which carries are stored, and where: see `slots`, `every` and `far`. The methods with code
    serve carries in one buffer on the device."""

    plan: Plan

    @classmethod
    @abstractmethod
    def of(cls, plan: Plan, *, is_while: bool) -> Self | None:
        """The way of this plan, or `None`."""

    # The forward sweep of a scan

    def forward(self, sweep: Forward, results: Results) -> tuple[Results, Any]:
        """Run all blocks except the last, if that is run by its own side. Returns what is saved,
        too, which is `Saved.way`."""
        slots = empty(slots_used(self.plan), sweep.checkpoint(results), self.plan)
        results, slots = self.run(sweep, (results, slots))
        return results, saved_slots(slots)

    def run(self, sweep: Forward, kept: Kept) -> Kept:
        return sweep.run_all(self.advances, kept)

    @property
    def advances(self) -> list[Advances]:
        raise NotImplementedError

    def newest(self, saved: Any, initial: list[Any]) -> tuple[list[Any], int]:
        """The newest checkpoint after it, and the step that it enters."""
        slot, step = 0, self.plan.stride * self.plan.tail
        for advances in self.advances[-1:]:
            slot, step = advances.newest
        return at_slot(slots_of(saved), jnp.int32(slot), initial), step

    # The forward sweep of a while loop

    @abstractmethod
    def placing(self) -> tuple[Stack, Callable[[Stack], Stack]]:
        """The stack before the loop, and the function that updates it at a store. Its numbers then
        give the slot to write, and the step before which to store next."""

    @abstractmethod
    def empty(self, carry: list[Any]) -> Any:
        """Buffers for carries like this one."""

    def store(self, buffers: Any, carry: list[Any], slot: Any) -> tuple[Any, list[Any]]:
        """The buffers with a checkpoint, and the carry to go on from."""
        return keep(buffers, carry, slot)

    def saved(self, buffers: Any, stack: Stack) -> Any:
        """What is saved, as `Saved.way`."""
        del stack
        return saved_slots(buffers)

    # The reverse sweep

    def begin(self, sweep: "Reverse", saved: Any, gradient: Operands, work: Any) -> Any:
        """The state before it."""
        return State(slots_of(saved), gradient, work, sweep.end)

    @abstractmethod
    def reverse(self, sweep: "Reverse", first: Any, count: Any, state: Any) -> "State":
        """Reverse `count` blocks from block `first` on, the last one first."""


class State(NamedTuple):
    """The checkpoints of a reverse sweep, the cotangents so far, the work of its blocks, and where
    histories are.

    Entry 0 of the stack is `start`, by default the initial carry, and entry `top` the newest
    checkpoint. Entry i is the carry that enters block `positions[i]`, in slot `slot_index[i]`, or
    slot i without an index. Entries above the top are free, and so are their slots. Loops of static
    length have neither positions nor a top.
    """

    slots: Slots
    gradient: Operands
    work: Any
    past: Reached
    start: list[Any] | None = None
    positions: Any = None
    slot_index: jax.Array | None = None
    top: Any = None

    def slot(self, entry: jax.Array) -> jax.Array:
        return entry if self.slot_index is None else self.slot_index[entry]


class Pull(NamedTuple):
    """What every kind of block pulls cotangents back with."""

    steps: Steps
    step: TapedStep
    through: Callable[[int], Pullback]
    """The pullback of taped steps, for a tape of so many."""


class Reverse(NamedTuple):
    """A reverse sweep over `total` steps."""

    steps: Steps
    total: Any
    block: Block
    advance: Callable[..., Any]
    """`Steps.advance`, traced and lowered once for all its calls."""
    end: Reached
    """Where histories are at first."""

    @property
    def is_while(self) -> bool:
        return self.steps.loop.condition is not None

    def at(self, slot: Any, state: State) -> list[Any]:
        """The checkpoint in a slot."""
        start = self.steps.initial() if state.start is None else state.start
        return at_slot(state.slots, slot, start)

    def restart(
        self, checkpoint: list[Any], block: Any, state: State, most: int | None = None
    ) -> list[Any]:
        """What steps go on from at the checkpoint that enters a block: histories are undone, over
        `most` steps if that is known."""
        past, reached = state.past
        return [*checkpoint, *self.steps.before(past, reached, self.block.size * block, most)]

    def reached(self, restarted: list[Any], step: Any) -> tuple[list[Any], Reached]:
        """A checkpoint, and the histories, which have reached this step."""
        checkpoint, past = self.steps.apart(restarted)
        return checkpoint, (past, jnp.asarray(step, jnp.int32) if past else None)

    def reverse_block(self, restarted: list[Any], number: Any, state: State) -> State:
        """Pull the cotangents back through a block, from what steps go on from at its start."""
        size = self.block.size
        start = size * number
        # The last block of a while loop may be shorter. A scan's last block is not reversed here.
        count = jnp.minimum(size, self.total - start) if self.is_while else size
        gradient, work, reached = self.block.reverse(
            restarted, start, count, state.gradient, state.work
        )
        past = self.reached(*reached)[1]
        return state._replace(gradient=gradient, work=work, past=past)
