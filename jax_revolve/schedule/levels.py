"""Checkpoints on several levels, in loops of static length only.

With `levels=(3, 2)` and single steps:

    step      0     1     2     3     4     5
    forward   S0----------S1----------S2----S3---->     level 1: S0, S1, S2; level 2: S3
    reverse                                 T
                                      T
                          R1----S3
                                T
                          T          ...                then the part from S0, with S3 at step 1

In general, the forward sweep stores `a` carries. Then each of the `a` parts is recomputed once,
which stores `b` carries, and each of its blocks is taped. The parts of a level are equal, except
the last, which may be shorter and whose checkpoints the forward sweep stores. So the reverse sweep
only runs whole parts, and every loop has a static length. On a GPU, the host runs ahead of such
loops, but waits in each iteration of all others.

Each slot permanently belongs to a place of a level. The first place of a part is the part's own
place, so a level of `a` places has `a - 1` slots, and slot 0 is the start of the loop.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import NamedTuple

from jax_revolve.schedule.actions import Action, Advance, Free, Load, Store, Tape, stride
from jax_revolve.schedule.binomial import smallest

MOST_LEVELS = 12


class Level(NamedTuple):
    """One level, whose parts have `size` steps. Slot `base + j` holds the carry that enters part
    j > 0. A part of the level above has `parts` of them. The last one has `last`, and starts at
    step `start`, from the slot `enclosing`."""

    size: int
    base: int = 0
    parts: int = 0
    last: int = 0
    enclosing: int = 0
    start: int = 0

    def slot(self, part: int, enclosing: int) -> int:
        """The slot of a part; `enclosing` is the slot of the part of the level above."""
        return self.base + part if part else enclosing


def levels_of(blocks: int, counts: tuple[int, ...], block: int) -> list[Level]:
    """The levels of a loop of so many blocks of `block` steps, the coarsest first. The last block
    may be longer."""
    found, base, slot, rest = [], 0, 0, blocks * block
    for i, count in enumerate(counts):
        size = prod(counts[i + 1 :]) * block
        last = -(-rest // size)
        found.append(Level(size, base, count, last, slot, blocks * block - rest))
        slot = found[-1].slot(last - 1, slot)
        rest -= size * (last - 1)
        base += count - 1
    return found


def checkpoints(counts: tuple[int, ...]) -> int:
    """The number of slots, including the start's."""
    return 1 + sum(counts) - len(counts)


def advances(length: int, counts: tuple[int, ...], block_size: int) -> int:
    """The number of advances of `jax.value_and_grad`: all steps that the forward sweep does not
    tape, and each whole part again for each level inside it, except that level's last part."""
    if not length:
        return 0
    blocks, size = -(-length // block_size), stride(length, block_size)
    found = size * (blocks - 1) if block_size > 1 else length
    for outer, inner in pairwise(levels_of(blocks, counts, size)):
        found += (-(-size * blocks // outer.size) - 1) * (inner.parts - 1) * inner.size
    return found


def value_and_gradient(length: int, counts: tuple[int, ...], block_size: int) -> Iterator[Action]:
    """The actions of `jax.value_and_grad`."""
    if not length:
        return iter(())
    levels = levels_of(-(-length // block_size), counts, stride(length, block_size))
    return _both(levels, 0, 0, 0, length, block_size > 1)


def _both(
    levels: list[Level], depth: int, slot: int, start: int, length: int, tapes: bool
) -> Iterator[Action]:
    """Both sweeps of the loop, or of the last part of a level, at the loop's end. The forward sweep
    may tape the last block."""
    if depth == len(levels):
        if tapes:
            yield Tape(start, length)
        else:
            yield from (Store(slot, start), Advance(start, length))
            yield from (Load(slot, start), Tape(start, length), Free(slot))
        return
    level = levels[depth]
    last = start + (level.last - 1) * level.size
    for part, first in enumerate(range(start, last, level.size)):
        yield Store(level.slot(part, slot), first)
        yield Advance(first, first + level.size)
    yield from _both(levels, depth + 1, level.slot(level.last - 1, slot), last, length, tapes)
    for part in reversed(range(level.last - 1)):
        yield from _reverse(levels, depth + 1, level.slot(part, slot), start + part * level.size)
        yield Free(level.slot(part, slot))


def _reverse(levels: list[Level], depth: int, slot: int, start: int) -> Iterator[Action]:
    """Reverse a whole part, from the slot that holds its start."""
    yield Load(slot, start)
    if depth == len(levels):
        yield Tape(start, start + levels[-1].size)
        return
    level = levels[depth]
    for part in range(1, level.parts):
        yield Advance(start + (part - 1) * level.size, start + part * level.size)
        yield Store(level.slot(part, slot), start + part * level.size)
    for part in reversed(range(level.parts)):
        yield from _reverse(levels, depth + 1, level.slot(part, slot), start + part * level.size)
        if part:
            yield Free(level.slot(part, slot))


@lru_cache(maxsize=2**12)
def fewest_advances(blocks: int, slots: int) -> tuple[tuple[int, ...], ...]:
    """Counts of two or more levels for `slots` slots: the fewest levels, and one more."""
    found: list[tuple[int, ...]] = []
    for inner in range(1, MOST_LEVELS):
        count = _shortest(blocks, slots, inner)
        if count is not None:
            found.append((-(-blocks // count**inner), *[count] * inner))
        if len(found) == 2:
            break
    return tuple(found)


def _shortest(blocks: int, slots: int, inner: int) -> int | None:
    """The fewest parts of each inner level for which `slots` suffice; `None` if none do."""

    def needed(count: int) -> int:
        return -(-blocks // count**inner) + inner * (count - 1)

    # Below this, more parts need fewer slots.
    most = max(smallest(lambda c: c > 1 and (c + 1) ** (inner + 1) >= blocks), 2)
    best = min(range(max(most - 2, 2), most + 3), key=needed)
    if best**inner >= blocks or needed(best) > slots:
        return None
    return smallest(lambda c: c >= best or (c > 1 and needed(c) <= slots))
