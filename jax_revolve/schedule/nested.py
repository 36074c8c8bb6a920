"""Lengths for loops inside loops: the nested form, which is made of ordinary JAX loops."""

from jax_revolve.schedule.binomial import smallest
from jax_revolve.schedule.plan import Reversal

DEEPEST = 2
"""Nesting deeper saves memory, as a higher root of the length, but every level is a copy of the
step in the program, and every derivative multiplies the copies."""


def levels(plan: Reversal) -> int:
    """How deep to nest: one level, which stores every carry, where the plan stores every carry or
    residual too; otherwise `DEEPEST`."""
    stores_all = max(plan.checkpoints + 1, plan.block_size) >= plan.length
    return 1 if stores_all else DEEPEST


def nests(length: int, levels: int) -> tuple[tuple[int, ...], ...]:
    """`length` steps as a sequence of nests, each a tuple of lengths from the outermost loop in.

    The digits of `length` in some base: (q, b, b), (r, b), (t,) for q b**2 + r b + t, so that no
    step is padded. The base is the smallest with which `levels` digits suffice, or one up to half
    as large again if that takes fewer nests: each is a program of its own, and works on a copy of
    its part of the xs. Two levels with such a base store 8 % more carries.
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
