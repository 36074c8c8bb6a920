"""The forward sweep of a loop of known length: the forward half of the schedule, and the tape of
the last block."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_revolve._compat.memories import is_on_host
from jax_revolve._compat.values import zeros
from jax_revolve.engine.reports import Reports
from jax_revolve.engine.slots import (
    Held,
    at_slot,
    empty,
    is_walked_back,
    keep,
    slots_used,
    tapes_the_last_block,
    write_slot,
)
from jax_revolve.engine.tape.tape import TapedStep, taped_step
from jax_revolve.progress.listener import FORWARD
from jax_revolve.schedule.binomial import first_positions
from jax_revolve.schedule.levels import levels_of
from jax_revolve.schedule.two_level import AnyPlan, TwoLevelPlan
from jax_revolve.step.cpu import is_for_cpu
from jax_revolve.step.linearized import either
from jax_revolve.step.loop import pick, spread, substitute
from jax_revolve.step.steps import Steps, for_loop
from jax_revolve.storage.buffers import Buffers, read, write
from jax_revolve.storage.stores import in_storage, put

Progress = tuple[list[Any], list[Any]]
"""The carry, and the ys that are kept, of the steps that are done."""

State = tuple[Progress, list[Any]]
"""How far the sweep has come, and the checkpoints so far."""

Loop = Callable[..., Any]
"""As `for_loop`."""


def run_forward_offline(
    steps: Steps, plan: AnyPlan, keep_ys: Sequence[bool], *, tapes: bool
) -> tuple[list[Any], Held]:
    """The final carry and the ys that are kept; and the checkpoints, with the last block's tape if
    it `tapes`."""
    is_walked = is_walked_back(steps.loop, plan)
    kept = either(keep_ys, steps.record) if is_walked else keep_ys
    sweep = _Sweep(steps, plan, kept, Reports(steps.loop, FORWARD, plan.length))
    _, ys = steps.loop.results(steps.loop.output_types)
    progress = steps.operands.carry, list(map(zeros, pick(ys, kept)))
    start = stores = tape = None
    if isinstance(plan, TwoLevelPlan):
        progress, stores = sweep.write(plan, progress)
        start = pick(progress[0], steps.restart)
    progress, slots = sweep.store(progress)
    if is_walked:
        last = pick(progress[0], steps.restart)
        (carry, ys), _ = sweep.last_block(progress, None)
        ys, end = spread(ys, kept), pick(carry, steps.restart)
        held = Held(slots, None, start, stores, last=last, end=end, record=pick(ys, steps.record))
        return [*carry, *pick(ys, keep_ys)], held
    if tapes_the_last_block(plan):
        step = taped_step(steps.linearized) if tapes and steps.linearized else None
        progress, tape = sweep.last_block(progress, step)
    carry, ys = progress
    return [*carry, *ys], Held(slots, tape, start, stores)


class _Run(NamedTuple):
    """So many advances of `size` steps each, one after the other, from step `start` on. The carry
    that enters the first is stored as number `first`, the one of advance j > 0 as `base + j`."""

    start: int
    size: int
    advances: int
    first: int
    base: int


class _Sweep(NamedTuple):
    steps: Steps
    plan: AnyPlan
    keep_ys: Sequence[bool]
    reports: Reports

    def run(self, step: Any, progress: Progress) -> Progress:
        self.reports.before_step(step)
        carry, y = self.steps.step(progress[0], step)
        return carry, write(progress[1], pick(y, self.keep_ys), self.steps.loop.entry(step))

    def write(self, plan: TwoLevelPlan, progress: Progress) -> tuple[Progress, Buffers]:
        """Advance as far as the schedule writes to the storage. Returns the storage's buffers,
        too."""
        stops = np.array([*plan.stores[1:], plan.tail], np.int32)
        runs = _runs_alike(plan.block_size, np.array(plan.stores, np.int32), stops)
        kept = in_storage(plan.storage, pick(progress[0], self.steps.restart), len(plan.stores))
        return self._in_runs(runs, for_loop, partial(put, plan.storage), (progress, kept))

    def store(self, progress: Progress) -> State:
        """Advance until the schedule first tapes, or to the end. Returns the slots, too."""
        plan = self.plan
        slots = empty(slots_used(plan), pick(progress[0], self.steps.restart), plan)
        runs, is_far = _runs(plan), any(map(is_on_host, slots))
        last = self.reports.loop(not tapes_the_last_block(plan))
        if plan.static_levels or len(runs) <= 1:
            if not (runs and is_far):
                return self._in_runs(runs, last, write_slot, (progress, slots))
            state = progress, [slots, pick(progress[0], self.steps.restart)]
            progress, (slots, waiting) = self._in_runs(runs, last, _write_behind, state)
            return progress, write_slot(slots, waiting, runs[-1].base + runs[-1].advances - 1)
        starts, stops = (plan.block_size * blocks for blocks in first_advances(plan))
        # On a CPU no loop waits, and a transfer to the host for each step would take longer.
        advance = self._looking_up if is_far or is_for_cpu("carry") else self._in_slots
        return advance(starts, stops, last, (progress, slots))

    def last_block(
        self, progress: Progress, taped: TapedStep | None
    ) -> tuple[Progress, Buffers | None]:
        """Run the last block. Returns its tape, too, if it is given how a step is taped."""
        first = self.plan.block_size * (self.plan.blocks - 1)

        count, loop = self.plan.length - first, self.reports.loop(True)
        if taped is None:
            return loop(0, count, lambda i, progress: self.run(first + i, progress), progress), None

        def record(i: Any, state: tuple[Progress, Buffers]) -> tuple[Progress, Buffers]:
            (carry, ys), tape = state
            self.reports.before_step(first + i)
            carry, y, stored = taped.run(self.steps, self.steps.inputs(carry, first + i))
            ys = write(ys, pick(y, self.keep_ys), self.steps.loop.entry(first + i))
            return (carry, ys), write(tape, stored, i)

        # As long as any block's tape, because the reverse sweep reuses it for the other blocks.
        return loop(0, count, record, (progress, taped.empty(self.plan.block_size)))

    def _in_runs(
        self,
        runs: Sequence[_Run],
        last: Loop,
        store: Callable[[list[Any], list[Any], Any], list[Any]],
        state: State,
    ) -> State:
        """All runs, in loops of static length. `store(kept, checkpoint, number)` returns what is
        kept with one more checkpoint. `last` is the loop of the last run."""
        for run in runs:

            def keep_and_advance(j: Any, state: State, run: _Run = run) -> State:
                progress, kept = state
                number = run.base + j
                if run.first != run.base:
                    number = jnp.where(j == 0, run.first, number)
                kept = store(kept, pick(progress[0], self.steps.restart), number)
                start = run.start + run.size * j
                step = lambda i, progress: self.run(start + i, progress)  # noqa: E731
                return for_loop(0, run.size, step, progress), kept

            loop = last if run is runs[-1] else for_loop
            state = loop(0, run.advances, keep_and_advance, state)
        return state

    def _looking_up(self, starts: np.ndarray, stops: np.ndarray, last: Loop, state: State) -> State:
        """Advances of unlike lengths, each from a checkpoint, in loops whose lengths are looked
        up."""

        def advance(number: jax.Array, state: State) -> State:
            progress, slots = state
            slots = write_slot(slots, pick(progress[0], self.steps.restart), number)
            start, stop = read([jnp.asarray(starts), jnp.asarray(stops)], number)
            return for_loop(start, stop, self.run, progress), slots

        return last(0, len(stops), advance, state)

    def _in_slots(self, starts: np.ndarray, stops: np.ndarray, last: Loop, state: State) -> State:
        """Advances of unlike lengths, each from a checkpoint, in one loop of static length.

        Each step stores the carry in the slot that is next to be complete, and goes on from there:
        see `keep`. So there is no decision, and no copy besides the one that any loop makes.
        """
        restart, first, newest = self.steps.restart, int(starts[0]), int(starts[-1])

        def step(i: Any, state: State) -> State:
            progress, slots = state
            carry, ys = self.run(i, progress)
            # The number of the first checkpoint that is not before the next step.
            number = jnp.sum(jnp.asarray(starts, jnp.int32) <= i, dtype=jnp.int32)
            slots, stored = keep(slots, pick(carry, restart), number)
            return (substitute(carry, restart, stored), ys), slots

        progress, slots = state
        slots = write_slot(slots, pick(progress[0], restart), 0)
        progress, slots = for_loop(first, newest, step, (progress, slots))
        return last(newest, int(stops[-1]), self.run, progress), slots


def _write_behind(kept: list[Any], carry: list[Any], number: Any) -> list[Any]:
    """Write the carry that waits, and let this one wait. So its transfer to the host has until the
    next is stored; written at once, it would be waited for, because the next step overwrites it.
    At first the initial carry waits, for slot 0, which is not in the buffer."""
    slots, waiting = kept
    return [write_slot(slots, waiting, number - 1), carry]


def _runs(plan: AnyPlan) -> list[_Run]:
    """The advances from checkpoints on the device: on each level, to the start of its last part."""
    if not plan.static_levels:
        return _runs_alike(plan.block_size, *first_advances(plan))
    levels = levels_of(plan.length, plan.static_levels, plan.block_size)
    to_end = [*[False] * (len(levels) - 1), not tapes_the_last_block(plan)]
    runs = [
        _Run(level.start, level.size, level.last - 1 + last, level.enclosing, level.base)
        for level, last in zip(levels, to_end, strict=True)
    ]
    return [run for run in runs if run.advances]


def _runs_alike(block_size: int, starts: np.ndarray, stops: np.ndarray) -> list[_Run]:
    """Consecutive advances as runs of the same length, of which a schedule for a storage has
    few."""
    sizes = stops - starts
    firsts = np.flatnonzero(np.diff(sizes, prepend=-1)).tolist()
    return [
        _Run(block_size * int(starts[i]), block_size * int(sizes[i]), end - i, i, i)
        for i, end in zip(firsts, [*firsts[1:], len(sizes)], strict=True)
    ]


def tape_the_last_block(steps: Steps, plan: AnyPlan, held: Held) -> Buffers:
    """The last block's tape, from the newest checkpoint."""
    assert steps.linearized is not None
    slot, start = 0, plan.block_size * (plan.tail if isinstance(plan, TwoLevelPlan) else 0)
    for run in _runs(plan)[-1:]:
        slot = run.base + run.advances - 1 if run.advances > 1 else run.first
        start = run.start + run.size * (run.advances - 1)
    first = plan.block_size * (plan.blocks - 1)
    restarted = at_slot(held.slots, jnp.int32(slot), held.start or steps.initial())
    restarted = steps.advance_by(first - start, start, restarted)
    step = taped_step(steps.linearized)
    tape = step.empty(plan.block_size)
    return step.record(steps, tape, restarted, first, plan.length - first)


@lru_cache(maxsize=64)
def first_advances(plan: AnyPlan) -> tuple[np.ndarray, np.ndarray]:
    """The blocks at which the advances of the forward sweep start, each from a checkpoint, and
    stop."""
    first = plan.tail if isinstance(plan, TwoLevelPlan) else 0
    target = plan.scheduled_blocks - first - 1
    if target < 1:
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    starts = first + np.array(first_positions(target + 1, slots_used(plan)), np.int32)
    return starts, np.append(starts[1:], np.int32(first + target))
