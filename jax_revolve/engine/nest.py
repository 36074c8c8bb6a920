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
import jax.numpy as jnp

from jax_revolve._compat.values import added, pick, spread, zeros
from jax_revolve.engine.blocks import Several, Single
from jax_revolve.engine.buffers import Saved, Taped, runs_the_last_block
from jax_revolve.engine.every import Every
from jax_revolve.engine.far import Far
from jax_revolve.engine.slots import Slots
from jax_revolve.engine.sweep import Block, Forward, Pull, Reverse, Way
from jax_revolve.engine.tape.tape import Pullback, taped_step
from jax_revolve.engine.walk_back import WalkBack
from jax_revolve.schedule.plan import Plan
from jax_revolve.step.linearized import Cotangents, of_init, zero_cotangents
from jax_revolve.step.loop import Loop, Operands
from jax_revolve.step.steps import Steps

WAYS: tuple[type[Way], ...] = (Far, Every, Slots)
BLOCKS: tuple[type[Block], ...] = (WalkBack, Single, Several)
"""The first that serves a plan reverses it."""


def way_of(plan: Plan, *, is_while: bool) -> Way:
    """Where checkpoints are, and when."""
    return next(way for each in WAYS if (way := each.of(plan, is_while=is_while)))


def block_of(loop: Loop, plan: Plan) -> type[Block]:
    return next(kind for kind in BLOCKS if kind.serves(loop, plan))


# The forward sweep of a scan (`online` is the forward sweep of a while loop)


def run_forward_offline(
    steps: Steps, plan: Plan, keep_ys: Sequence[bool], *, tapes: bool
) -> tuple[list[Any], Saved]:
    """The final carry, the ys that are kept, and what is saved: the checkpoints and, if the sweep
    `tapes`, the last block's tape."""
    kind = block_of(steps.loop, plan)
    kept_ys, log = kind.kept_ys(steps, keep_ys), steps.empty_log()
    sweep = Forward(steps, [*kept_ys, *[True] * len(log)])
    _, ys = steps.loop.results(steps.loop.output_types)
    results, of_block = (steps.operands.carry, [*map(zeros, pick(ys, kept_ys)), *log]), None
    results, of_way = way_of(plan, is_while=False).forward(sweep, results)
    if runs_the_last_block(plan):
        results, of_block = kind.run_last(sweep, plan, results, tapes=tapes)
    carry, ys = results
    ys, log = ys[: len(ys) - len(log)], ys[len(ys) - len(log) :]
    ys = pick(spread(ys, kept_ys), keep_ys)
    return [*carry, *ys], Saved(of_way, of_block, past=steps.past(carry, log))


def tape_the_last_block(steps: Steps, plan: Plan, saved: Saved) -> tuple[list[Any], Taped]:
    """Tape the last block, from the newest checkpoint. Also returns the histories after it."""
    checkpoint, start = way_of(plan, is_while=False).newest(saved.way, steps.initial())
    restarted = [*checkpoint, *steps.before(list(saved.past), plan.length, start)]
    first = plan.stride * (plan.blocks - 1)
    restarted = steps.advance_by(first - start, start, restarted)
    step = taped_step(steps.linearized)
    tape = step.empty(plan.block_size, restarted)
    end, tape = step.tape_steps(steps, tape, restarted, first, plan.length - first)
    return steps.apart(end)[1], Taped(tape)


# The reverse sweep


def run_reverse(
    steps: Steps, plan: Plan, saved: Saved, cotangents: Cotangents, sums: Operands | None = None
) -> Operands:
    """The cotangents of the active operands, from the active results' cotangents, added to `sums`,
    with `None` where there is nothing to add to. After those of the xs, what rules log."""
    operands, activity = steps.operands, steps.linearized.activity
    others = jax.tree.leaves((operands, cotangents))
    nothing = zero_cotangents(operands.consts, activity.consts, others)
    of_xs = steps.linearized.zeros_of_xs(operands.xs, steps.loop.length, others)
    none = Operands(*([None] * n for n in (len(nothing), sum(activity.init), len(of_xs))))
    sums = sums or none
    gradient = Operands(
        consts=[z if x is None else x for z, x in zip(nothing, sums.consts, strict=True)],
        carry=cotangents.carry,
        xs=[z if x is None else x for z, x in zip(of_xs, sums.xs, strict=True)],
    )
    is_while = steps.loop.condition is not None
    total = saved.steps if is_while else plan.length
    is_last_run = runs_the_last_block(plan) and not is_while
    way, step = way_of(plan, is_while=is_while), taped_step(steps.linearized)
    advance = jax.jit(steps.advance)
    is_sum = [x is not None for x in sums.xs]
    through = lambda size: Pullback(step, steps, size, cotangents.ys, is_sum)  # noqa: E731
    kind, of_block, past = block_of(steps.loop, plan), saved.block, list(saved.past)
    if kind.tapes and is_last_run and of_block is None:
        past, of_block = tape_the_last_block(steps, plan, saved)
    block = kind(plan, Pull(steps, step, through), of_block)
    end = past, jnp.asarray(total, jnp.int32) if past else None
    sweep = Reverse(steps, total, block, advance, end)
    blocks, work = -(-total // block.size) if is_while else plan.blocks, block.begin()
    if is_last_run:
        blocks -= 1
        start = block.size * blocks
        gradient, work = block.reverse_last(start, total - start, gradient, work)
    state: Any = way.begin(sweep, saved.way, gradient, work)
    state = way.reverse(sweep, 0, blocks, state)
    gradient = block.end(state.gradient, state.work)
    carry = map(added, sums.carry, of_init(gradient.carry, activity))
    return gradient._replace(carry=list(carry))
