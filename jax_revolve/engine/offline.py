"""The forward sweep of a loop of known length: the forward half of the schedule, and the tape of
the last block."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_revolve._compat import zeros
from jax_revolve.engine.bars import Bar
from jax_revolve.engine.slots import Held, empty, slots_used, tapes_the_last_block, write_slot
from jax_revolve.engine.split import integers
from jax_revolve.engine.tape.tape import Tape
from jax_revolve.progress.listener import FORWARD
from jax_revolve.schedule.binomial import first_positions
from jax_revolve.schedule.two_level import AnyPlan, TwoLevelPlan
from jax_revolve.step.activity import Activity
from jax_revolve.step.loop import pick
from jax_revolve.step.steps import Steps
from jax_revolve.storage.buffers import Buffers, write
from jax_revolve.storage.stores import in_storage, put

CarryAndYs = tuple[list[Any], list[Any]]
"""The carry, and the ys that are kept."""


def run_forward_offline(
    steps: Steps, plan: AnyPlan, activity: Activity, keep_ys: Sequence[bool]
) -> tuple[list[Any], Held]:
    """The final carry and the ys that are kept; and the checkpoints, with the last block's tape."""
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
        progress, tape = _tape_the_last_block(steps, plan, activity, keep_ys, bar, progress)
    carry, ys = progress
    return [*carry, *ys], Held(slots, None, None, None, None, tape, start, stores)


def _store_and_advance(
    steps: Steps, plan: AnyPlan, keep_ys: Sequence[bool], bar: Bar, progress: CarryAndYs
) -> tuple[CarryAndYs, list[Any]]:
    """Advance until the schedule first tapes. Returns the slots, too."""
    starts, stops = _first_advances(plan)
    slots = empty(slots_used(plan), pick(progress[0], steps.restart), plan)
    if not len(stops):
        return progress, slots
    advances = _Advances(plan.block_size, starts, stops, ends=not tapes_the_last_block(plan))
    return _advance_through(steps, keep_ys, bar, advances, write_slot, (progress, slots))


def _write_and_advance(
    steps: Steps, plan: TwoLevelPlan, keep_ys: Sequence[bool], bar: Bar, progress: CarryAndYs
) -> tuple[CarryAndYs, Buffers]:
    """Advance as far as the schedule writes to the storage. Returns the storage's buffers, too."""
    stops = np.array([*plan.stores[1:], plan.tail])
    advances = _Advances(plan.block_size, np.array(plan.stores), stops, ends=False)
    kept = in_storage(plan.storage, pick(progress[0], steps.restart), len(plan.stores))
    write_store = partial(put, plan.storage)
    return _advance_through(steps, keep_ys, bar, advances, write_store, (progress, kept))


class _Advances(NamedTuple):
    """Consecutive advances, each from a checkpoint, in blocks of `block_size` steps. `ends` says
    whether the sweep ends with the last one."""

    block_size: int
    starts: np.ndarray
    stops: np.ndarray
    ends: bool


def _advance_through(
    steps: Steps,
    keep_ys: Sequence[bool],
    bar: Bar,
    advances: _Advances,
    keep: Callable[[list[Any], list[Any], jax.Array], list[Any]],
    state: tuple[CarryAndYs, list[Any]],
) -> tuple[CarryAndYs, list[Any]]:
    """Run all advances. `keep(kept, checkpoint, number)` returns `kept` with one more
    checkpoint."""
    loop, (block_size, starts, stops, ends) = steps.loop, advances
    are_alike = len(np.unique(stops - starts)) == 1

    def step(i: jax.Array, progress: CarryAndYs) -> CarryAndYs:
        carry, ys = progress
        _, *inputs = steps.inputs(carry, i)
        carry, y = loop.step(steps.operands.consts, *inputs)
        return carry, write(ys, pick(y, keep_ys), loop.entry(i))

    def keep_and_advance(
        bar: Bar, number: jax.Array, state: tuple[CarryAndYs, list[Any]]
    ) -> tuple[CarryAndYs, list[Any]]:
        progress, kept = state
        kept = keep(kept, pick(progress[0], steps.restart), number)
        start, stop = (
            block_size * jnp.asarray(ends, jnp.int32)[number] for ends in (starts, stops)
        )
        if not are_alike:
            return bar.fori_loop(start, stop, step, progress), kept
        # A static length: on a GPU, each iteration of a loop of dynamic length waits for the host.
        length = block_size * int(stops[0] - starts[0])
        from_start = lambda i, progress: step(start + i, progress)  # noqa: E731
        return bar.fori_loop(0, length, from_start, progress, before=start), kept

    def before(number: jax.Array) -> jax.Array:
        return block_size * jnp.asarray(starts, jnp.int32)[number]

    return bar.outer_loop(
        len(stops),
        keep_and_advance,
        state,
        size=block_size * int(stops[-1] - starts[0]) // len(stops),
        before=before,
        ends=ends,
    )


def _tape_the_last_block(
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


def after_all_steps(plan: AnyPlan, held: Held) -> Held:
    """The stack after a loop of known length. The plan determines all of it but the carries and the
    tape."""
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
