"""The reverse sweep: the schedule with its stack on the device."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve._compat import is_on_host
from jax_revolve.engine.offline import tape_the_last_block
from jax_revolve.engine.reports import Reports
from jax_revolve.engine.slots import Held, at_level, empty, tapes_the_last_block, write_slot
from jax_revolve.engine.split import BLOCK, POSITION, TARGET, TOP, Way
from jax_revolve.engine.tape.tape import Pullback, Tape
from jax_revolve.progress.listener import REVERSE
from jax_revolve.schedule.levels import Level, levels_of
from jax_revolve.schedule.two_level import AnyPlan, TwoLevelPlan
from jax_revolve.step.activity import Activity
from jax_revolve.step.cpu import in_a_branch, turns
from jax_revolve.step.loop import Operands, pick
from jax_revolve.step.pullback import Cotangents, of_init, zero_cotangents
from jax_revolve.step.steps import Steps
from jax_revolve.storage.buffers import Buffers
from jax_revolve.storage.stores import get

Reversed = tuple[Operands, Buffers]
"""The accumulated cotangents, and the reusable residual buffers."""

State = tuple[Held, Reversed]
"""The checkpoints, and what is reversed so far."""


def run_reverse(
    steps: Steps, plan: AnyPlan, activity: Activity, held: Held, cotangents: Cotangents
) -> Operands:
    """The cotangents of the active operands, from those of the active results."""
    operands = steps.operands
    gradient = Operands(
        consts=zero_cotangents(operands.consts, activity.consts),
        carry=cotangents.carry,
        xs=zero_cotangents(operands.xs, activity.xs),
    )
    sweep = _Sweep(steps, plan, activity, held.steps, cotangents.ys)
    gradient = sweep.run(held, gradient)
    return gradient._replace(carry=of_init(gradient.carry, activity))


class _Sweep:
    """A sweep over `total` steps. From an element of its state to the next, blocks are reversed."""

    def __init__(
        self, steps: Steps, plan: AnyPlan, activity: Activity, total: Any, ct_ys: list[Any]
    ) -> None:
        self._steps, self._plan, self._activity, self._total = steps, plan, activity, total
        self._is_while = steps.loop.condition is not None
        self._reports = Reports(steps.loop, REVERSE, total)
        self._tape = Tape(steps, activity, plan.block_size)
        before_step = lambda step: self._reports.before_step(total - 1 - step)  # noqa: E731
        self._pullback = Pullback(self._tape, ct_ys, before_step)
        self._levels: list[Level] = []

    def run(self, held: Held, gradient: Operands) -> Operands:
        """From the cotangents after the loop to those before it."""
        plan, steps = self._plan, self._steps
        first = plan.tail if isinstance(plan, TwoLevelPlan) else 0
        blocks = -(-self._total // plan.block_size)
        is_taped = tapes_the_last_block(plan) and not self._is_while
        taped = self._tape.empty() if plan.block_size > 1 and not is_taped else []
        if is_taped:
            taped = held.tape
            if taped is None:
                taped = tape_the_last_block(steps, plan, self._activity, held)
            blocks = blocks - 1
            start = plan.block_size * blocks
            loop, count = self._loop(start == 0), self._total - start
            gradient = self._pullback.of_block(taped, start, count, gradient, loop)
        state = (held._replace(tape=None, stores=None), (gradient, taped))
        is_in_storage = held.stores is not None and held.start is None
        if not is_in_storage and (not is_taped or plan.blocks > first + 1):
            state = self._reverse(first, blocks, state)
        if held.stores is not None:
            state = self._reverse_stored(held.stores, blocks, state)
        return state[1][0]

    def _loop(self, is_last: bool) -> Any:
        return self._reports.last_loop if is_last else lax.fori_loop

    def _reverse_block(self, restarted: list[Any], block: Any, state: Reversed) -> Reversed:
        """From the cotangents after a block, where a checkpoint is given, to those before it."""
        gradient, taped = state
        size = self._plan.block_size
        start = size * block
        if size == 1:  # the tape is used where it is computed
            _, *inputs = self._steps.inputs(self._steps.whole(restarted), start)
            of_step = in_a_branch(start >= 0, lambda: self._tape.run(*inputs)[2])
            gradient, _ = self._pullback.of_step(of_step, start, gradient)
            return gradient, taped
        # Of a while loop the last block is here, and may be shorter.
        count = jnp.minimum(size, self._total - start) if self._is_while else size
        taped = self._tape.record(taped, restarted, start, count)
        return self._pullback.of_block(taped, start, count, gradient), taped

    def _reverse(self, first: Any, blocks: Any, state: State) -> State:
        """From the cotangents after the first `blocks` blocks to those before block `first`, from
        the checkpoints that are held of them."""
        plan = self._plan
        if plan.static_levels and not self._is_while:
            return self._on_levels(state)
        if plan.stores_every_block(is_while=self._is_while):
            # The number of blocks is known at run time only.
            self._levels = [Level(plan.block_size, 0, 0, 0)]
            return self._reverse_parts(0, 0, 0, blocks, state)
        return self._by_schedule(first, blocks, state)

    def _on_levels(self, state: State) -> State:
        """Reverse the last part of each level, the innermost first: it is stored already, and the
        last block may be done. Then reverse the parts before it."""
        plan = self._plan
        self._levels = levels = levels_of(plan.length, plan.static_levels, plan.block_size)
        entered = [(0, 0)]
        for level in levels:
            slot, start = entered[-1]
            part = level.last - 1
            entered.append((level.slot(part, slot), start + part * (level.size // plan.block_size)))
        for depth in reversed(range(len(levels))):
            slot, start = entered[depth]
            is_done = depth < len(levels) - 1 or tapes_the_last_block(plan)
            count = levels[depth].last - is_done
            if count:
                state = self._reverse_parts(depth, slot, start, count, state)
        return state

    def _reverse_parts(
        self, depth: int, enclosing: Any, start: Any, count: Any, state: State
    ) -> State:
        """Reverse the first `count` parts of a level, the last one first. They are in a part of the
        level above that starts at block `start` and whose checkpoint is in slot `enclosing`."""
        level = self._levels[depth]
        blocks = level.size // self._plan.block_size
        is_far = any(map(is_on_host, state[0].slots))

        def slot_of(part: Any) -> Any:
            if isinstance(enclosing, int) and enclosing == level.base:
                return level.base + part
            return jnp.where(part == 0, enclosing, level.base + part)

        def checkpoint(part: Any, held: Held) -> list[Any]:
            return at_level(slot_of(part), self._steps.initial(), held)

        def reverse_part(turn: Any, fetched: tuple[Any, State]) -> tuple[Any, State]:
            part, (restarted, (held, state)) = count - 1 - turn, fetched
            first = start + blocks * part
            if is_far:  # the next checkpoint is on its way while this part is reversed
                ahead = checkpoint(jnp.maximum(part - 1, 0), held)
            else:
                restarted, ahead = checkpoint(part, held), None
            if depth + 1 == len(self._levels):
                return ahead, (held, self._reverse_block(restarted, first, state))
            below = self._levels[depth + 1]
            held = held._replace(slots=self._fill(below, first, restarted, held.slots))
            parts = depth + 1, slot_of(part), first, below.parts
            return ahead, self._reverse_parts(*parts, (held, state))

        fetched = checkpoint(count - 1, state[0]) if is_far else None
        loop = self._loop(isinstance(start, int) and start == 0)
        return turns(loop, count, reverse_part, (fetched, state))[1]

    def _fill(self, level: Level, start: Any, restarted: list[Any], slots: list[Any]) -> list[Any]:
        """The slots with the parts of a level inside a whole part of the level above, which starts
        at block `start`, from the checkpoint there."""
        first = self._plan.block_size * start

        def advance(j: Any, state: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
            restarted, slots = state
            restarted = self._steps.advance_by(level.size, first + level.size * j, restarted)
            return restarted, write_slot(slots, restarted, level.base + 1 + j)

        return lax.fori_loop(0, level.parts - 1, advance, (restarted, slots))[1]

    def _by_schedule(self, first: Any, blocks: Any, state: State) -> State:
        """`_reverse` with decisions of the schedule, which are made on the device."""
        steps, way = self._steps, Way(self._plan, state[0].positions.size)

        def reverse_block(_: Any, state: tuple[jax.Array, State]) -> tuple[jax.Array, State]:
            at, (held, state_of_blocks) = state
            held, restarted, at = _store_on_the_way(steps, way, held, at)
            at, restarted = steps.advance(at, restarted)
            block, top = at[BLOCK], at[TOP]
            state_of_blocks = self._reverse_block(restarted, block, state_of_blocks)
            top = top - (at[POSITION] == block).astype(jnp.int32)
            return way.to_block(block - 1, held.positions, top), (held, state_of_blocks)

        at = way.to_block(blocks - 1, state[0].positions, state[0].top)
        loop = self._loop(isinstance(first, int) and first == 0)
        return turns(loop, blocks - first, reverse_block, (at, state))[1]

    def _reverse_stored(self, stores: Buffers, blocks: Any, state: State) -> State:
        """From the cotangents before the tail to those before the loop: every part that starts in
        the storage. In a loop of unknown length the tail does so, too."""
        steps, plan = self._steps, self._plan
        assert isinstance(plan, TwoLevelPlan)
        moves = _moves(plan, with_tail=self._is_while)
        if self._is_while:
            initial = steps.initial()
            slots = empty(plan.checkpoints, initial, plan)
            state = (state[0]._replace(slots=slots, start=initial), state[1])
        types = pick(list(map(jax.typeof, steps.operands.carry)), steps.restart)

        def reverse_move(number: jax.Array, state: State) -> State:
            store, start, stop, position, is_last = jnp.asarray(moves)[number]
            held, state_of_blocks = state
            restarted = get(plan.storage, stores, types, store, is_last)
            span = plan.block_size * jnp.stack([position, start])
            _, restarted = steps.advance(span, restarted)
            positions = held.positions.at[0].set(start)
            held = held._replace(start=restarted, positions=positions, top=jnp.zeros_like(held.top))
            return self._reverse(start, jnp.minimum(stop, blocks), (held, state_of_blocks))

        not_reached = jnp.sum(jnp.asarray(moves[:, 1]) >= blocks, dtype=jnp.int32)
        first = not_reached if self._is_while else 0
        return self._reports.last_loop(first, len(moves), reverse_move, state)


def _moves(plan: TwoLevelPlan, *, with_tail: bool) -> np.ndarray:
    """The moves as a table: which carry to read, the first block to reverse and the one to stop
    before, which block the carry enters, and whether it is read for the last time."""
    positions = np.array([*plan.stores, plan.tail], np.int32)
    moves = np.array(plan.parts, np.int32).T
    if with_tail:
        tail = np.array([[len(plan.stores), plan.tail, plan.blocks]], np.int32)
        moves = np.concatenate([tail, moves])
    stores = moves[:, 0]
    is_last = np.append(stores[1:] != stores[:-1], True)  # all parts of a segment are neighbors
    return np.column_stack([moves, positions[stores], is_last.astype(np.int32)])


def _store_on_the_way(
    steps: Steps, way: Way, held: Held, at: jax.Array
) -> tuple[Held, list[Any], jax.Array]:
    """From the newest checkpoint towards the block, storing where the schedule wants it.

    Returns the stack, the newest carry in it, and where that is. A checkpoint at the block itself
    would never be read, so none is placed there.
    """

    def worth_storing(state: tuple[Held, list[Any], jax.Array]) -> jax.Array:
        _, _, at = state
        return at[TARGET] < at[BLOCK]

    def store(state: tuple[Held, list[Any], jax.Array]) -> tuple[Held, list[Any], jax.Array]:
        held, carry, at = state
        target, top = at[TARGET], at[TOP] + 1
        _, carry = steps.advance(way.to_target(at), carry)
        slots = write_slot(held.slots, carry, held.slot(top))
        positions = lax.dynamic_update_index_in_dim(held.positions, target, top, 0)
        held = held._replace(slots=slots, positions=positions)
        return held, carry, way.from_position(target, at[BLOCK], top)

    state = (held, at_level(at[TOP], steps.initial(), held), at)
    return lax.while_loop(worth_storing, store, state)
