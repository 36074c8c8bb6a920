"""The choice of a plan: the least predicted time within a memory budget."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from math import inf

from jax_revolve.schedule import binomial, cost, segments
from jax_revolve.schedule import levels as static
from jax_revolve.schedule.actions import scheduled_blocks, useful_checkpoints
from jax_revolve.schedule.arguments import TooLittleMemory
from jax_revolve.schedule.cost import Sizes
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.storage import HostMemory, Place, with_transfer

FINEST = 64
"""We try every block length up to this one; longer ones are a twentieth apart."""

MOST_UNEQUAL = 8
"""The last of more blocks is not made longer than the others: that would gain little."""

APART = 1.08
"""The ratio of neighboring plans that we try for several loops together."""

MOST_REPETITIONS_BY_DEFAULT = 2

MOST_REPETITIONS_TO_A_BOUND = 3
"""Most loops stop long before their bound. So by default they get the fewest checkpoints with which
no step is advanced more often than this even at the bound: about `(6 * max_steps) ** (1 / 3)`."""

TIE = 1.1
"""A plan must be predicted faster by this factor to be preferred to a single block, which
recomputes nothing and so is never slower than storing everything."""

MOST_FOR_NO_WAITS = 2
"""A plan without waits may be predicted to take so many times as long as one that waits."""

FEW = 12
MORE_REPETITIONS = 4
"""If more than `FEW` checkpoints fit, we try the most, and the fewest for each of the next
`MORE_REPETITIONS` repetition numbers."""


@lru_cache(maxsize=1024)
def quickest(
    length: int,
    sizes: Sizes,
    memory: int,
    *,
    block_size: int | None = None,
    is_while: bool = False,
    storage: Place | None = None,
    ample: int = 0,
) -> Plan:
    """The plan with the least predicted time within `memory` bytes, or within `ample` bytes if it
    stores every block, with as many further checkpoints in the storage as pay off."""
    plans = _fitting(length, sizes, memory, block_size, is_while)
    if ample > memory:
        larger = _fitting(length, sizes, ample, block_size, is_while)
        plans += [plan for plan in larger if plan.stores_every_block(is_while=is_while)]
    tie = TIE if storage is None else 1
    if storage is not None:
        plans = [in_segments(p, storage) for p in plans if not p.levels]
    key = lambda p: cost.time(p, sizes, is_while=is_while) * (tie if p.blocks > 1 else 1)  # noqa: E731
    best = min(plans, key=key)
    if is_while or best.static_levels or not _is_slow_to_wait(sizes):
        return best
    # How long a device waits is known least: a plan without waits may take more time.
    static = min((p for p in plans if p.static_levels), key=key, default=best)
    return static if key(static) <= MOST_FOR_NO_WAITS * key(best) else best


def equal_blocks(length: int, blocks: int) -> Plan:
    """The plan with so many blocks that are walked back, of at least two steps each. All of them
    have a stored carry, so no step is recomputed."""
    size = min(max(-(-length // max(blocks, 1)), 2), max(length, 1))
    return Plan(length, useful_checkpoints(length, size, is_while=True), size)


def walked_blocks(length: int) -> int:
    """The number of blocks that are walked back by default, about `(6 * length) ** (1 / 3)`."""
    return binomial.fewest_checkpoints(max(length, 1), MOST_REPETITIONS_TO_A_BOUND)


def walked_back(length: int, sizes: Sizes, memory: int) -> Plan:
    """The plan with the most blocks to walk back, up to the default, within `memory` bytes."""
    left = memory - cost.memory(equal_blocks(length, 1), sizes)
    if left < 0:
        raise _too_little(length, sizes, memory, max(length, 1))
    most = 1 + left // max(sizes.checkpoint, 1)
    return equal_blocks(length, min(walked_blocks(length), most))


def in_segments(plan: Plan, storage: Place) -> Plan:
    """The plan with as many further checkpoints in the storage as pay off."""
    storage = with_transfer(storage)
    transfer = Fraction(storage.transfer or 0) / plan.block_size
    blocks, most = plan.scheduled_blocks, storage.checkpoints
    count, parts, size = segments.best(blocks, plan.checkpoints, transfer, most)
    if not count:
        return plan
    return replace(plan, storage=storage, segments=count, segment=parts * size, parts=parts)


def all_stored(length: int, block_size: int, storage: HostMemory) -> Plan:
    """The one-level plan in host memory, with as many checkpoints as it allows, or the default."""
    blocks = scheduled_blocks(length, block_size)
    wanted = storage.checkpoints or binomial.fewest_checkpoints(blocks, MOST_REPETITIONS_BY_DEFAULT)
    wanted = min(wanted, useful_checkpoints(length, block_size, is_while=True))
    return Plan(length, wanted, block_size, replace(storage, checkpoints=None))


def trade_off(
    length: int, sizes: Sizes, *, block_size: int | None = None, is_while: bool = False
) -> list[Plan]:
    """The plans worth considering: each is predicted faster than all that take less memory."""
    k, all_steps = block_size or 1, max(length, 1)
    ends = Plan(length, 1, k), Plan(length, 1, all_steps), Plan(length, all_steps, k)
    least, *most = (cost.memory(plan, sizes) for plan in ends)
    plans: list[Plan] = []
    shortest = inf
    for budget in (*_growing(least, max(most), 1.5), max(most)):
        plan = quickest(length, sizes, budget, block_size=block_size, is_while=is_while)
        time = cost.time(plan, sizes, is_while=is_while)
        if time < shortest:
            plans.append(plan)
            shortest = time
    return plans


@lru_cache(maxsize=64)
def candidates(
    length: int, *, block_size: int | None = None, is_while: bool = False
) -> tuple[Plan, ...]:
    """Plans to choose from, for any sizes: the smallest first, then others a twelfth apart."""
    shortest = block_size or 1
    plans = [Plan(length, 1, shortest)]
    for k in _apart(_blocks(length)) if block_size is None else (block_size,):
        most = useful_checkpoints(length, k, is_while=is_while)
        counts = {*range(1, min(most, FEW) + 1), *_growing(FEW, most, APART)}
        counts |= {*_checkpoints(scheduled_blocks(length, k), most)}
        plans += [Plan(length, count, k) for count in sorted(counts)]
    return tuple(dict.fromkeys(plans))


def _apart(values: Iterable[int]) -> list[int]:
    """The increasing values that are at least a factor of `APART` apart, and the last value."""
    found, value = [0], 0
    for value in values:
        if value >= found[-1] * APART:
            found.append(value)
    return [*found[1:], *([value] if value > found[-1] else [])]


def _growing(least: int, most: int, ratio: float) -> Iterator[int]:
    """Numbers from `least` to below `most`, each about `ratio` times the one before."""
    while least < most:
        yield least
        least = max(least + 1, int(least * ratio))


def _fitting(
    length: int, sizes: Sizes, memory: int, block_size: int | None, is_while: bool
) -> list[Plan]:
    """The plans to choose from that take at most `memory` bytes; an error if there is none."""
    found: list[Plan] = []
    # Where waits are slow, we try plans on several levels, too, whose loops have a static length.
    is_slow_to_wait = _is_slow_to_wait(sizes)
    for k in _blocks(length) if block_size is None else (block_size,):
        left = memory - cost.memory(Plan(length, 1, k), sizes)
        if left < 0:
            continue
        useful = useful_checkpoints(length, k, is_while=is_while)
        most = min(1 + left // sizes.checkpoint, useful) if sizes.checkpoint else useful
        counts = _checkpoints(scheduled_blocks(length, k), most)
        found += [Plan(length, checkpoints, k) for checkpoints in counts]
        if is_slow_to_wait and not is_while:
            for levels in static.fewest_advances(-(-length // k), most):
                found.append(Plan(length, static.checkpoints(levels), k, levels=levels))
    if not found:
        raise _too_little(length, sizes, memory, block_size)
    if is_while or block_size is not None:
        return found
    # Beyond what caches keep, longer blocks may take more time than they save.
    limits = {memory, min(int(sizes.profile.reused), memory)}
    longer = (_longer(plan, sizes, most) for plan in found for most in limits)
    return [*found, *(plan for plan in longer if plan is not None)]


def _is_slow_to_wait(sizes: Sizes) -> bool:
    """Whether a loop waits longer before an iteration that depends on data than an iteration takes,
    as on a GPU."""
    return sizes.work is not None and sizes.profile.waiting > sizes.profile.evaluation


def _longer(plan: Plan, sizes: Sizes, memory: int) -> Plan | None:
    """The plan with the longest last block that fits, of few blocks of several steps."""
    if plan.block_size == 1 or not 1 < plan.blocks <= MOST_UNEQUAL:
        return None
    most = -(-plan.length // (plan.blocks - 1)) - 1
    left = memory - cost.memory(plan, sizes)
    left -= (cost.STEPS_IN_A_PRODUCT - cost.piece(plan.block_size)) * sizes.factors
    longest = min(plan.block_size + left // max(sizes.residuals, 1), most)
    if sizes.factors:  # whole products
        longest -= longest % cost.STEPS_IN_A_PRODUCT
    return replace(plan, block_size=longest) if longest > plan.block_size else None


def _checkpoints(blocks: int, most: int) -> Iterator[int]:
    """Numbers to try: the most, and the fewest for the next few repetition numbers."""
    if most <= FEW:
        yield from range(1, most + 1)
        return
    yield most
    least = binomial.repetition(blocks, most)
    for repetitions in range(least, least + MORE_REPETITIONS):
        checkpoints = binomial.fewest_checkpoints(blocks, max(repetitions, 1))
        if checkpoints < most:
            yield checkpoints


def _blocks(length: int) -> Iterator[int]:
    """Block lengths to try, each the shortest for its number of blocks. Few blocks may also be
    longer: then less is run again."""
    tried, k = 0, 1
    while k <= length:
        blocks = -(-length // k)
        shortest = -(-length // blocks)
        if shortest > tried:
            yield shortest
        if blocks <= MOST_UNEQUAL and k > shortest:
            yield k
        tried = max(tried, shortest)
        k = k + 1 if k < FINEST else max(k + 1, k + k // 20)
    if tried < length or length == 0:
        yield max(length, 1)


def _too_little(length: int, sizes: Sizes, memory: int, block_size: int | None) -> TooLittleMemory:
    k = block_size or 1
    least = cost.memory(Plan(length, 1, k), sizes)
    residuals = least - sizes.checkpoint - sizes.carry - sizes.weights
    weights = f", {sizes.weights} for products of weight gradients" if sizes.weights else ""
    steps = "one step" if k == 1 else f"a block of {k} steps"
    return TooLittleMemory(
        least,
        f"memory must be at least {least} bytes here, but is {memory}: {sizes.checkpoint} for a "
        f"single checkpoint, {residuals} for the residuals of {steps}{weights} and "
        f"{sizes.carry} for the carry that the loop runs on. Pass at least that much: no schedule "
        "takes less.",
    )
