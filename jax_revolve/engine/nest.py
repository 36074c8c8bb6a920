"""How the ways of reversing are put together, and the two sweeps.

| way | forward | reverse |
|---|---|---|
| `blocks`: a single step, a tape | runs, or tapes the last block | tapes from a checkpoint |
| `walk_back` | keeps the carry at the end, and ys | the inverse, checked at checkpoints |
| `every`: every carry | stores each | static loops, on one level or several |
| `slots` | Revolve's first pass, or online placement | Revolve |
| `far`: in a storage | writes a carry for each segment | reads it, and reverses the segment |

    far of (slots or every) of (a single step, a tape or walk back)

The forward sweep runs all steps, because JAX needs the value before it passes a cotangent. With 10
blocks and 3 slots:

    block     0   1   2   3   4   5   6   7   8   9
    forward   S0--------------S1----------S2------T       S: store in a slot, T: tape
    reverse                               R2--T           R: restart from a slot
                                          R2T             this frees slot 2
                              R1--S2--T   ...             and it takes another checkpoint

It tapes the last block on the way, and hands over the tape. There are two exceptions. With blocks
of a single step, it is the forward half of a schedule for one more step, the end of the loop. In a
while loop, it does not know which block is the last (`online`).

The code is written for XLA:

- The slot buffer and the tape are loop variables, read and updated in place. Neither goes through a
  `cond` or a gather, which would copy it.
- The vjp of the step appears only where a step is taped, never in an advance.
- Slot 0 is the initial carry, an operand that is never overwritten. The buffer starts at slot 1.
- A slot holds only the restart set, the leaves of the carry from which steps can run again.
- The schedule's stack and its decisions are on the device, in tables whose size depends only on the
  numbers of checkpoints and repetitions. So the program of a scan does not grow with its length.
"""

from collections.abc import Sequence
from typing import Any

import jax

from jax_revolve._compat.values import zeros
from jax_revolve.engine.blocks import Single, Tape
from jax_revolve.engine.buffers import Carries, Record, Saved, Taped, tapes_the_last_block
from jax_revolve.engine.every import Every
from jax_revolve.engine.far import Far
from jax_revolve.engine.reports import Reports
from jax_revolve.engine.slots import Slots
from jax_revolve.engine.sweep import Forward, Results, Reverse
from jax_revolve.engine.tape.tape import Pullback, TapedStep, taped_step
from jax_revolve.engine.walk_back import WalkBack, Walked
from jax_revolve.progress.listener import FORWARD, REVERSE
from jax_revolve.schedule.plan import Plan
from jax_revolve.step.linearized import Cotangents, of_init, union, zero_cotangents
from jax_revolve.step.loop import Loop, Operands, pick, spread
from jax_revolve.step.steps import Steps
from jax_revolve.storage.buffers import Buffers, write


def way_of(plan: Plan, *, is_while: bool) -> Slots | Every | Far:
    """Where checkpoints are, and when."""
    if plan.storage_of_segments is not None:
        return Far(plan, plan.storage_of_segments, Slots(plan))
    static = plan.stores_every_block(is_while=True) if is_while else bool(plan.static_levels)
    return Every.of(plan, is_while=is_while) if static else Slots(plan)


def is_walked_back(loop: Loop, plan: Plan) -> bool:
    """Whether blocks are walked back by an inverse of the step. A block of one step is not."""
    return loop.inverse is not None and plan.block_size > 1


# The forward sweep of a scan (`online` is the forward sweep of a while loop)


def run_forward_offline(
    steps: Steps, plan: Plan, keep_ys: Sequence[bool], *, tapes: bool
) -> tuple[list[Any], Saved]:
    """The final carry, the ys that are kept, and what is saved: the checkpoints and, if the sweep
    `tapes`, the last block's tape."""
    is_walked = is_walked_back(steps.loop, plan)
    kept_ys = union(keep_ys, steps.record) if is_walked else keep_ys
    sweep = Forward(steps, kept_ys, Reports(steps.loop, FORWARD, plan.length))
    _, ys = steps.loop.results(steps.loop.output_types)
    results = steps.operands.carry, list(map(zeros, pick(ys, kept_ys)))
    loop = sweep.reports.loop(not tapes_the_last_block(plan))
    results, of_way = way_of(plan, is_while=False).forward(sweep, loop, results)
    last_start, of_block = Carries(sweep.checkpoint(results)), None
    if tapes_the_last_block(plan):
        linearized = steps.linearized if tapes and not is_walked else None
        step = None if linearized is None else taped_step(linearized)
        results, of_block = _last_block(sweep, plan, results, step)
    ys = spread(results[1], kept_ys)
    if is_walked:
        end, record = Carries(sweep.checkpoint(results)), Record(pick(ys, steps.record))
        of_block = Walked(end, record, last_start)
    return [*results[0], *pick(ys, keep_ys)], Saved(of_way, of_block)


