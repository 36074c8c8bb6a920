"""The mathematics of Revolve, in exact integers.

We reverse a loop of n = `length` steps with s = `checkpoints` slots, including the initial carry's.
To *advance* is to run a step without keeping its residuals. To *tape* is to run it and keep its
residuals until it is transposed. The longest loop in which no step is advanced more than r times:

    beta(s, r) = beta(s - 1, r) + beta(s, r - 1) = C(s + r, s)
                 after the next     before it, where each
                 checkpoint         step runs once more

Sources: A. Griewank and A. Walther, "Algorithm 799: revolve", ACM TOMS 26(1), 2000; A. Griewank and
A. Walther, "Evaluating Derivatives", SIAM, 2nd edition 2008, chapter 12.
"""

from collections.abc import Callable
from functools import lru_cache
from math import comb

MOST_REPETITIONS_IN_TABLES = 4096
"""The largest repetition number in tables on the device; beyond it, schedules are correct but not
optimal. No loop gets there: with two slots, it would take 8 million steps."""


def beta(checkpoints: int, repetitions: int) -> int:
    """The longest loop that `checkpoints` slots reverse with no step advanced more than
    `repetitions` times. Zero for negative arguments."""
    if checkpoints < 0 or repetitions < 0:
        return 0
    return comb(checkpoints + repetitions, checkpoints)


def repetition(length: int, checkpoints: int) -> int:
    """The repetition number: the r with beta(s, r - 1) < n <= beta(s, r)."""
    return _least(length, checkpoints)


def fewest_checkpoints(length: int, repetitions: int) -> int:
    """The fewest slots, at least one, with which no step is advanced more than `repetitions` >= 1
    times."""
    return max(1, _least(length, repetitions))  # beta is symmetric


@lru_cache(maxsize=2**12)
def _least(length: int, other: int) -> int:
    """The least m with beta(m, other) >= length, by the recurrence of binomial coefficients."""
    if other == 1:
        return max(length - 1, 0)
    least, longest = 0, 1
    while longest < length:
        least += 1
        longest = longest * (other + least) // least
    return least


def advances(length: int, checkpoints: int) -> int:
    """The least possible number of advances, t(n, s) = r n - beta(s + 1, r - 1)."""
    r = repetition(length, checkpoints)
    return r * length - beta(checkpoints + 1, r - 1)


def split(steps: int, checkpoints: int) -> int:
    """The number of steps to advance to the next checkpoint when `steps` steps are to be reversed.

    `checkpoints` counts the slot at the start of the advance and every free slot. With one slot,
    advance to the last step. The clip is Revolve's rule, whose three cases Pascal's identity joins.
    """
    if checkpoints == 1:
        return steps - 1
    s, r = checkpoints, repetition(steps, checkpoints)
    offset = beta(s - 1, r - 1) + beta(s - 2, r - 1)
    return min(max(steps - offset, beta(s, r - 2), 1), beta(s, r - 1))


def first_positions(steps: int, checkpoints: int) -> list[int]:
    """The checkpoints that the first pass stores on its way to the last step."""
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
