"""The forward sweep of a scan: the forward half of the schedule, and the tape of the last block.

    for start, stop in advances:          # the first pass of `schedule.actions.revolve`
        store the carry at `start` in the next slot
        run the steps start, ..., stop - 1
    tape the last block

XLA is given one of three forms, all with the same results:

- `_in_groups`: nested loops of static length, if advances of equal length follow each other, as on
  levels. A GPU runs them without waiting for its host.
- `_in_slots`: one loop over all steps, each of which writes the slot that is next to be complete.
- `_looking_up`: an outer loop over advances, whose lengths an inner loop looks up in a table. On a
  CPU, and for slots in the host's memory, where a transfer for each step would cost more.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve._compat.memories import is_on_host
from jax_revolve._compat.values import zeros
from jax_revolve.engine.reports import Reports
from jax_revolve.engine.slots import (
    Saved,
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
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.storage import Storage
from jax_revolve.step.cpu import is_for_cpu
from jax_revolve.step.linearized import union
from jax_revolve.step.loop import pick, spread, substitute
from jax_revolve.step.steps import Steps, for_loop
from jax_revolve.storage.buffers import Buffers, read, write
from jax_revolve.storage.stores import in_storage, put

Results = tuple[list[Any], list[Any]]
"""The carry after the steps so far, and their ys that are kept."""

State = tuple[Results, list[Any]]
"""The results so far, and the checkpoints so far."""

Loop = Callable[..., Any]
"""As `for_loop`."""


def run_forward_offline(
    steps: Steps, plan: Plan, keep_ys: Sequence[bool], *, tapes: bool
) -> tuple[list[Any], Saved]:
    """The final carry, the ys that are kept, and what is saved: the checkpoints and, if the sweep
    `tapes`, the last block's tape."""
    is_walked = is_walked_back(steps.loop, plan)
    kept_ys = union(keep_ys, steps.record) if is_walked else keep_ys
    sweep = _Sweep(steps, plan, kept_ys, Reports(steps.loop, FORWARD, plan.length))
    _, ys = steps.loop.results(steps.loop.output_types)
    results = steps.operands.carry, list(map(zeros, pick(ys, kept_ys)))
    start = buffers = tape = None
    if (storage := plan.storage_of_segments) is not None:
        results, buffers = sweep.write(storage, results)
        start = pick(results[0], steps.restart)
    results, slots = sweep.store(results)
    if is_walked:
        last = pick(results[0], steps.restart)
        (carry, ys), _ = sweep.last_block(results, None)
        ys, end = spread(ys, kept_ys), pick(carry, steps.restart)
        saved = Saved(
            slots, None, start, buffers, last_start=last, end=end, record=pick(ys, steps.record)
        )
        return [*carry, *pick(ys, keep_ys)], saved
    if tapes_the_last_block(plan):
        step = taped_step(steps.linearized) if tapes and steps.linearized else None
        results, tape = sweep.last_block(results, step)
    carry, ys = results
    return [*carry, *ys], Saved(slots, tape, start, buffers)


class _AdvanceGroup(NamedTuple):
    """Consecutive advances of `size` steps each, from step `start` on. The carry that enters the
    first is stored at index `first`, the carry that enters advance j > 0 at index `base + j`."""

    start: int
    size: int
    advances: int
    first: int
    base: int