def _last_block(
    sweep: Forward, plan: Plan, results: Results, taped: TapedStep | None
) -> tuple[Results, Taped | None]:
    """Run the last block. With `taped`, also returns its tape."""
    first = plan.block_size * (plan.blocks - 1)
    count, loop = plan.length - first, sweep.reports.loop(True)
    if taped is None:
        step = lambda i, results: sweep.run_step(first + i, results)  # noqa: E731
        return loop(0, count, step, results), None

    def tape_step(i: Any, state: tuple[Results, Buffers]) -> tuple[Results, Buffers]:
        (carry, ys), tape = state
        sweep.reports.before_step(first + i)
        carry, y, stored = taped.run(sweep.steps, sweep.steps.inputs(carry, first + i))
        ys = write(ys, pick(y, sweep.keep_ys), sweep.steps.loop.entry(first + i))
        return (carry, ys), write(tape, stored, i)

    # As long as every block's tape, because the reverse sweep reuses the buffers.
    results, tape = loop(0, count, tape_step, (results, taped.empty(plan.block_size)))
    return results, Taped(tape)


def tape_the_last_block(steps: Steps, plan: Plan, saved: Saved) -> Taped:
    """Tape the last block, from the newest checkpoint."""
    assert steps.linearized is not None
    restarted, start = way_of(plan, is_while=False).newest(saved.way, steps.initial())
    first = plan.block_size * (plan.blocks - 1)
    restarted = steps.advance_by(first - start, start, restarted)
    step = taped_step(steps.linearized)
    tape = step.empty(plan.block_size)
    return Taped(step.tape_steps(steps, tape, restarted, first, plan.length - first))


# The reverse sweep


def run_reverse(steps: Steps, plan: Plan, saved: Saved, cotangents: Cotangents) -> Operands:
    """The cotangents of the active operands, from the active results' cotangents."""
    assert steps.linearized is not None
    operands, activity = steps.operands, steps.linearized.activity
    gradient = Operands(
        consts=zero_cotangents(operands.consts, activity.consts),
        carry=cotangents.carry,
        xs=zero_cotangents(operands.xs, activity.xs),
    )
    is_while, size = steps.loop.condition is not None, plan.block_size
    total, is_last_run = saved.steps if is_while else plan.length, size > 1 and not is_while
    way, step = way_of(plan, is_while=is_while), taped_step(steps.linearized)
    advance = jax.jit(steps.advance)
    reports = Reports(steps.loop, REVERSE, total)
    before_step = lambda step: reports.before_step(total - 1 - step)  # noqa: E731
    is_walked = is_walked_back(steps.loop, plan)
    pullback = Pullback(step, steps, 1 if is_walked else size, cotangents.ys, before_step)
    block: Any
    if is_walked:
        block = WalkBack(size, steps, step, pullback, saved.block)
    elif size == 1:
        block = Single(steps, step, pullback)
    else:
        last = saved.block
        if last is None and is_last_run:
            last = tape_the_last_block(steps, plan, saved)
        block = Tape(size, steps, step, pullback, last)
    sweep = Reverse(steps, total, block, reports, advance)
    blocks, work = -(-total // size), block.begin()
    if is_last_run and not isinstance(block, Single):
        blocks -= 1
        start = size * blocks
        count, loop = total - start, reports.loop(start == 0)
        gradient, work = block.reverse_last(start, count, gradient, work, loop)
    state: Any = way.begin(sweep, saved.way, gradient, work)
    state = way.reverse(sweep, 0, blocks, state)
    gradient = block.end(state.gradient, state.work)
    return gradient._replace(carry=of_init(gradient.carry, activity))
