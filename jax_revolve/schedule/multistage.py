"""The mathematics of checkpoints on two levels, in exact numbers.

The device has `slots` slots, including the slot at the start of a part. A storage holds further
carries. To write or to read one costs as much as `transfer` blocks. A loop of `blocks` blocks is
reversed as follows:

- The forward sweep writes the carries that enter the *segments*. The first segment begins with the
  loop, and the last ends at the *tail*, which is reversed with the slots alone.
- Then the segments are reversed, from the last to the first. The carry of a segment is read, and
  the segment is reversed with the slots alone. Or the carry is advanced to some block, only the
  blocks from there on are reversed, and the carry is read again for the blocks before. So a segment
  consists of one or several *parts*, each of which is reversed with all slots and takes one read.

Let t(n, s) be the advances of a part of n blocks. The costs obey the recurrence

    T(n) = min(t(n, s), min_i i + t(n - i, s) + transfer + T(i))                     a segment
    D(n) = min(t(n, s), min_j transfer + j + D(n - j) + transfer + T(j))             the loop

Its solution has a closed form. Let the *depth* of a part be the number of times that it is advanced
over before it is reversed: 0 for the tail, and 1, 2, ..., k for the k parts of a segment, from the
top. A part of depth d and n blocks adds d n + t(n, s) advances. This is convex in n. Its slope is
d + r if the part's repetition number is r. So for given parts, blocks go where the slope is least,
and `beta(s, r - d)` is the most blocks that a part of depth d takes at slopes up to r. As a lower
depth is cheaper, the numbers of parts of two segments need not differ by more than one. The numbers
of writes and reads alone determine the optimum.

Source: G. Aupy, J. Herrmann, P. Hovland and Y. Robert, "Optimal multistage algorithm for adjoint
computation", SIAM J. Sci. Comput. 38(3), 2016, for the recurrence.
"""

from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from jax_revolve.schedule.binomial import beta, smallest


class Transfers(NamedTuple):
    """The number of writes to the storage, one for each segment, and the number of reads from it,
    one for each part of a segment."""

    writes: int
    reads: int


def repetition(blocks: int, slots: int, transfers: Transfers) -> int:
    """The repetition number: no block is advanced more often."""
    return smallest(lambda r: _capacity(r, slots, transfers) >= blocks)


def advances(blocks: int, slots: int, transfers: Transfers) -> int:
    """The least possible number of advances with these writes and reads."""
    writes, (each, more) = transfers.writes, _parts_of_a_segment(transfers)
    r = repetition(blocks, slots, transfers)
    saved = beta(slots + 1, r - 1) + more * beta(slots + 1, r - each - 2)
    saved += writes * (beta(slots + 2, r - 2) - beta(slots + 2, r - each - 2))
    return r * blocks - saved


def _capacity(r: int, slots: int, transfers: Transfers) -> int:
    """The longest loop in which no block is advanced more than `r` times."""
    writes, (each, more) = transfers.writes, _parts_of_a_segment(transfers)
    segments = writes * (beta(slots + 1, r - 1) - beta(slots + 1, r - each - 1))
    return beta(slots, r) + segments + more * beta(slots, r - each - 1)


def _parts_of_a_segment(transfers: Transfers) -> tuple[int, int]:
    """The least number of parts of a segment, and how many segments have one part more."""
    return divmod(transfers.reads, transfers.writes) if transfers.writes else (0, 0)


class Move(NamedTuple):
    """Read carry `store` of the storage, advance it to block `start`, and reverse the blocks
    `start`, ..., `stop - 1` with the slots of the device."""

    store: int
    start: int
    stop: int


