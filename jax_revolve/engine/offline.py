"""The forward sweep of a loop of known length: the first half of the schedule, and the last block's
tape."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_revolve._compat import zeros
from jax_revolve.engine.activity import Activity
from jax_revolve.engine.buffers import write
from jax_revolve.engine.listener import FORWARD
from jax_revolve.engine.loop import choose
from jax_revolve.engine.progress import Bar
from jax_revolve.engine.slots import Held, empty, slots_used, tapes_the_last_block, write_slot
from jax_revolve.engine.steps import Steps
from jax_revolve.engine.tape import Buffers, Tape
from jax_revolve.schedule import actions
from jax_revolve.schedule.plan import Plan

Progress = tuple[list[Any], list[Any]]
"""The carry, and those ys that are to be kept."""


def run_forward_offline(
    steps: Steps, plan: Plan, activity: Activity, keep_ys: Sequence[bool]
) -> tuple[list[Any], Held]:
    """Final carry and those ys that are to be kept, the checkpoints, and the last block's tape."""
    loop = steps.loop
    ys = [zeros(t) for t in choose(loop.results(loop.output_types)[1], keep_ys)]
    bar, progress = Bar(loop, FORWARD, plan.length), (steps.operands.carry, ys)
    progress, slots = _store_and_advance(steps, plan, keep_ys, bar, progress)
    tape: Buffers = []
    if tapes_the_last_block(plan):
        progress, tape = _tape_the_last_block(steps, plan, activity, keep_ys, bar, progress)
    carry, ys = progress
    return [*carry, *ys], after_all_steps(plan, slots, tape)


def _store_and_advance(
    steps: Steps, plan: Plan, keep_ys: Sequence[bool], bar: Bar, progress: Progress
) -> tuple[Progress, list[Any]]:
    """As far as the schedule advances before it first tapes, and the slots."""
    loop = steps.loop
    starts, stops = _first_advances(plan)
    slots = empty(slots_used(plan), choose(steps.operands.carry, steps.restart))
    if not len(stops):
        return progress, slots

    def step(i: jax.Array, progress: Progress) -> Progress:
        carry, ys = progress
        _, *inputs = steps.inputs(carry, i)
        carry, y = loop.step(steps.operands.consts, *inputs)
        return carry, write(ys, choose(y, keep_ys), loop.index(i))

    def store_and_advance(
        bar: Bar, slot: jax.Array, state: tuple[Progress, list[Any]]
    ) -> tuple[Progress, list[Any]]:
        progress, slots = state
        slots = write_slot(slots, choose(progress[0], steps.restart), slot)
        start, stop = (plan.block * jnp.asarray(ends)[slot] for ends in (starts, stops))
        return bar.fori_loop(start, stop, step, progress), slots

    def before(slot: jax.Array) -> jax.Array:
        return plan.block * jnp.asarray(starts)[slot]

    return bar.outer_loop(
        len(stops),
        store_and_advance,
        (progress, slots),
        size=plan.block * int(stops[-1]) // len(stops),
        before=before,
        ends=not tapes_the_last_block(plan),
    )


def _tape_the_last_block(
    steps: Steps,
    plan: Plan,
    activity: Activity,
    keep_ys: Sequence[bool],
    bar: Bar,
    progress: Progress,
) -> tuple[Progress, Buffers]:
    tape, first = Tape(steps, activity), plan.block * (plan.blocks - 1)

    def record(i: jax.Array, state: tuple[Progress, Buffers]) -> tuple[Progress, Buffers]:
        (carry, ys), entries = state
        _, *inputs = steps.inputs(carry, first + i)
        carry, y, stored = tape.run(*inputs)
        ys = write(ys, choose(y, keep_ys), steps.loop.index(first + i))
        return (carry, ys), write(entries, stored, i)

    # As long as any block's tape, for the reverse sweep writes the others over it.
    entries = tape.empty(plan.block)
    return bar.fori_loop(0, plan.length - first, record, (progress, entries), before=first)


def after_all_steps(plan: Plan, slots: list[Any], tape: Buffers) -> Held:
    """The stack after a loop of known length: all but the slots and the tape is in the plan."""
    starts, _ = _first_advances(plan)
    positions = np.zeros(slots_used(plan), np.int32)
    positions[: len(starts)] = starts
    top = jnp.int32(max(len(starts) - 1, 0))
    taped = tape if tapes_the_last_block(plan) else None
    return Held(slots, jnp.asarray(positions), None, top, plan.length, taped)


def _first_advances(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Where each advance of the forward sweep starts, from a checkpoint, and stops: blocks."""
    last = plan.blocks if tapes_the_last_block(plan) else plan.blocks + 1
    schedule = actions.revolve(last, slots_used(plan))
    before = takewhile(lambda a: not isinstance(a, actions.Tape), schedule)
    advances = np.array([a for a in before if isinstance(a, actions.Advance)], np.int32)
    starts, stops = advances.reshape(-1, 2).T
    return starts, stops
