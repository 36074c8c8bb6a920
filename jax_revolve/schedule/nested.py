"""Lengths for loops inside loops: the nested form, which is made of ordinary JAX loops."""


def levels(repetitions: int) -> int:
    """How deep to nest: as many evaluations per step as the schedule, but at most `DEEPEST`.

    Two levels at least, but a schedule without repetition stores every carry, and so does one loop.
    """
    return min(max(repetitions, 1), DEEPEST)


DEEPEST = 2
"""Nesting deeper saves memory as the n-th root, but multiplies the size of the program."""


def nests(length: int, levels: int) -> tuple[tuple[int, ...], ...]:
    """`length` steps as a sequence of nests, each a tuple of lengths from the outermost loop in.

    The digits of `length` in the base that `levels` digits can write: (q, b, b), (r, b), (t,) for
    q b**2 + r b + t. So no step is padded, and no loop stores more than `base` carries.
    """
    base = 1
    while base**levels < length:
        base += 1
    nests, rest = [], length
    for inner in reversed(range(levels)):
        digit, rest = divmod(rest, base**inner)
        if digit:
            nests.append((digit, *[base] * inner))
    return tuple(nests)
