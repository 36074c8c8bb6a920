"""The cost of a plan: its bytes, and a prediction of its time.

The predicted time of a loop of n steps in N blocks of k steps is a sum of four terms:

- the evaluations, times the time of a step and of one iteration of the loop around it;
- if k > 1, writing and reading the residuals of n steps; if k = 1, the residuals of a step never
  leave the cache, and the term is adding n times to the cotangents of large weights;
- the memory that the plan holds, beyond what stays in the caches and the allocator reuses;
- N iterations of the loop over the blocks, and the iterations of loops whose end depends on data.

Costs that all plans share, such as the transposition of every step, are left out. The constants are
from the device's `profiles`; `benchmarks/plans.py` compares the plans that they choose with
others.
"""

from functools import lru_cache
from typing import NamedTuple

from jax_revolve.profiles.profile import CPU, Profile
from jax_revolve.schedule import online
from jax_revolve.schedule.binomial import advances, beta
from jax_revolve.schedule.plan import Reversal
from jax_revolve.schedule.storage import TRANSFER, Disk, Storage
from jax_revolve.schedule.two_level import TwoLevelPlan

STEPS_IN_A_PRODUCT = 32
"""The most steps whose share of a weight's cotangent is computed by one product. Its factors are
kept for so many steps, however long the block. More steps do not make the product quicker."""

STACK_ENTRY = 8
"""The bytes of a stack level of a while loop: the position of its checkpoint and its slot index."""

MOST_BLOCKS_SIMULATED = 2000
"""An online schedule that is not optimal has no closed formula, and is simulated. For loops of more
blocks, the formula of the optimum is used, which is a few percent lower."""


class Sizes(NamedTuple):
    """The sizes of one step, in bytes, and its work."""

    checkpoint: int  # the leaves of the carry that a checkpoint holds
    residuals: int  # what is kept of a step in a block of several steps
    alone: int  # the residuals of a step that is taped alone
    carry: int  # the whole carry
    weights: int = 0  # the weights whose cotangents are computed once for a block
    # The estimated nanoseconds of an evaluation; `None` if nothing else counts beside them.
    work: float | None = None
    again: int = 0  # the residuals of a single step that are computed again from what is kept
    again_work: float = 0.0  # the estimated nanoseconds of that
    uncut: int | None = None  # the residuals that JAX keeps of a step
    # What is kept of a step for the cotangents of `weights`, from when it is pulled back to the end
    # of the piece of a block whose products are computed together.
    factors: int = 0
    arrays: int = 0  # how many are written for each step of a block
    profile: Profile = CPU  # what things take on the device
    is_walked_back: bool = False  # blocks are, and have no tape; `again` is what they take instead


def memory(plan: Reversal, sizes: Sizes) -> int:
    if plan.block_size == 1:
        return plan.memory(sizes.checkpoint, sizes.alone, sizes.carry)
    in_block = plan.memory(sizes.checkpoint, sizes.residuals, sizes.carry)
    return in_block + sizes.again + piece(plan.block_size) * sizes.factors


def piece(block_size: int, most: int = STEPS_IN_A_PRODUCT) -> int:
    """The length of a block's pieces, each of which computes weight gradients by one product."""
    return -(-block_size // -(-block_size // most))


def held(plan: Reversal, sizes: Sizes, *, is_while: bool = False) -> int:
    """The bytes held between the sweeps. An inner loop's exist once for each taped outer step."""
    if is_while:
        return plan.checkpoints * (sizes.checkpoint + STACK_ENTRY)
    tape = plan.block_size * sizes.residuals if plan.block_size > 1 else 0
    return plan.checkpoints * sizes.checkpoint + tape


def passing(plan: Reversal, sizes: Sizes, *, is_while: bool = False) -> int:
    """The further bytes that the plan holds during the reverse sweep only."""
    stack = plan.checkpoints * STACK_ENTRY if is_while else 0
    return memory(plan, sizes) + stack - held(plan, sizes, is_while=is_while)


def evaluations(plan: Reversal, *, is_while: bool = False) -> int:
    """The evaluations of `jax.value_and_grad` of a loop that takes all of `plan.length` steps.

    The forward sweep of a while loop places checkpoints online. It does not tape the last block,
    because it does not know which block is the last.
    """
    if not is_while:
        return plan.evaluations
    is_optimal = plan.blocks <= beta(plan.checkpoints, 2)
    if isinstance(plan, TwoLevelPlan) or is_optimal or plan.blocks > MOST_BLOCKS_SIMULATED:
        return _least_evaluations(plan)
    again = online.evaluations(plan.blocks, plan.checkpoints) - 2 * plan.blocks
    return 2 * plan.length + plan.block_size * again


def _least_evaluations(plan: Reversal) -> int:
    """The evaluations of a while loop whose checkpoints are at optimal positions."""
    if isinstance(plan, TwoLevelPlan):
        # The tail is reversed as a part, from a carry in the storage, without the end of the loop:
        # see `engine.online`.
        end, blocks = plan.scheduled_blocks - plan.tail, plan.blocks - plan.tail
        again = advances(blocks, plan.checkpoints) - advances(end, plan.checkpoints) - plan.tail
        return 2 * plan.length + plan.advances + plan.block_size * again
    again = advances(plan.blocks + 1, plan.checkpoints) - plan.blocks
    return 2 * plan.length + plan.block_size * again


def time(plan: Reversal, sizes: Sizes, *, is_while: bool = False) -> float:
    """The predicted nanoseconds, without the costs that all plans share; if `sizes.work` is `None`,
    the evaluations. A transfer counts as `storage.transfer` evaluations."""
    runs, profile = _weighted_evaluations(plan, is_while), sizes.profile
    if sizes.work is None:
        return runs
    alone = sizes.weights * profile.weight_byte
    in_blocks = (sizes.residuals + sizes.factors) * profile.residual_byte + sizes.again_work
    in_blocks += sizes.arrays * profile.residual_array
    return (
        runs * (sizes.work + profile.evaluation)
        + plan.length * (in_blocks if plan.block_size > 1 else alone)
        + max(memory(plan, sizes) - profile.reused, 0) * profile.held_byte
        + plan.blocks * profile.block
        + _waits(plan, is_while) * profile.waiting
    )


def _waits(plan: Reversal, is_while: bool) -> float:
    """About the iterations of loops whose end depends on data, without the forward sweep's."""
    if not is_while and plan.static_levels:
        return 0
    return max(_weighted_evaluations(plan, is_while) - 2 * plan.length, 0) + 2 * plan.blocks


@lru_cache(maxsize=2**14)
def _weighted_evaluations(plan: Reversal, is_while: bool) -> float:
    """The evaluations, with transfers counted as evaluations."""
    runs = float(_least_evaluations(plan) if is_while else plan.evaluations)
    if isinstance(plan, TwoLevelPlan):
        assert plan.storage.transfer is not None
        runs += plan.storage.transfer * (plan.writes + plan.reads)
    return runs


def transfer(storage: Storage, sizes: Sizes) -> float:
    """The steps that take as long as writing or reading a checkpoint, to two digits."""
    profile = sizes.profile
    if sizes.work is None:
        return TRANSFER
    once, byte = profile.host_transfer, profile.host_byte
    if isinstance(storage, Disk):
        once, byte = profile.disk_transfer, profile.disk_byte
    step = sizes.work + profile.evaluation
    return float(f"{(once + byte * sizes.checkpoint) / max(step, 1.0):.2g}")
