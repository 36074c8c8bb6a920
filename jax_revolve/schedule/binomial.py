"""The mathematics of Revolve, in exact integers.

A loop of `length` steps is reversed with `checkpoints` slots. A slot holds one saved carry, and the
slot that holds the initial carry counts. To *advance* is to run a step without keeping its
linearization; to *tape* is to run it keeping the linearization, which is then transposed.

Sources: A. Griewank and A. Walther, "Algorithm 799: revolve", ACM TOMS 26(1), 2000; A. Griewank and
A. Walther, "Evaluating Derivatives", SIAM, 2nd edition 2008, chapter 12.
"""

from collections.abc import Callable
from math import comb

MOST_REPETITIONS_IN_TABLES = 4096
"""Tables for the device end here, with rules that are right but not the best ones beyond. No loop
gets there: with two slots it has 8 million steps, each of which runs 4096 times."""


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

    Without any repetition no loop longer than one step can be reversed, so `repetitions >= 1`.
    """
    return max(1, smallest(lambda s: beta(s, repetitions) >= length))


def advances(length: int, checkpoints: int) -> int:
    """The least possible number of advances, t(n, s) = r n - beta(s + 1, r - 1)."""
    r = repetition(length, checkpoints)
    return r * length - beta(checkpoints + 1, r - 1)


def split(steps: int, checkpoints: int) -> int:
    """How far to advance before the next checkpoint, with `steps` steps to reverse.

    `checkpoints` counts the slot that the advance starts from and every free one. With a single one
    there is nowhere to store, and the advance goes to the last step. The middle term below is
    Revolve's rule; its three cases are one clip by Pascal's identity.
    """
    if checkpoints == 1:
        return steps - 1
    shortest, offset, longest = split_terms(checkpoints, repetition(steps, checkpoints))
    return min(max(steps - offset, shortest), longest)


def split_terms(checkpoints: int, repetitions: int) -> tuple[int, int, int]:
    """The terms of `split` that do not depend on the number of steps: shortest, offset, longest."""
    s, r = checkpoints, repetitions
    return max(beta(s, r - 2), 1), beta(s - 1, r - 1) + beta(s - 2, r - 1), beta(s, r - 1)


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
