"""The lengths of scans inside scans, for the nested engine."""

from math import isqrt
from typing import NamedTuple

from jax_revolve.schedule.binomial import smallest
from jax_revolve.schedule.plan import Reversal

Lengths = tuple[int, ...]
"""Of scans inside each other, the outermost first."""

DEEPEST = 2
"""Deeper nests save memory, as a higher root of the length. But each level adds a copy of the step
to the program, and every derivative multiplies the copies."""

LONGER = 1.25
"""By how much blocks may be longer or shorter than is best, if they then divide the loop evenly."""


class Nests(NamedTuple):
    """A loop as a sequence of nests. If `is_taped`, the innermost scan keeps of its steps what
    their pullback needs; otherwise it keeps checkpoints."""

    lengths: tuple[Lengths, ...]
    is_taped: bool


def nests(plan: Reversal, checkpoint: int, taped: int | None) -> Nests:
    """The nests for a loop with this plan, from the bytes of a checkpoint and of what is kept of a
    taped step; `None` if steps cannot be taped.

    As much memory may be held as the plan holds, or as single steps would take. With blocks of k of
    n steps, n/k checkpoints and k taped steps are held: the least with
    k = sqrt(n * checkpoint / taped).
    """
    length = plan.length
    stores_all = max(plan.checkpoints + 1, plan.block_size) >= length
    levels = 1 if stores_all else DEEPEST
    single = in_base(length, levels)
    if taped is not None:
        most = sum(map(sum, single)) * checkpoint
        most = max(most, plan.memory(checkpoint, taped))
        if length * taped <= most:
            return Nests(((length,),) if length else (), True)
        block = max(isqrt(length * checkpoint // max(taped, 1)), 1)
        if length // block * checkpoint + block * taped <= most:
            return Nests(_in_blocks(length, block), True)
    return Nests(single, False)


def _in_blocks(length: int, block: int) -> tuple[Lengths, ...]:
    """Blocks of about this length, and the rest. Each nest is a program of its own."""
    around = range(max(int(block / LONGER), 1), min(int(block * LONGER), length) + 1)
    block = min(around, key=lambda k: (length % k > 0, abs(k - block)))
    blocks, rest = divmod(length, block)
    return ((blocks, block), *([(rest,)] if rest else []))


def in_base(length: int, levels: int) -> tuple[Lengths, ...]:
    """`length` steps as nests of which each keeps checkpoints.

    The lengths are the digits of `length` in some base: (q, b, b), (r, b), (t,) for q b**2 + r b +
    t. So no step is padded. The base is the smallest for which `levels` digits suffice, or one up
    to half as large again if that gives fewer nests: each nest is a program of its own, and copies
    its slice of the xs. Two levels with the largest such base store 8 % more carries.
    """
    least = max(smallest(lambda base: base**levels >= length), 1)
    bases = range(least, least + (least // 2 if levels > 1 else 0) + 1)
    return min((_digits(length, base, levels) for base in bases), key=len)


def _digits(length: int, base: int, levels: int) -> tuple[Lengths, ...]:
    nests, rest = [], length
    for inner in reversed(range(levels)):
        digit, rest = divmod(rest, base**inner)
        if digit:
            nests.append((digit, *[base] * inner))
    return tuple(nests)