def moves(blocks: int, slots: int, transfers: Transfers) -> Iterator[Move]:
    """The parts of all segments, in the order in which they are reversed after the tail.

    Segments are as long as the repetition number allows, and therefore alike. A loop that is
    shorter than the repetition number allows first has a shorter tail, and then shorter last
    segments.
    """
    each, more = _parts_of_a_segment(transfers)
    r = repetition(blocks, slots, transfers)
    longest = [beta(slots, r - depth) for depth in range(each + 3)]
    shortest = longest[1:]
    missing = _capacity(r, slots, transfers) - blocks
    shorter = min(missing, longest[0] - shortest[0])
    missing -= shorter
    stop = blocks - (longest[0] - shorter)
    for segment in reversed(range(transfers.writes)):
        for depth in range(1, each + (segment < more) + 1):
            shorter = min(missing, longest[depth] - shortest[depth])
            missing -= shorter
            start = stop - (longest[depth] - shorter)
            yield Move(segment, start, stop)
            stop = start


@lru_cache(maxsize=1024)
def best(blocks: int, slots: int, transfer: Fraction, most: int | None = None) -> Transfers:
    """The writes and reads of the optimum, with at most `most` writes; the fewest among equal
    optima.

    `LowerBound` is convex in the number of writes, and little below the least cost. So only a few
    numbers of writes around its minimum are tried.
    """
    most = max(blocks - 1, 0) if most is None else min(most, max(blocks - 1, 0))
    bound = LowerBound(blocks, slots, transfer)
    middle = smallest(lambda m: m >= most or bound(m + 1) >= bound(m))
    found = _with_reads(blocks, slots, transfer, middle)
    for writes in range(middle - 1, -1, -1):
        if bound(writes) > found[0]:
            break
        found = min(found, _with_reads(blocks, slots, transfer, writes))
    for writes in range(middle + 1, most + 1):
        if bound(writes) >= found[0]:
            break
        found = min(found, _with_reads(blocks, slots, transfer, writes))
    return found[1]


def _with_reads(
    blocks: int, slots: int, transfer: Fraction, writes: int
) -> tuple[Fraction, Transfers]:
    """The least cost with so many writes, and its transfers. The cost is convex in the number of
    reads: each further read saves less."""

    def with_more(reads: int) -> Transfers:
        return Transfers(writes, writes + reads)

    def is_enough(reads: int) -> bool:
        fewer = advances(blocks, slots, with_more(reads))
        return fewer - advances(blocks, slots, with_more(reads + 1)) <= transfer

    transfers = with_more(smallest(is_enough) if writes else 0)
    return advances(blocks, slots, transfers) + transfer * sum(transfers), transfers


class LowerBound:
    """A lower bound: the least cost with so many writes and a fractional number of reads.

    By duality, it is the maximum of p n - S(p) - (what the segments save) over the price p of a
    block. A part of depth d saves S(p - d), where S grows from 0 by beta(s, r) between r and r + 1.
    A segment has all parts that save more than a read costs, and at least one. The maximum is at an
    integer p, or where one part more begins to save that much; all of these p are `part` above an
    integer.
    """

    def __init__(self, blocks: int, slots: int, transfer: Fraction) -> None:
        self.blocks, self.slots, self.transfer = blocks, slots, transfer
        self.whole = smallest(lambda p: beta(slots + 1, p - 1) > transfer) - 1
        above = transfer - beta(slots + 1, self.whole - 1)
        self.part = above / beta(slots, self.whole)

    def __call__(self, writes: int) -> Fraction:
        price = smallest(lambda p: self.at(p + 1, writes) <= self.at(p, writes))
        between = (self.at(p, writes, self.part) for p in (price - 1, price) if p >= 0)
        return max(self.at(price, writes), *between)

    def at(self, price: int, writes: int, part: Fraction = Fraction(0)) -> Fraction:
        """The bound from the price `price + part`."""
        s, parts = self.slots, max(price - self.whole - 1, 1)
        tail = beta(s + 1, price - 1) + part * beta(s, price)
        segment = beta(s + 2, price - 2) - beta(s + 2, price - parts - 2)
        segment += part * (beta(s + 1, price - 1) - beta(s + 1, price - parts - 1))
        segment -= self.transfer * (parts + 1)
        return (price + part) * self.blocks - tail - writes * segment
