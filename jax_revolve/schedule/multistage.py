"""The mathematics of checkpoints on two levels, in exact numbers.

The device has `slots` slots, including the slot at the start of a part. A storage holds further
carries. Writing or reading one costs as much as `transfer` blocks. A loop of `blocks` blocks:

    W0------------W1------------W2----------[tail]      forward: one write per segment
                                R2--->[part]            reverse: one read per part
                                R2[part]

- The forward sweep writes the carries that enter the *segments*. The last segment ends at the
  *tail*, which is reversed with the slots alone.
- The segments are then reversed, the last one first, in one or several *parts*. For each part, the
  segment's carry is read and advanced to the start of the part, which is reversed with all slots.

Let t(n, s) be the advances of a part of n blocks. The costs obey the recurrence

    T(n) = min(t(n, s), min_i i + t(n - i, s) + transfer + T(i))                     a segment
    D(n) = min(t(n, s), min_j transfer + j + D(n - j) + transfer + T(j))             the loop

Its solution has a closed form. The *depth* of a part is the number of times that it is advanced
over before it is reversed: 0 for the tail, and 1, 2, ..., k for the k parts of a segment, from the
top. A part of depth d and n blocks adds d n + t(n, s) advances. This is convex in n, with slope
d + r for repetition number r. So blocks go where the slope is least: a part of depth d takes up to
`beta(s, r - d)` blocks at slopes up to r. Because a lower depth is cheaper, the numbers of parts of
two segments need not differ by more than one. So the numbers of writes and reads determine the
optimum.

Source: G. Aupy, J. Herrmann, P. Hovland and Y. Robert, "Optimal multistage algorithm for adjoint
computation", SIAM J. Sci. Comput. 38(3), 2016, for the recurrence.
"""

from fractions import Fraction
from functools import lru_cache
from operator import sub
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from jax_revolve.schedule.binomial import beta, smallest

Parts: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
"""The parts of all segments, in the order in which they are reversed after the tail. The rows are
the index of the carry in the storage, the block to which it is advanced, and the block before which
the part stops."""


class Transfers(NamedTuple):
    """The schedule with this number of writes, one for each segment, and reads, one per part."""

    blocks: int
    slots: int
    writes: int
    reads: int

    @property
    def _parts_of_a_segment(self) -> tuple[int, int]:
        """The least number of parts of a segment, and how many segments have one part more."""
        return divmod(self.reads, self.writes) if self.writes else (0, 0)

    @property
    def repetition(self) -> int:
        """The repetition number: no block is advanced more often."""
        return smallest(lambda r: self._capacity(r) >= self.blocks)

    def _capacity(self, r: int) -> int:
        """The longest loop in which no block is advanced more than `r` times."""
        s, (each, more) = self.slots, self._parts_of_a_segment
        segments = self.writes * (beta(s + 1, r - 1) - beta(s + 1, r - each - 1))
        return beta(s, r) + segments + more * beta(s, r - each - 1)

    @property
    def advances(self) -> int:
        s, r, (each, more) = self.slots, self.repetition, self._parts_of_a_segment
        saved = beta(s + 1, r - 1) + more * beta(s + 1, r - each - 2)
        saved += self.writes * (beta(s + 2, r - 2) - beta(s + 2, r - each - 2))
        return r * self.blocks - saved

    @property
    def tail(self) -> int:
        r = self.repetition
        missing, longest = self._capacity(r) - self.blocks, beta(self.slots, r)
        shortest = beta(self.slots, r - 1)
        return self.blocks - max(longest - missing, shortest) if self.writes else 0

    @property
    def parts(self) -> Parts:
        """The parts of all segments.

        All segments are as long as the repetition number allows, and therefore equal. In a shorter
        loop, the tail is shorter first, and then the last segments.
        """
        r, (each, more) = self.repetition, self._parts_of_a_segment
        # The last segments come first, and the first `more` segments have one part more.
        stores = np.arange(self.writes)[::-1]
        segments = np.repeat(stores, each + (stores < more))
        depths = np.arange(self.reads) - np.searchsorted(-segments, -segments)
        # The longest parts of depth 0, 1, ..., and by how much each next depth is shorter.
        longest = [beta(self.slots, r - depth) for depth in range(each + 3)]
        shorter = np.array([*map(sub, longest[1:], longest[2:])])[depths]
        missing = max(self._capacity(r) - self.blocks - longest[0] + longest[1], 0)
        before = np.cumsum(shorter) - shorter
        lengths = np.array(longest[1:])[depths] - np.clip(missing - before, 0, shorter)
        stops = self.tail - np.cumsum(lengths) + lengths
        return np.stack([segments, stops - lengths, stops])


