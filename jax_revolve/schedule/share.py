"""One budget for several loops, whose checkpoints are all there at the same time."""

from collections.abc import Sequence
from itertools import pairwise

Outlay = tuple[int, float]
"""Bytes, and the time that a loop takes with so many."""


def share(budget: int, loops: Sequence[Sequence[Outlay]]) -> list[int]:
    """The bytes that each loop gets, so that all together take little time.

    Each has its choices, in more and more bytes and less and less time, the first of which the
    budget must be enough for. More bytes go where they save the most time per byte, as long as
    they fit: that is the least time there is, but for what the last bytes would save that do not.
    Choices above the lower convex hull are passed over.
    """
    hulls = [_lower_hull(choices) for choices in loops]
    shares = [hull[0][0] for hull in hulls]
    left = budget - sum(shares)
    assert left >= 0
    gains = [
        ((time - less) / (size - before), loop, size)
        for loop, hull in enumerate(hulls)
        for (before, time), (size, less) in pairwise(hull)
    ]
    full: set[int] = set()
    for _, loop, size in sorted(gains, key=lambda gain: -gain[0]):
        if loop not in full and size - shares[loop] <= left:
            left -= size - shares[loop]
            shares[loop] = size
        else:
            full.add(loop)
    return shares


def _lower_hull(choices: Sequence[Outlay]) -> list[Outlay]:
    """Those choices of which every one saves less time per byte than the one before."""
    hull: list[Outlay] = []
    for choice in choices:
        while len(hull) > 1 and _gain(hull[-2], choice) >= _gain(hull[-2], hull[-1]):
            hull.pop()
        hull.append(choice)
    return hull


def _gain(fewer: Outlay, more: Outlay) -> float:
    return (fewer[1] - more[1]) / (more[0] - fewer[0])
