"""Revolve: checkpoints in slots, at the optimal positions.

    for block in reversed(blocks):
        restart from the newest checkpoint at or before `block`
        while the schedule wants a checkpoint before `block`:      # `split`, a table look-up
            advance to its position, and push it on the stack
        advance to `block`, and reverse it
        pop the checkpoint at `block`, if one is there

The forward sweep of a scan is the first pass of that (`schedule.actions.revolve`). XLA is given one
of two forms, with the same results, unless its advances have the same length:

- `_in_slots`: one loop over all steps, each of which writes the slot that is next to be complete.
- `_looking_up`: an outer loop over advances, whose lengths an inner loop looks up in a table. On a
  CPU, and for slots in the host's memory, where a transfer for each step would cost more.

The forward sweep of a while loop does not know the length: see `online` and `placement`.

Source: A. Griewank and A. Walther, "Algorithm 799: revolve", ACM TOMS 26(1), 2000.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve._compat.values import pick, substitute
from jax_revolve.engine.buffers import (
    are_on_host,
    empty,
    keep,
    saved_slots,
    slots_of,
    slots_used,
    write_slot,
)
from jax_revolve.engine.placement import Placement, Stack
from jax_revolve.engine.split import ONE, ZERO, SplitTable, integers, stacked
from jax_revolve.engine.sweep import Advances, Forward, Kept, Reverse, State, Way
from jax_revolve.schedule.binomial import first_positions
from jax_revolve.schedule.plan import Plan
from jax_revolve.step.cpu import is_for_cpu, turns
from jax_revolve.step.loop import Operands, for_loop
from jax_revolve.step.steps import element, one_of
from jax_revolve.storage.buffers import read, write

STEP, STOP, BLOCK, TARGET, TOP = range(5)


class Placed(NamedTuple):
    """Where an online sweep placed its checkpoints: number i, up to `top`, is at block
    `positions[i]` in slot `slot_index[i]`."""

    slots: Any
    positions: Any
    slot_index: Any
    top: Any


@dataclass(frozen=True)
class Slots(Way):
    plan: Plan

    @classmethod
    def of(cls, plan: Plan, *, is_while: bool) -> "Slots":
        del is_while
        return cls(plan)

    @property
    def advances(self) -> list[Advances]:
        """The advances of a scan's forward sweep, grouped by equal lengths."""
        size, (starts, stops) = self.plan.stride, first_advances(self.plan)
        sizes = stops - starts
        firsts = np.flatnonzero(np.diff(sizes, prepend=-1)).tolist()
        return [
            Advances(size * int(starts[i]), size * int(sizes[i]), end - i, i, i)
            for i, end in zip(firsts, [*firsts[1:], len(sizes)], strict=True)
        ]

    def run(self, sweep: Forward, kept: Kept) -> Kept:
        """Advance until the schedule first tapes, or to the end."""
        if len(self.advances) <= 1:
            return super().run(sweep, kept)
        starts, stops = (self.plan.stride * blocks for blocks in first_advances(self.plan))
        # A loop of dynamic length makes a GPU wait, but not a CPU: see the top of this file.
        is_far = are_on_host(kept[1])
        advance = self._looking_up if is_far or is_for_cpu("carry") else self._in_slots
        return advance(sweep, starts, stops, kept)

    def _looking_up(self, sweep: Forward, starts: Any, stops: Any, kept: Kept) -> Kept:
        """Advances of different lengths, each from a checkpoint, in loops of looked-up length."""

        def advance(index: jax.Array, reached: tuple[Any, Kept]) -> tuple[Any, Kept]:
            start, (results, slots) = reached
            slots = write_slot(slots, sweep.checkpoint(results), index)
            (stop,) = read([jnp.asarray(stops)], index)
            start, results = lax.while_loop(
                lambda reached: lax.lt(reached[0], stop),
                lambda reached: (lax.add(reached[0], np.int32(1)), sweep.run_step(*reached)),
                (start, results),
            )
            return start, (results, slots)

        return for_loop(0, len(stops), advance, (jnp.int32(starts[0]), kept))[1]

    def _in_slots(self, sweep: Forward, starts: Any, stops: Any, state: Kept) -> Kept:
        """Advances of different lengths, each from a checkpoint, in one loop of static length.

        Each step stores its carry in the slot of the next checkpoint, over the carry of the step
        before, and goes on from there (`keep`). This needs no decision and no further copy.
        Invariant: every slot below `index` has its final checkpoint.
        """
        kept, first, newest = sweep.steps.kept, int(starts[0]), int(starts[-1])

        def step(i: Any, state: Kept) -> Kept:
            results, slots = state
            carry, ys = sweep.run_step(i, results)
            # The index of the first checkpoint that is not before the next step.
            index = jnp.sum(jnp.asarray(starts, jnp.int32) <= i, dtype=jnp.int32)
            slots, stored = keep(slots, pick(carry, kept), index)
            return (substitute(carry, kept, stored), ys), slots

        results, slots = state
        slots = write_slot(slots, sweep.checkpoint(results), 0)
        results, slots = for_loop(first, newest, step, (results, slots))
        return for_loop(newest, int(stops[-1]), sweep.run_step, results), slots

    # In a while loop

    def placing(self) -> tuple[Stack, Callable[[Stack], Stack]]:
        placement = Placement(self.plan.checkpoints, self.plan.length, self.plan.block_size)
        return placement.begin(), placement.store

    def empty(self, carry: list[Any]) -> Any:
        return empty(self.plan.checkpoints, carry, self.plan)

    def saved(self, buffers: Any, stack: Stack) -> "Placed":
        return Placed(saved_slots(buffers), stack.positions, stack.slot_index, stack.top)

    # The reverse sweep

    def begin(self, sweep: Reverse, saved: Any, gradient: Operands, work: Any) -> State:
        """With the stack as online placement left it, or as the plan determines it. In a while loop
        with a storage, it starts empty."""
        if isinstance(saved, Placed):
            return State(slots_of(saved.slots), gradient, work, sweep.end, None, *saved[1:])
        positions, starts = np.zeros(slots_used(self.plan), np.int32), []
        if not sweep.is_while:
            starts, _ = first_advances(self.plan)
        positions[: len(starts)] = starts
        top = jnp.int32(max(len(starts) - 1, 0))
        state = State(slots_of(saved), gradient, work, sweep.end)
        return state._replace(positions=integers(positions), top=top)

    def reverse(self, sweep: Reverse, first: Any, count: Any, state: State) -> State:
        """The loop of `revolve`. The path from the newest checkpoint to the next block to reverse
        is an array of five numbers: the next step, and the step to stop before; the block; the
        block to stop before, where the schedule stores unless it is the block to reverse; and the
        top of the stack, without a checkpoint at the block. They are one array because on a CPU
        each scalar would be a kernel that takes as long as a light step.
        """
        split, size = SplitTable(self.plan, state.positions.size), np.int32(sweep.block.size)

        # Arrays of one number, as they are in the path: XLA would reshape each scalar.
        @jax.jit  # traced and lowered once for both its calls
        def path(position: Any, block: Any, top: Any, next_top: Any) -> jax.Array:
            distance = lax.sub(block, position)
            # Never store at the block itself: nothing would read that checkpoint.
            target = lax.min(lax.add(position, split(distance, top)), block)
            step, stop = (lax.mul(size, n) for n in (position, target))
            return lax.concatenate([step, stop, block, target, next_top], 0)

        def store(stored: tuple[Any, ...]) -> tuple[Any, ...]:
            at, carry, slots, positions = stored
            at, carry = sweep.advance(at, carry)
            top = lax.add(element(at, TOP), ONE)
            slots = write_slot(slots, sweep.steps.apart(carry)[0], state.slot(top))
            (positions,) = write([positions], [element(at, TARGET)], top)
            top = lax.expand_dims(top, (0,))
            at = path(one_of(at, TARGET), one_of(at, BLOCK), top, top)
            return at, carry, slots, positions

        # Invariant: the blocks from `done[BLOCK]` on are reversed, and entry `done[TOP]` of the
        # stack is the newest one before that block.
        def reverse_block(_: Any, done_state: tuple[jax.Array, State]) -> tuple[jax.Array, State]:
            done, state = done_state
            block, top = lax.sub(element(done, BLOCK), ONE), element(done, TOP)
            (position,) = read([state.positions], top)
            newest = sweep.restart(sweep.at(state.slot(top), state), position, state)
            # A checkpoint at the block itself is read for the last time.
            is_last = lax.convert_element_type(lax.eq(position, block), jnp.int32)
            numbers = position, block, top, lax.sub(top, is_last)
            at = path(*(lax.expand_dims(n, (0,)) for n in numbers))
            at, newest, slots, positions = lax.while_loop(
                lambda stored: lax.lt(element(stored[0], TARGET), element(stored[0], BLOCK)),
                store,
                (at, newest, state.slots, state.positions),
            )
            at, restarted = sweep.advance(at, newest)
            state = state._replace(slots=slots, positions=positions)
            return at, sweep.reverse_block(restarted, element(at, BLOCK), state)

        # The path as if a block after the last one, without a checkpoint, had been reversed.
        at = stacked(ZERO, ZERO, jnp.asarray(first + count, jnp.int32), ZERO, state.top)
        return turns(count, reverse_block, (at, state))[1]


@lru_cache(maxsize=64)
def first_advances(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """The blocks at which the forward sweep's advances start, each from a checkpoint, and stop."""
    first = plan.tail
    target = plan.scheduled_blocks - first - 1
    if target < 1:
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    starts = first + np.array(first_positions(target + 1, slots_used(plan)), np.int32)
    return starts, np.append(starts[1:], np.int32(first + target))
