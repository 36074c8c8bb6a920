"""Where a storage beyond the device holds checkpoints, in exact numbers.

The device has `slots` slots. A storage holds further carries; to write or read one costs as much as
`transfer` blocks. A loop of `blocks` blocks is cut into equal *segments* and a *tail*:

    W0----------W1----------W2----------[tail]      forward: one write per segment
                            R2[segment]             reverse: one read per segment
                R1[segment]

The forward sweep writes the carry that enters each segment, and ends as if the tail were the whole
loop. The segments are then reversed, the last one first, each with all slots. With t(n, s) advances
for n blocks and s slots, N segments of m blocks cost

    N (m + t(m, s) + 2 transfer) + t(blocks - N m, s)

For a given N, this is convex in m, because t is convex in n. A block of a segment costs least where
m is the largest length with its repetition number r, beta(s, r): the first for which one repetition
more would cost more than the transfers that it saves, 2 transfer < beta(s + 1, r). The best N for
this m, or one of its neighbors, is the best number of segments.

Segments of different lengths that are read several times can cost less, up to 7 % with a single
slot and less than 0.1 % with three or more: G. Aupy, J. Herrmann, P. Hovland and Y. Robert,
"Optimal multistage algorithm for adjoint computation", SIAM J. Sci. Comput. 38(3), 2016.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache, partial

from jax_revolve.schedule.binomial import advances, beta, smallest


@lru_cache(maxsize=1024)
def best(blocks: int, slots: int, transfer: Fraction, most: int | None = None) -> tuple[int, int]:
    """The number of segments, at most `most`, and the blocks in each: the fewest among equally good
    ones."""
    block, both = transfer.denominator, 2 * transfer.numerator  # in units of equal cost

    def cost(count: int, size: int) -> int:
        of_segment = block * (size + advances(size, slots)) + both
        return count * of_segment + block * advances(blocks - count * size, slots)

    most = blocks - 1 if most is None else min(most, blocks - 1)
    found = [(block * advances(blocks, slots), 0, 0)]
    r = smallest(lambda r: block * beta(slots + 1, r) > both)
    size = min(beta(slots, r), max(blocks - 1, 1))
    longest_tail, counts = beta(slots, r + 1), min(most, (blocks - 1) // size)
    count = _least(lambda n: cost(n, size), (blocks - longest_tail) // size, 0, counts)
    for n in (count - 1, count, count + 1):
        if 1 <= n <= most:
            best_size = _least(partial(cost, n), size, 1, (blocks - 1) // n)
            found.append((cost(n, best_size), n, best_size))
    return min(found)[1:]


def _least(convex: Callable[[int], int], near: int, least: int, most: int) -> int:
    """The least argument, from `least` to `most`, at which a convex function is least; one that is
    `near` is found soonest."""
    near = min(max(near, least), most)
    if near < most and convex(near + 1) < convex(near):
        near += 1
        return near + smallest(
            lambda i: near + i >= most or convex(near + i + 1) >= convex(near + i)
        )
    return near - smallest(lambda i: near - i <= least or convex(near - i - 1) > convex(near - i))
