"""The lengths of scans inside scans, for the nested engine."""

from jax_revolve.schedule.binomial import smallest
from jax_revolve.schedule.plan import Reversal

DEEPEST = 2
"""Deeper nests save memory, as a higher root of the length. But each level adds a copy of the step
to the program, and every derivative multiplies the copies."""


def levels(plan: Reversal) -> int:
    """The depth of the nest: `DEEPEST`, or one level, which stores every carry, if the plan stores
    every carry or every residual."""
    stores_all = max(plan.checkpoints + 1, plan.block_size) >= plan.length
    return 1 if stores_all else DEEPEST


def nests(length: int, levels: int) -> tuple[tuple[int, ...], ...]:
    """`length` steps as a sequence of nests, each a tuple of lengths with the outermost loop first.

    The lengths are the digits of `length` in some base: (q, b, b), (r, b), (t,) for q b**2 + r b +
    t. So no step is padded. The base is the smallest for which `levels` digits suffice, or one up
    to half as large again if that gives fewer nests: each nest is a program of its own, and copies
    its slice of the xs. Two levels with the largest such base store 8 % more carries.
    """
    least = max(smallest(lambda base: base**levels >= length), 1)
    bases = range(least, least + (least // 2 if levels > 1 else 0) + 1)
    return min((_digits(length, base, levels) for base in bases), key=len)


def _digits(length: int, base: int, levels: int) -> tuple[tuple[int, ...], ...]:
    nests, rest = [], length
    for inner in reversed(range(levels)):
        digit, rest = divmod(rest, base**inner)
        if digit:
            nests.append((digit, *[base] * inner))
    return tuple(nests)
