"""The reverse sweep: the schedule with its stack on the device.

    for block in reversed(blocks):
        restart from the newest checkpoint at or before `block`
        while the schedule wants a checkpoint before `block`:      # `split`, a table look-up
            advance to its position, and push it on the stack
        advance to `block`, tape it, and transpose its steps, the last one first
        pop the checkpoint at `block`, if one is there

`_by_schedule` is this loop. Plans on levels, and plans that store every block, know all positions
when they are compiled: `_on_levels` and `_parts` are loops of static length, which a GPU runs
without waiting for its host. With a storage, `_reverse_segments` runs them for each segment.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve._compat.memories import is_on_host
from jax_revolve.engine.inverse import Walk, WalkBack
from jax_revolve.engine.offline import first_advances, tape_the_last_block
from jax_revolve.engine.reports import Reports
from jax_revolve.engine.slots import (
    Saved,
    at_slot,
    empty,
    is_walked_back,
    slots_used,
    tapes_the_last_block,
    write_slot,
)
from jax_revolve.engine.split import ONE, ZERO, SplitTable, integers, stacked
from jax_revolve.engine.tape.tape import Pullback, TapedStep, taped_step
from jax_revolve.progress.listener import REVERSE
from jax_revolve.schedule.levels import Level, levels_of
from jax_revolve.schedule.plan import Plan
from jax_revolve.step.cpu import in_a_branch, turns
from jax_revolve.step.linearized import Cotangents, of_init, zero_cotangents
from jax_revolve.step.loop import Operands
from jax_revolve.step.steps import Steps, element, for_loop, one_of
from jax_revolve.storage.buffers import Buffers, read, write
from jax_revolve.storage.stores import get

STEP, STOP, BLOCK, TARGET, TOP = range(5)


class _State(NamedTuple):
    """The stack of checkpoints, the cotangents so far, and the buffers of a block's tape, which
    each block overwrites.

    Entry 0 of the stack is `start`, by default the initial carry, and entry `top` the newest
    checkpoint. Entry i is the carry that enters block `positions[i]`, in slot `slot_index[i]`, or
    slot i without an index. Entries above the top are free, and so are their slots. Loops of static
    length have neither positions nor a top.
    """

    slots: list[Any]
    start: list[Any] | None
    positions: Any
    slot_index: jax.Array | None
    top: Any
    gradient: Operands
    taped: Buffers
    walk: Walk | None = None

    def slot(self, entry: jax.Array) -> jax.Array:
        return entry if self.slot_index is None else self.slot_index[entry]


def run_reverse(steps: Steps, plan: Plan, saved: Saved, cotangents: Cotangents) -> Operands:
    """The cotangents of the active operands, from the active results' cotangents."""
    assert steps.linearized is not None
    operands, activity = steps.operands, steps.linearized.activity
    gradient = Operands(
        consts=zero_cotangents(operands.consts, activity.consts),
        carry=cotangents.carry,
        xs=zero_cotangents(operands.xs, activity.xs),
    )
    sweep = _Sweep(steps, plan, taped_step(steps.linearized), saved.steps, cotangents.ys)
    gradient = sweep.run(saved, gradient)
    return gradient._replace(carry=of_init(gradient.carry, activity))


