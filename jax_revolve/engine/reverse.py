"""The reverse sweep: the schedule with its stack on the device."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve._compat import is_on_host, varying_axes
from jax_revolve.engine.bars import Bar
from jax_revolve.engine.offline import tape_the_last_block
from jax_revolve.engine.slots import Held, at_level, empty, tapes_the_last_block, write_slot
from jax_revolve.engine.split import BLOCK, POSITION, TARGET, TOP, Way
from jax_revolve.engine.tape.branch import in_a_branch
from jax_revolve.engine.tape.tape import Tape
from jax_revolve.progress.listener import REVERSE
from jax_revolve.schedule.levels import Level, levels_of
from jax_revolve.schedule.two_level import AnyPlan, TwoLevelPlan
from jax_revolve.step.activity import Activity
from jax_revolve.step.loop import Operands, pick, substitute
from jax_revolve.step.pullback import Cotangents, of_init, zero_cotangents
from jax_revolve.step.steps import Steps
from jax_revolve.storage.buffers import Buffers
from jax_revolve.storage.stores import get

T = TypeVar("T")

Reversal = tuple[Operands, Buffers]
"""The accumulated cotangents, and the reusable residual buffers."""

State = tuple[Held, Reversal]
"""The checkpoints, and the reversal so far."""


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
    if held.tape is None and steps.loop.condition is None and tapes_the_last_block(plan):
        held = held._replace(tape=tape_the_last_block(steps, plan, activity, held))
    bar, blocks = Bar(steps.loop, REVERSE, held.steps), -(-held.steps // plan.block_size)
    if plan.block_size == 1:
        by, reversal = _OneByOne(steps, activity, cotangents), (gradient, [])
    else:
        by = _InBlocks(steps, plan, activity, held, cotangents)
        reversal = by.begin(bar, gradient)
        if held.tape is not None:
            blocks = blocks - 1  # the last one is done
    parts = _Parts(steps, plan, by, bar)
    state = (held._replace(tape=None, stores=None), reversal)
    if held.stores is None or held.start is not None:
        first = plan.tail if isinstance(plan, TwoLevelPlan) else 0
        if held.tape is None or plan.blocks > first + 1:
            state = parts.reverse(first, blocks, state)
    if held.stores is not None:
        state = parts.reverse_stored(held, blocks, state)
    gradient, _ = state[1]
    return gradient._replace(carry=of_init(gradient.carry, activity))


class _OneByOne:
    """Blocks of a single step: a tape is used where it is computed."""

    def __init__(self, steps: Steps, activity: Activity, cotangents: Cotangents) -> None:
        self._steps, self._ct_ys = steps, cotangents.ys
        self._tape = Tape(steps, activity)
        self._same = self._tape.same_for_all()

    def reverse(
        self, bar: Bar, restarted: list[Any], step: jax.Array, reversal: Reversal
    ) -> Reversal:
        """From the cotangents after a step, where a checkpoint is given, to those before it."""
        del bar
        gradient, tape = reversal
        _, *inputs = self._steps.inputs(self._steps.whole(restarted), step)
        taped = in_a_branch(step >= 0, lambda: self._tape.run(*inputs)[2])
        gradient, _ = self._tape.pull_back_step(taped, self._same, step, gradient, self._ct_ys)
        return gradient, tape


class _InBlocks:
    """Blocks of several steps, taped whole. The last one's tape may be held already."""

    def __init__(
        self, steps: Steps, plan: AnyPlan, activity: Activity, held: Held, cotangents: Cotangents
    ) -> None:
        self._tape, self._size = Tape(steps, activity, plan.block_size), plan.block_size
        self._held, self._ct_ys = held, cotangents.ys
        self._same = self._tape.same_for_all()

    def begin(self, bar: Bar, gradient: Operands) -> Reversal:
        """The cotangents before the last block, if its tape is held."""
        held, size = self._held, self._size
        if held.tape is None:
            return gradient, self._tape.empty()
        assert isinstance(held.steps, int)
        start = size * ((held.steps - 1) // size)
        return self._pull_back(bar, held.tape, start, held.steps - start, gradient)

    def reverse(
        self, bar: Bar, restarted: list[Any], block: jax.Array, reversal: Reversal
    ) -> Reversal:
        """From the cotangents after a block, where a checkpoint is given, to those before it."""
        gradient, tape = reversal
        start, count = self._size * block, self._size
        if self._held.tape is None:  # then the last block is here, and may be shorter
            count = jnp.minimum(count, self._held.steps - start)
        tape = self._tape.record(tape, restarted, start, count)
        return self._pull_back(bar, tape, start, count, gradient)

    def _pull_back(
        self, bar: Bar, tape: Buffers, start: Any, count: Any, gradient: Operands
    ) -> Reversal:
        after = self._held.steps - start - count if bar.is_shown else 0

        def loop(length: Any, body: Any, state: Any, before: Any) -> Any:
            return bar.fori_loop(0, length, body, state, before=after + before)

        gradient = self._tape.pull_back(tape, self._same, start, count, gradient, self._ct_ys, loop)
        return gradient, tape


class _Parts:
    """Parts of the loop, each reversed from the checkpoints that are held of it."""

    def __init__(self, steps: Steps, plan: AnyPlan, by: "_OneByOne | _InBlocks", bar: Bar) -> None:
        self._steps, self._plan, self._by, self._bar = steps, plan, by, bar
        self._levels: list[Level] = []

    def reverse(self, first: Any, blocks: Any, state: State) -> State:
        """From the cotangents after the first `blocks` blocks to those before block `first`."""
        plan = self._plan
        if plan.static_levels and self._steps.loop.condition is None:
            return self._on_levels(state)
        if plan.stores_every_block(is_while=self._steps.loop.condition is not None):
            # The number of blocks is known at run time only.
            self._levels = [Level(plan.block_size, 0, 0, 0)]
            return self._reverse_parts(self._bar, 0, 0, 0, blocks, state)
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
                state = self._reverse_parts(self._bar, depth, slot, start, count, state)
        return state

    def _reverse_parts(
        self, bar: Bar, depth: int, enclosing: Any, start: Any, count: Any, state: State
    ) -> State:
        """Reverse the first `count` parts of a level, the last one first. They are in a part of the
        level above that starts at block `start` and whose checkpoint is in slot `enclosing`."""
        level, taken, block_size = self._levels[depth], state[0].steps, self._plan.block_size
        blocks = level.size // block_size

        def slot_of(part: Any) -> Any:
            if isinstance(enclosing, int) and enclosing == level.base:
                return level.base + part
            return jnp.where(part == 0, enclosing, level.base + part)

        def reverse_from(bar: Bar, part: Any, restarted: list[Any], state: State) -> State:
            held, reversal = state
            first = start + blocks * part
            if depth + 1 == len(self._levels):
                return held, self._by.reverse(bar, restarted, first, reversal)
            below = self._levels[depth + 1]
            held = held._replace(slots=self._fill(below, first, restarted, held.slots))
            state = held, reversal
            return self._reverse_parts(bar, depth + 1, slot_of(part), first, below.parts, state)

        def checkpoint(part: Any, held: Held) -> list[Any]:
            return at_level(slot_of(part), self._steps.initial(), held)

        def reverse_part(bar: Bar, turn: Any, state: State) -> State:
            part = count - 1 - turn
            return reverse_from(bar, part, checkpoint(part, state[0]), state)

        def fetch_and_reverse(
            bar: Bar, turn: Any, fetched: tuple[list[Any], State]
        ) -> tuple[list[Any], State]:
            part, (restarted, state) = count - 1 - turn, fetched
            ahead = checkpoint(jnp.maximum(part - 1, 0), state[0])
            return ahead, reverse_from(bar, part, restarted, state)

        def transposed(turn: jax.Array) -> jax.Array:
            return jnp.maximum(taken - block_size * start - level.size * (count - turn), 0)

        run = partial(bar.outer_loop, size=level.size, before=transposed, ends=start == 0)
        if any(map(is_on_host, state[0].slots)):
            # The next checkpoint is on its way while this part is reversed.
            fetched = checkpoint(count - 1, state[0])
            return _turns(run, count, fetch_and_reverse, (fetched, state))[1]
        return _turns(run, count, reverse_part, state)

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
        """`reverse` with decisions of the schedule, which are made on the device."""
        steps, plan, size = self._steps, self._plan, self._plan.block_size
        taken, way = state[0].steps, Way(plan, state[0].positions.size)

        def reverse_block(
            bar: Bar, _: jax.Array, state: tuple[jax.Array, State]
        ) -> tuple[jax.Array, State]:
            at, (held, reversal) = state
            held, restarted, at = _store_on_the_way(steps, way, held, at)
            at, restarted = steps.advance(at, restarted)
            block, top = at[BLOCK], at[TOP]
            reversal = self._by.reverse(bar, restarted, block, reversal)
            top = top - (at[POSITION] == block).astype(jnp.int32)
            return way.to_block(block - 1, held.positions, top), (held, reversal)

        def transposed(count: jax.Array) -> jax.Array:
            return jnp.maximum(taken - size * (blocks - count), 0)

        at = way.to_block(blocks - 1, state[0].positions, state[0].top)
        run = partial(self._bar.outer_loop, size=size, before=transposed, ends=first == 0)
        return _turns(run, blocks - first, reverse_block, (at, state))[1]

    def reverse_stored(self, held: Held, blocks: Any, state: State) -> State:
        """From the cotangents before the tail to those before the loop: every part that starts in
        the storage. In a loop of unknown length the tail does so, too."""
        steps, plan = self._steps, self._plan
        assert isinstance(plan, TwoLevelPlan)
        assert held.stores is not None
        stores, is_known = held.stores, held.start is not None
        moves = _moves(plan, with_tail=not is_known)
        if not is_known:
            initial = steps.initial()
            slots = empty(plan.checkpoints, initial, plan)
            state = (state[0]._replace(slots=slots, start=initial), state[1])
        types = pick(list(map(jax.typeof, steps.operands.carry)), steps.restart)

        def reverse_move(number: jax.Array, state: State) -> State:
            store, start, stop, position, is_last = jnp.asarray(moves)[number]
            held, reversal = state
            restarted = get(plan.storage, stores, types, store, is_last)
            span = plan.block_size * jnp.stack([position, start])
            _, restarted = steps.advance(span, restarted)
            positions = held.positions.at[0].set(start)
            held = held._replace(start=restarted, positions=positions, top=jnp.zeros_like(held.top))
            return self.reverse(start, jnp.minimum(stop, blocks), (held, reversal))

        not_reached = jnp.sum(jnp.asarray(moves[:, 1]) >= blocks, dtype=jnp.int32)
        return lax.fori_loop(0 if is_known else not_reached, len(moves), reverse_move, state)


def _turns(run: Callable[..., T], turns: Any, body: Callable[..., T], state: T) -> T:
    """`run(turns, body, state)`, a loop around blocks.

    XLA unrolls a single turn, and then tapes before it has used the tape up: two tapes. A barrier
    between the two prevents that. It is removed before XLA for CPU puts operations in order, so
    there the number of turns is hidden from XLA, at the price of a wait on a GPU.
    """
    if not isinstance(turns, int) or turns != 1:
        return run(turns, body, state)

    def once(state: T) -> T:
        return run(1, body, _barrier(state))

    def hidden(state: T) -> T:
        return run(lax.optimization_barrier(jnp.int32(1)), body, state)

    return lax.platform_dependent(state, cpu=hidden, default=once)


def _barrier(state: T) -> T:
    """A barrier between what made the values and what uses them. Values that vary over different
    device axes have one each, because its results vary over the axes of all its operands."""
    leaves, treedef = jax.tree.flatten(state)
    axes = [varying_axes(jax.typeof(leaf)) for leaf in leaves]
    for each in set(axes):
        alike = [a == each for a in axes]
        leaves = substitute(leaves, alike, lax.optimization_barrier(pick(leaves, alike)))
    return jax.tree.unflatten(treedef, leaves)


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
