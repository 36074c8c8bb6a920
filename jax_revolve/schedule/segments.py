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

If the storage has room for fewer, segments are long, and are reversed in K equal *parts*: for each,
the segment's carry is read again, and advanced to the part. K parts of p blocks cost

    K p + p K (K - 1) / 2 + K t(p, s) + (1 + K) transfer

Other schedules cost less, up to a tenth with a single slot and less than 0.1 % with three or more
and room in the storage: G. Aupy, J. Herrmann, P. Hovland and Y. Robert, "Optimal multistage
algorithm for adjoint computation", SIAM J. Sci. Comput. 38(3), 2016.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache, partial
from typing import NamedTuple

from jax_revolve.schedule.binomial import advances, beta, smallest


class Segments(NamedTuple):
    """`number` segments of `parts` parts of `size` blocks each."""

    number: int = 0
    parts: int = 0
    size: int = 0


@lru_cache(maxsize=1024)
def best(blocks: int, slots: int, transfer: Fraction, most: int | None = None) -> Segments:
    """The segments, at most `most`; the fewest among equally good ones."""
    block, once = transfer.denominator, transfer.numerator  # in units of equal cost

    def cost(count: int, parts: int, size: int) -> int:
        advanced = size * parts * (parts + 1) // 2 + parts * advances(size, slots)
        of_segment = block * advanced + (1 + parts) * once
        return count * of_segment + block * advances(blocks - count * parts * size, slots)

    def best_size(count: int, parts: int) -> Segments:
        longest = (blocks - 1) // (count * parts)
        return Segments(count, parts, _least(partial(cost, count, parts), near, 1, longest))

    found = [Segments()]
    r = smallest(lambda r: block * beta(slots + 1, r) > 2 * once)
    near = min(beta(slots, r), max(blocks - 1, 1))
    longest_tail, counts = beta(slots, r + 1), (blocks - 1) // near
    wanted = _least(lambda n: cost(n, 1, near), (blocks - longest_tail) // near, 0, counts)
    most = blocks - 1 if most is None else min(most, blocks - 1)
    for count in range(min(wanted - 1, most), min(wanted + 1, most) + 1):
        if count >= 1:
            found.append(best_size(count, 1))
    if wanted > most > 0:  # one part more, until that pays no more
        for count in range(max(most - 1, 1), most + 1):
            of_parts = lambda k, n=count: cost(*best_size(n, k))  # noqa: E731
            found.append(best_size(count, _least(of_parts, 1, 1, (blocks - 1) // count)))
    return min(found, key=lambda each: (cost(*each), *each))


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