class _Sweep(NamedTuple):
    steps: Steps
    plan: Plan
    keep_ys: Sequence[bool]
    reports: Reports

    def run_step(self, step: Any, results: Results) -> Results:
        self.reports.before_step(step)
        carry, y = self.steps.step(results[0], step)
        return carry, write(results[1], pick(y, self.keep_ys), self.steps.loop.entry(step))

    def write(self, storage: Storage, results: Results) -> tuple[Results, Buffers]:
        """Advance to the tail, and write the carries that enter segments to the storage on the way.
        Also returns the storage's buffers."""
        plan = self.plan
        kept = in_storage(storage, pick(results[0], self.steps.restart), plan.segments)
        segments = _AdvanceGroup(0, plan.block_size * plan.segment, plan.segments, 0, 0)
        return self._in_groups([segments], for_loop, partial(put, storage), (results, kept))

    def store(self, results: Results) -> State:
        """Advance until the schedule first tapes, or to the end. Also returns the slots."""
        plan = self.plan
        slots = empty(slots_used(plan), pick(results[0], self.steps.restart), plan)
        groups, is_far = _advance_groups(plan), any(map(is_on_host, slots))
        last = self.reports.loop(not tapes_the_last_block(plan))
        if plan.static_levels or len(groups) <= 1:
            if not (groups and is_far):
                return self._in_groups(groups, last, write_slot, (results, slots))
            state = results, [slots, pick(results[0], self.steps.restart)]
            results, (slots, waiting) = self._in_groups(groups, last, _write_behind, state)
            return results, write_slot(slots, waiting, groups[-1].base + groups[-1].advances - 1)
        starts, stops = (plan.block_size * blocks for blocks in first_advances(plan))
        # A loop of dynamic length makes a GPU wait, but not a CPU: see the top of this file.
        advance = self._looking_up if is_far or is_for_cpu("carry") else self._in_slots
        return advance(starts, stops, last, (results, slots))

    def last_block(
        self, results: Results, taped: TapedStep | None
    ) -> tuple[Results, Buffers | None]:
        """Run the last block. With `taped`, also returns its tape."""
        first = self.plan.block_size * (self.plan.blocks - 1)

        count, loop = self.plan.length - first, self.reports.loop(True)
        if taped is None:
            return loop(
                0, count, lambda i, results: self.run_step(first + i, results), results
            ), None

        def tape_step(i: Any, state: tuple[Results, Buffers]) -> tuple[Results, Buffers]:
            (carry, ys), tape = state
            self.reports.before_step(first + i)
            carry, y, stored = taped.run(self.steps, self.steps.inputs(carry, first + i))
            ys = write(ys, pick(y, self.keep_ys), self.steps.loop.entry(first + i))
            return (carry, ys), write(tape, stored, i)

        # As long as every block's tape, because the reverse sweep reuses the buffers.
        return loop(0, count, tape_step, (results, taped.empty(self.plan.block_size)))

    def _in_groups(
        self,
        groups: Sequence[_AdvanceGroup],
        last: Loop,
        store: Callable[[list[Any], list[Any], Any], list[Any]],
        state: State,
    ) -> State:
        """Run all groups, in loops of static length. `store(kept, checkpoint, index)` returns
        `kept` with one more checkpoint. `last` is the loop function for the last group."""
        for group in groups:
            # Invariant: after advance j, the carry is at step `start + size * (j + 1)`.
            def keep_and_advance(j: Any, state: State, group: _AdvanceGroup = group) -> State:
                results, kept = state
                index = group.base + j
                if group.first != group.base:
                    index = jnp.where(j == 0, group.first, index)
                kept = store(kept, pick(results[0], self.steps.restart), index)
                start = group.start + group.size * j
                step = lambda i, results: self.run_step(start + i, results)  # noqa: E731
                return for_loop(0, group.size, step, results), kept

            loop = last if group is groups[-1] else for_loop
            state = loop(0, group.advances, keep_and_advance, state)
        return state

    def _looking_up(self, starts: np.ndarray, stops: np.ndarray, last: Loop, state: State) -> State:
        """Advances of different lengths, each from a checkpoint, in loops of looked-up length."""

        def advance(index: jax.Array, reached: tuple[Any, State]) -> tuple[Any, State]:
            start, (results, slots) = reached
            slots = write_slot(slots, pick(results[0], self.steps.restart), index)
            (stop,) = read([jnp.asarray(stops)], index)
            start, results = lax.while_loop(
                lambda reached: lax.lt(reached[0], stop),
                lambda reached: (lax.add(reached[0], np.int32(1)), self.run_step(*reached)),
                (start, results),
            )
            return start, (results, slots)

        return last(0, len(stops), advance, (jnp.int32(starts[0]), state))[1]

    def _in_slots(self, starts: np.ndarray, stops: np.ndarray, last: Loop, state: State) -> State:
        """Advances of different lengths, each from a checkpoint, in one loop of static length.

        Each step stores its carry in the slot of the next checkpoint, over the carry of the step
        before, and goes on from there (`keep`). This needs no decision and no further copy.
        Invariant: every slot below `index` has its final checkpoint.
        """
        restart, first, newest = self.steps.restart, int(starts[0]), int(starts[-1])

        def step(i: Any, state: State) -> State:
            results, slots = state
            carry, ys = self.run_step(i, results)
            # The index of the first checkpoint that is not before the next step.
            index = jnp.sum(jnp.asarray(starts, jnp.int32) <= i, dtype=jnp.int32)
            slots, stored = keep(slots, pick(carry, restart), index)
            return (substitute(carry, restart, stored), ys), slots

        results, slots = state
        slots = write_slot(slots, pick(results[0], restart), 0)
        results, slots = for_loop(first, newest, step, (results, slots))
        return last(newest, int(stops[-1]), self.run_step, results), slots


