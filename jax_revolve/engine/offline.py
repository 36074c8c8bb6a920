"""The forward sweep of a loop of known length: the forward half of the schedule, and the tape of
the last block."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve._compat import is_on_host, zeros
from jax_revolve.engine.bars import Bar
from jax_revolve.engine.slots import (
    Held,
    at_level,
    empty,
    read_slot,
    slots_used,
    tapes_the_last_block,
    write_slot,
)
from jax_revolve.engine.split import integers
from jax_revolve.engine.tape.tape import Tape
from jax_revolve.progress.listener import FORWARD
from jax_revolve.schedule.binomial import first_positions
from jax_revolve.schedule.levels import levels_of
from jax_revolve.schedule.two_level import AnyPlan, TwoLevelPlan
from jax_revolve.step.activity import Activity
from jax_revolve.step.loop import pick, substitute
from jax_revolve.step.steps import Steps
from jax_revolve.storage.buffers import Buffers, write
from jax_revolve.storage.stores import in_storage, put

CarryAndYs = tuple[list[Any], list[Any]]
"""The carry, and the ys that are kept."""

State = tuple[CarryAndYs, list[Any]]
"""How far the sweep has come, and the checkpoints so far."""


def run_forward_offline(
    steps: Steps, plan: AnyPlan, activity: Activity, keep_ys: Sequence[bool], *, tapes: bool = True
) -> tuple[list[Any], Held]:
    """The final carry and the ys that are kept; and the checkpoints, if it `tapes` with the last
    block's tape."""
    loop = steps.loop
    ys = [zeros(t) for t in pick(loop.results(loop.output_types)[1], keep_ys)]
    bar, progress = Bar(loop, FORWARD, plan.length), (steps.operands.carry, ys)
    start = stores = None
    if isinstance(plan, TwoLevelPlan):
        progress, stores = _write_and_advance(steps, plan, keep_ys, bar, progress)
        start = pick(progress[0], steps.restart)
    progress, slots = _store_and_advance(steps, plan, keep_ys, bar, progress)
    tape = None
    if tapes_the_last_block(plan):
        run_last = _tape_and_advance if tapes else _advance_to_the_end
        progress, tape = run_last(steps, plan, activity, keep_ys, bar, progress)
    carry, ys = progress
    return [*carry, *ys], Held(slots, None, None, None, None, tape, start, stores)


def _store_and_advance(
    steps: Steps, plan: AnyPlan, keep_ys: Sequence[bool], bar: Bar, progress: CarryAndYs
) -> State:
    """Advance until the schedule first tapes. Returns the slots, too."""
    slots = empty(slots_used(plan), pick(progress[0], steps.restart), plan)
    starts, stops = _first_advances(plan)
    if plan.static_levels:
        runs = _runs_on_levels(plan)
    elif len(np.unique(stops - starts)) <= 1:
        runs = _runs_alike(plan.block_size, starts, stops)
    else:
        advance = partial(_advance_to_the_host, steps, plan, keep_ys, bar, (starts, stops))
        if any(map(is_on_host, slots)):
            return advance((progress, slots))
        # On a CPU nothing waits, and a carry in the slots makes a gradient up to 4 times slower.
        in_slots = partial(_advance_in_slots, steps, plan, keep_ys, bar, (starts, stops))
        return lax.platform_dependent((progress, slots), cpu=advance, default=in_slots)
    ends = not tapes_the_last_block(plan)
    return _advance_in_runs(steps, keep_ys, bar, runs, ends, write_slot, (progress, slots))


def _write_and_advance(
    steps: Steps, plan: TwoLevelPlan, keep_ys: Sequence[bool], bar: Bar, progress: CarryAndYs
) -> tuple[CarryAndYs, Buffers]:
    """Advance as far as the schedule writes to the storage. Returns the storage's buffers, too."""
    stops = np.array([*plan.stores[1:], plan.tail], np.int32)
    runs = _runs_alike(plan.block_size, np.array(plan.stores, np.int32), stops)
    kept = in_storage(plan.storage, pick(progress[0], steps.restart), len(plan.stores))
    write_store = partial(put, plan.storage)
    return _advance_in_runs(steps, keep_ys, bar, runs, False, write_store, (progress, kept))


class _Run(NamedTuple):
    """So many advances of `size` steps each, one after the other, from step `start` on. The carry
    that enters the first is stored as number `first`, the one of advance j > 0 as `base + j`."""

    start: int
    size: int
    advances: int
    first: int
    base: int


