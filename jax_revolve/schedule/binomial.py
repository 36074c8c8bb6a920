"""The mathematics of Revolve, in exact integers.

A loop of `length` steps is reversed with `checkpoints` slots. A slot holds one stored carry, and
the slot that holds the initial carry counts. To *advance* is to run a step without keeping its
residuals. To *tape* is to linearize a step and to keep its residuals until the step is transposed.

Sources: A. Griewank and A. Walther, "Algorithm 799: revolve", ACM TOMS 26(1), 2000; A. Griewank and
A. Walther, "Evaluating Derivatives", SIAM, 2nd edition 2008, chapter 12.
"""

from collections.abc import Callable
from math import comb

MOST_REPETITIONS_IN_TABLES = 4096
"""The largest repetition number in tables on the device; beyond it, their rules are correct but not
optimal. No loop gets there: with two slots it would have 8 million steps and advance some of them
4096 times."""


def beta(checkpoints: int, repetitions: int) -> int:
    """The longest loop that `checkpoints` slots reverse with no step advanced more than
    `repetitions` times: the binomial coefficient C(s + t, s). Zero for negative arguments."""
    if checkpoints < 0 or repetitions < 0:
        return 0
    return comb(checkpoints + repetitions, checkpoints)


def repetition(length: int, checkpoints: int) -> int:
    """The repetition number: the r with beta(s, r - 1) < n <= beta(s, r)."""
    return smallest(lambda r: beta(checkpoints, r) >= length)


def fewest_checkpoints(length: int, repetitions: int) -> int:
    """The fewest slots, at least one, with which no step is advanced more than `repetitions` times.

    `repetitions` must be >= 1: without repetition, no loop of more than one step can be reversed.
    """
    return max(1, smallest(lambda s: beta(s, repetitions) >= length))


def advances(length: int, checkpoints: int) -> int:
    """The least possible number of advances, t(n, s) = r n - beta(s + 1, r - 1)."""
    r = repetition(length, checkpoints)
    return r * length - beta(checkpoints + 1, r - 1)


def split(steps: int, checkpoints: int) -> int:
    """The number of steps to advance to the next checkpoint, if `steps` steps are to be reversed.

    `checkpoints` counts the slot at the start of the advance and every free slot. With a single
    slot, the advance goes to the last step. The clip below is Revolve's rule, whose three cases
    Pascal's identity joins.
    """
    if checkpoints == 1:
        return steps - 1
    s, r = checkpoints, repetition(steps, checkpoints)
    offset = beta(s - 1, r - 1) + beta(s - 2, r - 1)
    return min(max(steps - offset, beta(s, r - 2), 1), beta(s, r - 1))


def first_positions(steps: int, checkpoints: int) -> list[int]:
    """The checkpoints stored before the last step is first reached: 0, and each next split."""
    positions = [0]
    while len(positions) < checkpoints:
        last = positions[-1]
        following = last + split(steps - last, checkpoints + 1 - len(positions))
        if following >= steps - 1:
            break
        positions.append(following)
    return positions


def smallest(holds: Callable[[int], bool]) -> int:
    """The smallest integer >= 0 for which a monotone predicate holds, by doubling and bisection."""
    if holds(0):
        return 0
    high = 1
    while not holds(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