def _write_behind(kept: list[Any], carry: list[Any], index: Any) -> list[Any]:
    """Write the waiting carry to the host, and let this one wait. Its transfer can then take until
    the next store; written at once, it would delay the next step, which overwrites the carry. The
    first to wait is the initial carry, for slot 0, which is not in the buffer."""
    slots, waiting = kept
    return [write_slot(slots, waiting, index - 1), carry]


def _advance_groups(plan: Plan) -> list[_AdvanceGroup]:
    """The advances to checkpoints on the device: on each level, to the start of its last part."""
    if not plan.static_levels:
        return _grouped(plan.block_size, *first_advances(plan))
    levels = levels_of(plan.length, plan.static_levels, plan.block_size)
    to_end = [*[False] * (len(levels) - 1), not tapes_the_last_block(plan)]
    groups = [
        _AdvanceGroup(level.start, level.size, level.last - 1 + last, level.enclosing, level.base)
        for level, last in zip(levels, to_end, strict=True)
    ]
    return [group for group in groups if group.advances]


def _grouped(block_size: int, starts: np.ndarray, stops: np.ndarray) -> list[_AdvanceGroup]:
    """The advances, grouped by equal lengths."""
    sizes = stops - starts
    firsts = np.flatnonzero(np.diff(sizes, prepend=-1)).tolist()
    return [
        _AdvanceGroup(block_size * int(starts[i]), block_size * int(sizes[i]), end - i, i, i)
        for i, end in zip(firsts, [*firsts[1:], len(sizes)], strict=True)
    ]


def tape_the_last_block(steps: Steps, plan: Plan, saved: Saved) -> Buffers:
    """Tape the last block, from the newest checkpoint."""
    assert steps.linearized is not None
    slot, start = 0, plan.block_size * plan.tail
    for group in _advance_groups(plan)[-1:]:
        slot = group.base + group.advances - 1 if group.advances > 1 else group.first
        start = group.start + group.size * (group.advances - 1)
    first = plan.block_size * (plan.blocks - 1)
    restarted = at_slot(saved.slots, jnp.int32(slot), saved.start or steps.initial())
    restarted = steps.advance_by(first - start, start, restarted)
    step = taped_step(steps.linearized)
    tape = step.empty(plan.block_size)
    return step.tape_steps(steps, tape, restarted, first, plan.length - first)


@lru_cache(maxsize=64)
def first_advances(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """The blocks at which the forward sweep's advances start, each from a checkpoint, and stop."""
    first = plan.tail
    target = plan.scheduled_blocks - first - 1
    if target < 1:
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    starts = first + np.array(first_positions(target + 1, slots_used(plan)), np.int32)
    return starts, np.append(starts[1:], np.int32(first + target))