def _runs_on_levels(plan: AnyPlan) -> list[_Run]:
    """The advances of a plan on levels: on each level, to the start of its last part."""
    runs, start, slot = [], 0, 0
    levels = levels_of(plan.length, plan.static_levels, plan.block_size)
    for level in levels:
        to_end = level is levels[-1] and not tapes_the_last_block(plan)
        count = level.last if to_end else level.last - 1
        if count:
            runs.append(_Run(start, level.size, count, slot, level.base))
        start += level.size * (level.last - 1)
        slot = level.slot(level.last - 1, slot)
    return runs


def _runs_alike(block_size: int, starts: np.ndarray, stops: np.ndarray) -> list[_Run]:
    """Consecutive advances as runs of the same length, of which a schedule for a storage has
    few."""
    sizes = stops - starts
    firsts = np.flatnonzero(np.diff(sizes, prepend=-1)).tolist()
    return [
        _Run(block_size * int(starts[i]), block_size * int(sizes[i]), end - i, i, i)
        for i, end in zip(firsts, [*firsts[1:], len(sizes)], strict=True)
    ]


def _step_with_ys(
    steps: Steps, keep_ys: Sequence[bool], i: Any, progress: CarryAndYs
) -> CarryAndYs:
    carry, ys = progress
    _, *inputs = steps.inputs(carry, i)
    carry, y = steps.loop.step(steps.operands.consts, *inputs)
    return carry, write(ys, pick(y, keep_ys), steps.loop.entry(i))


def _advance_in_runs(
    steps: Steps,
    keep_ys: Sequence[bool],
    bar: Bar,
    runs: Sequence[_Run],
    ends: bool,
    keep: Callable[[list[Any], list[Any], Any], list[Any]],
    state: State,
) -> State:
    """All runs, in loops of static length. `keep(kept, checkpoint, number)` returns `kept` with one
    more checkpoint. `ends` says whether the sweep ends with the last run."""
    for run in runs:

        def keep_and_advance(bar: Bar, j: Any, state: State, run: _Run = run) -> State:
            progress, kept = state
            number = run.base + j
            if run.first != run.base:
                number = jnp.where(j == 0, run.first, number)
            kept = keep(kept, pick(progress[0], steps.restart), number)
            start = run.start + run.size * j
            step = lambda i, progress: _step_with_ys(steps, keep_ys, start + i, progress)  # noqa: E731
            return bar.fori_loop(0, run.size, step, progress, before=start), kept

        before = lambda j, run=run: run.start + run.size * j  # noqa: E731
        is_end = ends and run is runs[-1]
        state = bar.outer_loop(
            run.advances, keep_and_advance, state, size=run.size, before=before, ends=is_end
        )
    return state


def _advance_in_slots(
    steps: Steps,
    plan: AnyPlan,
    keep_ys: Sequence[bool],
    bar: Bar,
    advances: tuple[np.ndarray, np.ndarray],
    state: State,
) -> State:
    """Advances of unlike lengths, each from a checkpoint, in one loop of static length.

    The carry lives in the slots: a step reads it from the slot that is next to be complete and
    writes it to where the following step reads it. That is the same slot until its position is
    reached. So there is no decision, and no copy besides the one that any loop makes.
    """
    starts, stops = (plan.block_size * ends for ends in advances)
    first, last, stop = int(starts[0]), int(starts[-1]), int(stops[-1])
    others = [not is_stored for is_stored in steps.restart]

    def whole(stored: list[Any], rest: list[Any]) -> list[Any]:
        carry = substitute(steps.operands.carry, steps.restart, stored)
        return substitute(carry, others, rest)

    def number(i: Any) -> Any:
        """The number of the first checkpoint that is not before step `i`."""
        return jnp.sum(jnp.asarray(starts, jnp.int32) < i, dtype=jnp.int32)

    def step_in_slots(i: Any, state: State) -> State:
        (rest, ys), slots = state
        progress = whole(read_slot(slots, number(i)), rest), ys
        carry, ys = _step_with_ys(steps, keep_ys, i, progress)
        slots = write_slot(slots, pick(carry, steps.restart), number(i + 1))
        return (pick(carry, others), ys), slots

    def step(i: Any, progress: CarryAndYs) -> CarryAndYs:
        return _step_with_ys(steps, keep_ys, last + i, progress)

    (carry, ys), slots = state
    slots = write_slot(slots, pick(carry, steps.restart), 0)
    state = (pick(carry, others), ys), slots
    (rest, ys), slots = bar.fori_loop(first, last, step_in_slots, state)
    progress = whole(read_slot(slots, len(starts) - 1), rest), ys
    return bar.fori_loop(0, stop - last, step, progress, before=last), slots


