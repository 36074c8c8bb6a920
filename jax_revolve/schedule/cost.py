"""What a plan takes: bytes, and a prediction of its time.

The time is a sum of four terms, for a loop of n steps in N blocks of k:

- evaluations times the work of one step, and a turn of the loop around it;
- the residuals written and read back, n times those of one step, if blocks have more than one step
  (those of a single step never leave the cache), and otherwise the weights whose cotangents are
  added to n times;
- the memory that the plan holds, which has to be got from the system and touched once;
- N turns of the loop around the blocks.

What all plans have in common, such as transposing every step, is left out: plans are compared. The
constants are nanoseconds on a CPU with two cores, rounded from timings of stencils and recurrent
networks over a grid of plans; `benchmarks/budget.py` times what they lead to beside other plans.
Only their ratios matter, and those are similar where everything is faster.
"""

from functools import lru_cache
from typing import NamedTuple

from jax_revolve.schedule import online
from jax_revolve.schedule.binomial import advances, beta
from jax_revolve.schedule.plan import Plan, Reversal
from jax_revolve.schedule.two_level import TwoLevelPlan

RESIDUAL_BYTE = 0.05
WEIGHT_BYTE = 0.3
HELD_BYTE = 0.4
EVALUATION = 1000.0
BLOCK = 1300.0

PLACE = 8
"""Bytes that a while loop holds for each checkpoint to know which step it belongs to."""

MOST_BLOCKS_SIMULATED = 2000
"""Where an online schedule is not optimal it has no closed formula. For loops of more blocks the
optimum, which is a few per cent lower, stands for it."""


class Sizes(NamedTuple):
    """Sizes of one step, in bytes: of what a checkpoint holds, of the residuals that a step of a
    taped block keeps, of those of a step that is taped alone, of the whole carry, and of those
    weights whose cotangents are added up once for a block. `work` is the time of an evaluation in
    nanoseconds, as estimated; `None` stands for so much that nothing else counts."""

    checkpoint: int
    residuals: int
    alone: int
    carry: int
    weights: int = 0
    work: float | None = None


def memory(plan: Reversal, sizes: Sizes) -> int:
    """Bytes that the plan holds, of such a loop."""
    residuals = sizes.residuals if plan.block_size > 1 else sizes.alone
    return plan.memory(sizes.checkpoint, residuals, sizes.carry)


def held(plan: Plan, sizes: Sizes, *, is_while: bool = False) -> int:
    """Bytes that the forward sweep leaves to the reverse sweep: in a loop, they exist once for each
    of its steps that is taped."""
    if is_while:
        return plan.checkpoints * (sizes.checkpoint + PLACE)
    tape = plan.block_size * sizes.alone if plan.block_size > 1 else 0
    return plan.checkpoints * sizes.checkpoint + tape


def passing(plan: Plan, sizes: Sizes, *, is_while: bool = False) -> int:
    """Bytes that the plan holds besides, only while the loop is reversed."""
    places = plan.checkpoints * PLACE if is_while else 0
    return memory(plan, sizes) + places - held(plan, sizes, is_while=is_while)


def evaluations(plan: Reversal, *, is_while: bool = False) -> int:
    """Steps that `jax.value_and_grad` of a loop runs, all of `plan.length` being taken.

    Of a loop that may stop by itself the last block is not known when it is run for the value, and
    checkpoints are placed online.
    """
    if not is_while:
        return plan.evaluations
    if isinstance(plan, TwoLevelPlan):
        return _least_evaluations(plan)
    blocks, checkpoints = plan.blocks, plan.checkpoints
    is_optimal = blocks <= beta(checkpoints, 2)
    if is_optimal or blocks > MOST_BLOCKS_SIMULATED:
        return _least_evaluations(plan)
    again = online.evaluations(blocks, checkpoints) - 2 * blocks
    return 2 * plan.length + plan.block_size * again


def _least_evaluations(plan: Reversal) -> int:
    """Of a loop that stops by itself, if its checkpoints are where they should be."""
    if isinstance(plan, TwoLevelPlan):
        # The tail is one more part that starts in the storage, without the end of the loop: see
        # `engine.online`.
        end, blocks = plan.scheduled_blocks - plan.tail, plan.blocks - plan.tail
        again = advances(blocks, plan.checkpoints) - advances(end, plan.checkpoints) - plan.tail
        return 2 * plan.length + plan.advances + plan.block_size * again
    again = advances(plan.blocks + 1, plan.checkpoints) - plan.blocks
    return 2 * plan.length + plan.block_size * again


def time(plan: Reversal, sizes: Sizes, *, is_while: bool = False) -> float:
    """Nanoseconds, without what all plans have in common; or evaluations, if those are all. A
    transfer to a storage or from there takes as long as the evaluations that it is said to."""
    runs = _runs(plan, is_while)
    if sizes.work is None:
        return runs
    in_blocks, alone = sizes.residuals * RESIDUAL_BYTE, sizes.weights * WEIGHT_BYTE
    return (
        runs * (sizes.work + EVALUATION)
        + plan.length * (in_blocks if plan.block_size > 1 else alone)
        + memory(plan, sizes) * HELD_BYTE
        + plan.blocks * BLOCK
    )


@lru_cache(maxsize=2**14)
def _runs(plan: Reversal, is_while: bool) -> float:
    """Evaluations, and what transfers take in evaluations."""
    runs = float(_least_evaluations(plan) if is_while else plan.evaluations)
    if isinstance(plan, TwoLevelPlan):
        runs += plan.storage.transfer * (plan.writes + plan.reads)
    return runs