@lru_cache(maxsize=1024)
def best(blocks: int, slots: int, transfer: Fraction, most: int | None = None) -> Transfers:
    """The writes and reads of the optimum, with at most `most` writes; the fewest among equal
    optima. `LowerBound` is convex in the number of writes and close to the least cost, so we only
    try a few numbers around its minimum."""
    most = min(blocks if most is None else most, max(blocks - 1, 0))
    bound = LowerBound(blocks, slots, transfer)
    middle = min(bound.near_least, most)
    found = _with_reads(blocks, slots, transfer, middle)
    for step, end in (-1, -1), (1, most + 1):
        for writes in range(middle + step, end, step):
            if bound(writes) + (step > 0) > found[0] * bound.unit:  # more must be less, not equal
                break
            found = min(found, _with_reads(blocks, slots, transfer, writes))
    return found[1]


def _with_reads(
    blocks: int, slots: int, transfer: Fraction, writes: int
) -> tuple[Fraction, Transfers]:
    """The least cost with `writes` writes, which is convex in the number of reads."""

    def with_more(reads: int) -> Transfers:
        return Transfers(blocks, slots, writes, writes + reads)

    def is_enough(reads: int) -> bool:
        return with_more(reads).advances - with_more(reads + 1).advances <= transfer

    found = with_more(smallest(is_enough) if writes else 0)
    return found.advances + transfer * (found.writes + found.reads), found


class LowerBound:
    """A lower bound: the least cost for a number of writes, with a fractional number of reads, as
    an integer in units of `1 / unit`.

    By duality, it is the maximum of p n - S(p) - (what the segments save) over the price p of a
    block. A part of depth d saves S(p - d), where S grows from 0 by beta(s, r) between r and r + 1.
    A segment has all parts that save more than a read costs, and at least one. The maximum is at an
    integer p, or where one part more begins to save that much; all of these p are `fraction / unit`
    above an integer.
    """

    def __init__(self, blocks: int, slots: int, transfer: Fraction) -> None:
        self.blocks, self.slots = blocks, slots
        self.whole = smallest(lambda p: beta(slots + 1, p - 1) > transfer) - 1
        last = beta(slots, self.whole)
        self.unit = transfer.denominator * last
        self.transfer = transfer.numerator * last
        self.fraction = transfer.numerator - transfer.denominator * beta(slots + 1, self.whole - 1)

    def __call__(self, writes: int) -> int:
        def at(price: int, fraction: int = 0) -> int:
            return self._without_writes(price, fraction) - writes * self._saved(price, fraction)

        price = smallest(lambda p: at(p + 1) <= at(p))
        return max(at(price), *(at(p, self.fraction) for p in (price - 1, price) if p >= 0))

    @property
    def near_least(self) -> int:
        """A number of writes with about the least bound, where the lines of two prices meet."""
        price = smallest(lambda p: self._saved(p, 0) > 0)
        prices = [(price - 1, 0), (price - 1, self.fraction), (price, 0)]
        falls = next(i for i, p in enumerate(prices) if self._saved(*p) > 0)
        lines = [(self._without_writes(*p), self._saved(*p)) for p in prices[falls - 1 : falls + 1]]
        (low, adds), (high, saves) = lines
        return max((high - low) // (saves - adds), 0)

    def _without_writes(self, price: int, fraction: int) -> int:
        """The bound from the price `price + fraction / unit`, without segments."""
        s = self.slots
        tail = self.unit * beta(s + 1, price - 1) + fraction * beta(s, price)
        return (self.unit * price + fraction) * self.blocks - tail

    def _saved(self, price: int, fraction: int) -> int:
        """What a segment saves at that price."""
        s, parts = self.slots, max(price - self.whole - 1, 1)
        saved = self.unit * (beta(s + 2, price - 2) - beta(s + 2, price - parts - 2))
        saved += fraction * (beta(s + 1, price - 1) - beta(s + 1, price - parts - 1))
        return saved - self.transfer * (parts + 1)
