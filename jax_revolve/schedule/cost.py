"""The cost of a plan: its bytes, and a prediction of its time.

The predicted time of a loop of n steps in N blocks of k steps is

      evaluations * (a step + an iteration of the loop around it)
    + n * (k > 1: writing and reading residuals, and what a step that is taped alone leaves out)
    + products that are added to cotangents of large weights: one a step, or for many of a block
    + the bytes held, beyond those that caches keep and the allocator reuses
    + N * an iteration of the loop over blocks + iterations that wait because they depend on data

With k = 1, the residuals of a step never leave the cache. Costs that all plans share, such as the
transposition of every step, are left out. The constants are the device's profile (`profiles`);
`benchmarks/plans.py` compares the chosen plans with others.
"""

from functools import lru_cache
from typing import NamedTuple

from jax_revolve.profiles.profile import CPU, Profile
from jax_revolve.schedule import online
from jax_revolve.schedule.binomial import advances, beta
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.storage import TRANSFER, Place

STEPS_IN_A_PRODUCT = 32
"""The most steps in one product that computes a weight gradient, whose factors are kept until then.
More steps do not make the product faster."""

STACK_ENTRY = 8
"""The bytes of an entry of a while loop's stack: a position and a slot index."""

MOST_BLOCKS_SIMULATED = 2000
"""Online schedules that are not optimal have no closed formula, so we simulate them. For more
blocks, we use the formula of the optimum, which is a few percent lower."""


class Sizes(NamedTuple):
    """The sizes of one step, in bytes, and its work."""

    checkpoint: int  # the leaves of the carry that a checkpoint holds
    residuals: int  # the kept residuals of a step in a block of several steps
    alone: int  # the residuals of a step that is taped alone
    carry: int  # the whole carry
    weights: int = 0  # the weights whose cotangents are sums of one product for many steps
    # The estimated nanoseconds of an evaluation; `None` if nothing else counts beside them.
    work: float | None = None
    again: int = 0  # the residuals of a single step that are recomputed from the kept ones
    again_work: float = 0.0  # how many nanoseconds longer a step takes in a block than alone
    copied: int = 0  # the kept bytes of a step of a block that products make or read
    uncut: int | None = None  # the residuals of a step that JAX keeps
    factors: int = 0  # kept from the pullback of a step to the product for `weights`
    arrays: int = 0  # how many arrays of residuals are written for each step of a block
    profile: Profile = CPU
    is_walked_back: bool = False  # blocks have no tape, and take `again` instead
    journal: int = 0  # what all steps log to undo histories, and the histories at the end


def memory(plan: Plan, sizes: Sizes) -> int:
    # What is added to the cotangent of a weight is there before.
    carry = sizes.carry + sizes.journal + sizes.weights
    if plan.block_size == 1:
        return plan.memory(sizes.checkpoint, sizes.alone, carry)
    in_block = plan.memory(sizes.checkpoint, sizes.residuals, carry)
    return in_block + sizes.again + piece(plan.block_size) * sizes.factors


def piece(block_size: int, most: int = STEPS_IN_A_PRODUCT) -> int:
    """The number of steps of a block whose weight gradients are one product."""
    return -(-block_size // -(-block_size // most))


def held(plan: Plan, sizes: Sizes, *, is_while: bool = False) -> int:
    """The bytes held between the sweeps, to be multiplied by an outer loop's block size."""
    if is_while:
        return plan.checkpoints * (sizes.checkpoint + STACK_ENTRY) + sizes.journal
    tape = plan.block_size * sizes.residuals if plan.block_size > 1 else 0
    return plan.checkpoints * sizes.checkpoint + tape + sizes.journal


def passing(plan: Plan, sizes: Sizes, *, is_while: bool = False) -> int:
    """The additional bytes that the plan holds during the reverse sweep only."""
    stack = plan.checkpoints * STACK_ENTRY if is_while else 0
    return memory(plan, sizes) + stack - held(plan, sizes, is_while=is_while)


def evaluations(plan: Plan, *, is_while: bool = False) -> int:
    """The evaluations of `jax.value_and_grad` of a loop that takes all of `plan.length` steps. A
    while loop does not tape its last block, because it does not know which block is the last."""
    if not is_while:
        return plan.evaluations
    is_optimal = plan.blocks <= beta(plan.checkpoints, 2)
    if plan.segments or is_optimal or plan.blocks > MOST_BLOCKS_SIMULATED:
        return _least_evaluations(plan)
    repeated = online.evaluations(plan.blocks, plan.checkpoints) - 2 * plan.blocks
    return 2 * plan.length + plan.block_size * repeated


def _least_evaluations(plan: Plan) -> int:
    """The evaluations of a while loop whose checkpoints are at optimal positions."""
    if plan.segments:
        # The tail is reversed as a part, from a carry in the storage, without the loop's end.
        end, blocks = plan.scheduled_blocks - plan.tail, plan.blocks - plan.tail
        repeated = advances(blocks, plan.checkpoints) - advances(end, plan.checkpoints) - plan.tail
        return 2 * plan.length + plan.block_size * (plan.block_advances + repeated)
    repeated = advances(plan.blocks + 1, plan.checkpoints) - plan.blocks
    return 2 * plan.length + plan.block_size * repeated


def time(plan: Plan, sizes: Sizes, *, is_while: bool = False) -> float:
    """The predicted nanoseconds, without costs that all plans share; the evaluations if
    `sizes.work` is `None`. A transfer counts as `storage.transfer` evaluations."""
    runs, profile = _weighted_evaluations(plan, is_while), sizes.profile
    if sizes.work is None:
        return runs
    in_block, products = 0.0, plan.length
    if plan.block_size > 1:
        in_block = (sizes.residuals + sizes.factors) * profile.residual_byte + sizes.again_work
        in_block += sizes.copied * profile.copied_byte + sizes.arrays * profile.residual_array
        products = plan.blocks * -(-plan.block_size // piece(plan.block_size))
    return (
        runs * (sizes.work + profile.evaluation)
        + plan.length * in_block
        + products * sizes.weights * profile.weight_byte
        + max(memory(plan, sizes) - profile.reused, 0) * profile.held_byte
        + plan.blocks * profile.block
        + _waits(plan, is_while) * profile.waiting
    )


def _waits(plan: Plan, is_while: bool) -> float:
    """About the number of iterations, in the reverse sweep, of loops whose end depends on data."""
    if not is_while and plan.static_levels:
        return 0
    return max(_weighted_evaluations(plan, is_while) - 2 * plan.length, 0) + 2 * plan.blocks


@lru_cache(maxsize=2**14)
def _weighted_evaluations(plan: Plan, is_while: bool) -> float:
    """The evaluations, plus transfers in units of evaluations."""
    runs = float(_least_evaluations(plan) if is_while else plan.evaluations)
    if (storage := plan.storage_of_segments) is not None:
        runs += (storage.transfer or 0) * (plan.writes + plan.reads)
    return runs


def transfer(storage: Place, sizes: Sizes) -> float:
    """The time to write or read a checkpoint, in steps, to two digits."""
    profile = sizes.profile
    if sizes.work is None:
        return TRANSFER
    once, byte = storage.costs(profile)
    step = sizes.work + profile.evaluation
    return float(f"{(once + byte * sizes.checkpoint) / max(step, 1.0):.2g}")