def _advance_to_the_host(
    steps: Steps,
    plan: AnyPlan,
    keep_ys: Sequence[bool],
    bar: Bar,
    advances: tuple[np.ndarray, np.ndarray],
    state: State,
) -> State:
    """Advances of unlike lengths, each from a checkpoint in the host's memory. The loop of each has
    a length that is looked up: a transfer for each step would take longer than a wait."""
    starts, stops = (plan.block_size * ends for ends in advances)

    def advance(bar: Bar, number: jax.Array, state: State) -> State:
        progress, slots = state
        slots = write_slot(slots, pick(progress[0], steps.restart), number)
        start, stop = (jnp.asarray(ends, jnp.int32)[number] for ends in (starts, stops))
        return bar.fori_loop(start, stop, partial(_step_with_ys, steps, keep_ys), progress), slots

    return bar.outer_loop(
        len(stops),
        advance,
        state,
        size=int(stops[-1] - starts[0]) // len(stops),
        before=lambda number: jnp.asarray(starts, jnp.int32)[number],
        ends=not tapes_the_last_block(plan),
    )


def _tape_and_advance(
    steps: Steps,
    plan: AnyPlan,
    activity: Activity,
    keep_ys: Sequence[bool],
    bar: Bar,
    progress: CarryAndYs,
) -> tuple[CarryAndYs, Buffers]:
    tape, first = Tape(steps, activity, plan.block_size), plan.block_size * (plan.blocks - 1)

    def record(i: jax.Array, state: tuple[CarryAndYs, Buffers]) -> tuple[CarryAndYs, Buffers]:
        (carry, ys), entries = state
        _, *inputs = steps.inputs(carry, first + i)
        carry, y, stored = tape.run(*inputs)
        ys = write(ys, pick(y, keep_ys), steps.loop.entry(first + i))
        return (carry, ys), write(entries, stored, i)

    # As long as any block's tape, because the reverse sweep reuses it for the other blocks.
    state = (progress, tape.empty())
    return bar.fori_loop(0, plan.length - first, record, state, before=first)


def _advance_to_the_end(
    steps: Steps,
    plan: AnyPlan,
    activity: Activity,
    keep_ys: Sequence[bool],
    bar: Bar,
    progress: CarryAndYs,
) -> tuple[CarryAndYs, None]:
    """`_tape_and_advance` without a tape."""
    del activity
    first = plan.block_size * (plan.blocks - 1)
    step = lambda i, progress: _step_with_ys(steps, keep_ys, first + i, progress)  # noqa: E731
    return bar.fori_loop(0, plan.length - first, step, progress, before=first), None


def tape_the_last_block(steps: Steps, plan: AnyPlan, activity: Activity, held: Held) -> Buffers:
    """The last block's tape, from the newest checkpoint."""
    slot, start = _newest(plan)
    first = plan.block_size * (plan.blocks - 1)
    restarted = at_level(jnp.int32(slot), steps.initial(), held)
    restarted = steps.advance_by(first - start, start, restarted)
    tape = Tape(steps, activity, plan.block_size)
    return tape.record(tape.empty(), restarted, first, plan.length - first)


def _newest(plan: AnyPlan) -> tuple[int, int]:
    """The slot of the newest checkpoint after the forward sweep, and its step."""
    if plan.static_levels:
        runs = _runs_on_levels(plan)
        if not runs:
            return 0, 0
        start, size, count, first, base = runs[-1]
        return base + count - 1 if count > 1 else first, start + size * (count - 1)
    starts, _ = _first_advances(plan)
    if len(starts):
        return len(starts) - 1, plan.block_size * int(starts[-1])
    return 0, plan.block_size * (plan.tail if isinstance(plan, TwoLevelPlan) else 0)


def after_all_steps(plan: AnyPlan, held: Held) -> Held:
    """The stack after a loop of known length. The plan determines all of it but the carries and the
    tape. A plan on levels needs none."""
    if plan.static_levels:
        return held._replace(steps=plan.length)
    starts, _ = _first_advances(plan)
    positions = np.zeros(slots_used(plan), np.int32)
    positions[: len(starts)] = starts
    top = jnp.int32(max(len(starts) - 1, 0))
    return held._replace(positions=integers(positions), top=top, steps=plan.length)


@lru_cache(maxsize=64)
def _first_advances(plan: AnyPlan) -> tuple[np.ndarray, np.ndarray]:
    """The blocks at which the advances of the forward sweep start, each from a checkpoint, and
    stop."""
    first = plan.tail if isinstance(plan, TwoLevelPlan) else 0
    target = plan.scheduled_blocks - first - 1
    if target < 1:
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    starts = first + np.array(first_positions(target + 1, slots_used(plan)), np.int32)
    return starts, np.append(starts[1:], np.int32(first + target))