class _Sweep:
    """A sweep over `total` steps. Its methods take a state and return the state with some blocks
    reversed."""

    def __init__(
        self, steps: Steps, plan: Plan, step: TapedStep, total: Any, ct_ys: list[Any]
    ) -> None:
        self._steps, self._plan, self._step = steps, plan, step
        self._is_while = steps.loop.condition is not None
        self._total = total = total if self._is_while else plan.length
        self._is_taped = tapes_the_last_block(plan) and not self._is_while
        self._levels: list[Level] = []
        if not self._is_while:
            self._levels = levels_of(plan.length, plan.static_levels, plan.block_size)
        elif plan.stores_every_block(is_while=True):  # as many as there are at run time
            self._levels = [Level(plan.block_size)]
        self._advance = jax.jit(steps.advance)  # traced and lowered once for all its calls
        self._reports = Reports(steps.loop, REVERSE, total)
        before_step = lambda step: self._reports.before_step(total - 1 - step)  # noqa: E731
        size = 1 if is_walked_back(steps.loop, plan) else plan.block_size
        self._pullback = Pullback(self._step, steps, size, ct_ys, before_step)
        self._back: WalkBack | None = None

    def run(self, saved: Saved, gradient: Operands) -> Operands:
        """Pull the cotangents back through the loop."""
        plan, size = self._plan, self._plan.block_size
        blocks, taped, walk = -(-self._total // size), [], None
        if is_walked_back(self._steps.loop, plan):
            self._back = WalkBack(self._steps, self._step, self._pullback, saved)
            walk = self._back.begin()
        if self._is_taped:
            blocks -= 1
            start = size * blocks
            loop, count = self._reports.loop(start == 0), self._total - start
            if self._back is not None and walk is not None and saved.last_start is not None:
                gradient, walk = self._back.through_block(
                    start, count, saved.last_start, gradient, walk, loop
                )
            else:
                taped = saved.tape
                if taped is None:
                    taped = tape_the_last_block(self._steps, plan, saved)
                gradient = self._pullback.through_block(taped, start, count, gradient, loop)
        elif size > 1 and walk is None:
            taped = self._step.empty(size)
        stack = self._stack(saved)
        state = _State(saved.slots, saved.start, *stack, gradient, taped, walk)
        is_stored = saved.storage is not None and self._is_while
        if not is_stored and (not self._is_taped or plan.blocks > plan.tail + 1):
            state = self._reverse(plan.tail, blocks - plan.tail, state)
        if saved.storage is not None:
            state = self._reverse_segments(saved.storage, blocks, state)
        if self._back is None or state.walk is None:
            return state.gradient
        return self._back.trusted(state.gradient, state.walk)

    def _stack(self, saved: Saved) -> tuple[Any, Any, Any]:
        """Positions, slots and top after the forward sweep: as online placement left them, or as
        the plan determines. The stack of a while loop with a storage starts empty."""
        if self._levels or saved.positions is not None:
            return saved.positions, saved.slot_index, saved.top
        positions, starts = np.zeros(slots_used(self._plan), np.int32), []
        if not self._is_while:
            starts, _ = first_advances(self._plan)
        positions[: len(starts)] = starts
        return integers(positions), None, jnp.int32(max(len(starts) - 1, 0))

    def _at(self, slot: Any, state: _State) -> list[Any]:
        start = self._steps.initial() if state.start is None else state.start
        return at_slot(state.slots, slot, start)

    def _reverse_block(self, restarted: list[Any], block: Any, state: _State) -> _State:
        """Pull the cotangents back through a block, from the checkpoint at its start."""
        gradient, taped, size = state.gradient, state.taped, self._plan.block_size
        start = size * block
        # The last block of a while loop may be shorter. A scan's last block is not reversed here.
        count = jnp.minimum(size, self._total - start) if self._is_while else size
        if self._back is not None and state.walk is not None:
            gradient, walk = self._back.through_block(start, count, restarted, gradient, state.walk)
            return state._replace(gradient=gradient, walk=walk)
        if size == 1:  # the tape is used where it is computed
            inputs = self._steps.inputs(self._steps.whole(restarted), start)
            tape = lambda: self._step.run(self._steps, inputs)[2]  # noqa: E731
            taped = in_a_branch(start >= 0, self._step.step.closed, tape)
            gradient, _ = self._pullback.through_step(taped, start, gradient)
            return state._replace(gradient=gradient)
        taped = self._step.tape_steps(self._steps, taped, restarted, start, count)
        gradient = self._pullback.through_block(taped, start, count, gradient)
        return state._replace(gradient=gradient, taped=taped)

    def _reverse(self, first: Any, count: Any, state: _State) -> _State:
        """Reverse `count` blocks from `first` on, from the checkpoints on the device."""
        if not self._levels:
            return self._by_schedule(first, count, state)
        return self._parts(0, 0, 0, count, state) if self._is_while else self._on_levels(state)

    # In loops of static length

    def _on_levels(self, state: _State) -> _State:
        """Reverse the last part of each level, the innermost first, and then the parts before it.
        The forward sweep has stored the last parts, and may have taped the last block."""
        innermost = len(self._levels) - 1
        for depth in range(innermost, -1, -1):
            level = self._levels[depth]
            if count := level.last - (depth < innermost or self._is_taped):
                start = level.start // self._plan.block_size
                state = self._parts(depth, level.enclosing, start, count, state)
        return state

    def _parts(self, depth: int, enclosing: Any, start: Any, count: Any, state: _State) -> _State:
        """Reverse the first `count` parts of a level, the last one first. They lie in the part of
        the level above that starts at block `start`, with its checkpoint in slot `enclosing`."""
        level = self._levels[depth]
        blocks = level.size // self._plan.block_size
        is_far = any(map(is_on_host, state.slots))

        def slot_of(part: Any) -> Any:
            if isinstance(enclosing, int) and enclosing == level.base:
                return level.base + part
            return jnp.where(part == 0, enclosing, level.base + part)

        def reverse_part(turn: Any, fetched: tuple[Any, _State]) -> tuple[Any, _State]:
            part, (restarted, state) = count - 1 - turn, fetched
            first = start + blocks * part
            if is_far:  # fetch the next checkpoint while this part is reversed
                ahead = self._at(slot_of(jnp.maximum(part - 1, 0)), state)
            else:
                restarted, ahead = self._at(slot_of(part), state), None
            if depth + 1 == len(self._levels):
                return ahead, self._reverse_block(restarted, first, state)
            below = self._levels[depth + 1]
            state = state._replace(slots=self._fill(below, first, restarted, state.slots))
            return ahead, self._parts(depth + 1, slot_of(part), first, below.parts, state)

        fetched = self._at(slot_of(count - 1), state) if is_far else None
        loop = self._reports.loop(isinstance(start, int) and start == 0)
        return turns(loop, count, reverse_part, (fetched, state))[1]

    def _fill(self, level: Level, start: Any, restarted: list[Any], slots: list[Any]) -> list[Any]:
        """The slots with the checkpoints of a level's parts, in the whole part of the level above
        that starts at block `start`, computed from the checkpoint there."""
        first = self._plan.block_size * start

        def advance(j: Any, state: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
            restarted, slots = state
            restarted = self._steps.advance_by(level.size, first + level.size * j, restarted)
            return restarted, write_slot(slots, restarted, level.base + 1 + j)

        return for_loop(0, level.parts - 1, advance, (restarted, slots))[1]

    # With decisions of the schedule on the device

    def _by_schedule(self, first: Any, count: Any, state: _State) -> _State:
        """The loop of `revolve`. The path from the newest checkpoint to the next block to reverse
        is an array of five numbers: the next step, and the step to stop before; the block; the
        block to stop before, where the schedule stores unless it is the block to reverse; and the
        top of the stack, without a checkpoint at the block. They are one array because on a CPU
        each scalar would be a kernel that takes as long as a light step.
        """
        split, size = SplitTable(self._plan, state.positions.size), np.int32(self._plan.block_size)

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
            at, carry = self._advance(at, carry)
            top = lax.add(element(at, TOP), ONE)
            slots = write_slot(slots, carry, state.slot(top))
            (positions,) = write([positions], [element(at, TARGET)], top)
            top = lax.expand_dims(top, (0,))
            at = path(one_of(at, TARGET), one_of(at, BLOCK), top, top)
            return at, carry, slots, positions

        # Invariant: the blocks from `done[BLOCK]` on are reversed, and entry `done[TOP]` of the
        # stack is the newest one before that block.
        def reverse_block(_: Any, done_state: tuple[jax.Array, _State]) -> tuple[jax.Array, _State]:
            done, state = done_state
            block, top = lax.sub(element(done, BLOCK), ONE), element(done, TOP)
            newest = self._at(state.slot(top), state)
            (position,) = read([state.positions], top)
            # A checkpoint at the block itself is read for the last time.
            is_last = lax.convert_element_type(lax.eq(position, block), jnp.int32)
            numbers = position, block, top, lax.sub(top, is_last)
            at = path(*(lax.expand_dims(n, (0,)) for n in numbers))
            at, newest, slots, positions = lax.while_loop(
                lambda stored: lax.lt(element(stored[0], TARGET), element(stored[0], BLOCK)),
                store,
                (at, newest, state.slots, state.positions),
            )
            at, restarted = self._advance(at, newest)
            state = state._replace(slots=slots, positions=positions)
            return at, self._reverse_block(restarted, element(at, BLOCK), state)

        # The path as if a block after the last one, without a checkpoint, had been reversed.
        at = stacked(ZERO, ZERO, jnp.asarray(first + count, jnp.int32), ZERO, state.top)
        loop = self._reports.loop(isinstance(first, int) and first == 0)
        return turns(loop, count, reverse_block, (at, state))[1]

    # From a storage

    def _reverse_segments(self, buffers: Buffers, blocks: Any, state: _State) -> _State:
        """Reverse the segments, whose entering carries are in the storage, the last one first. In a
        while loop, the tail is one of them, and the loop may have stopped in any of them."""
        steps, plan, storage = self._steps, self._plan, self._plan.storage_of_segments
        assert storage is not None
        count = plan.segments
        if self._is_while:
            initial = steps.initial()
            state = state._replace(slots=empty(plan.checkpoints, initial, plan), start=initial)
            count = jnp.minimum(-(-blocks // plan.segment), plan.segments + 1)
        types = list(map(jax.typeof, steps.initial()))

        def reverse_segment(turn: jax.Array, state: _State) -> _State:
            segment = count - 1 - turn
            first, size = plan.segment * segment, plan.segment
            if self._is_while:
                is_whole = (segment < plan.segments) & (first + size <= blocks)
                size = jnp.where(is_whole, size, blocks - first)
            restarted = get(storage, buffers, types, segment)
            positions, top = state.positions.at[0].set(first), jnp.zeros_like(state.top)
            state = state._replace(start=restarted, positions=positions, top=top)
            return self._reverse(first, size, state)

        return self._reports.loop(True)(0, count, reverse_segment, state)
