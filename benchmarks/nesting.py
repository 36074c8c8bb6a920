"""The best nested scan that needs no more memory than another program."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf

import jax
from contenders import nested
from programs import Program, gradient
from timing import quickest
from workloads import Workload

TOLERANCE = 1.05  # of the memory; so small a difference is not what is compared here
MISJUDGED = 1.2  # candidates expected to take more memory than this are not compiled
MOST_LEVELS = 6
LEVELS_TRIED = 2  # every level more costs one more evaluation of every step
COMPILED_PER_LEVEL = 4
TIMED_PER_LEVEL = 3
FINALISTS = 2


class NestedScans:
    """The nested scans of one workload, each compiled once at most."""

    def __init__(self, workload: Workload, plain: Program, rematerialised: Program) -> None:
        self._workload = workload
        self._carry_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(workload.init))
        self._tape_bytes = (plain.temp_bytes or 0) / workload.length
        carries = workload.length * self._carry_bytes
        self._fixed_bytes = max((rematerialised.temp_bytes or 0) - carries, 0)
        self._compiled: dict[tuple[tuple[int, ...], bool], Program] = {}

    def best(self, rival: Program) -> list[Program]:
        """The quickest few that fit into `rival`'s memory, by a first short timing; [] if none."""
        if rival.temp_bytes is None:
            return []
        limit = TOLERANCE * rival.temp_bytes
        candidates = [*self._candidates(limit, taped=True), *self._candidates(limit, taped=False)]
        finalists = sorted(candidates, key=lambda program: quickest(program.run))[:FINALISTS]
        checkpoints = rival.contender.checkpoints
        return [
            replace(p, contender=replace(p.contender, checkpoints=checkpoints)) for p in finalists
        ]

    def _candidates(self, limit: float, taped: bool) -> list[Program]:
        """Those that fit, of the least numbers of levels with which any does."""
        found: list[Program] = []
        levels_found, least = 0, inf
        for levels in range(2, MOST_LEVELS + 1):
            programs = self._likely(limit, levels, taped)
            sizes = [p.temp_bytes for p in programs if p.temp_bytes is not None]
            if fit := [p for p in programs if p.temp_bytes is not None and p.temp_bytes <= limit]:
                found += fit[:TIMED_PER_LEVEL]
                levels_found += 1
            # Every level has memory of its own; once that outweighs what it saves, so it stays.
            if levels_found == LEVELS_TRIED or (sizes and min(sizes) >= least):
                break
            least = min(sizes, default=inf)
        return found

    def _likely(self, limit: float, levels: int, taped: bool) -> list[Program]:
        """Those expected to take least memory, if that is near the limit at all."""
        expected = {
            blocks: self._expected_bytes(blocks, taped)
            for blocks in blockings(self._workload.length, levels)
        }
        likely = [blocks for blocks in expected if expected[blocks] <= MISJUDGED * limit]
        likely.sort(key=lambda blocks: expected[blocks])
        return [self._compile(b, taped) for b in _one_per_innermost(likely)[:COMPILED_PER_LEVEL]]

    def _expected_bytes(self, blocks: tuple[int, ...], taped: bool) -> float:
        innermost = self._tape_bytes if taped else self._carry_bytes
        carries = sum(blocks[:-1]) * self._carry_bytes
        return self._fixed_bytes + carries + blocks[-1] * innermost

    def _compile(self, blocks: tuple[int, ...], taped: bool) -> Program:
        if (blocks, taped) not in self._compiled:
            program = gradient(self._workload, nested(blocks, taped))
            self._compiled[blocks, taped] = program
        return self._compiled[blocks, taped]


def blockings(length: int, levels: int, most: int | None = None) -> Iterator[tuple[int, ...]]:
    """Ways to write `length` as a product of `levels` factors > 1.

    The factors decrease, since the order of the outer scans changes neither their memory nor their
    work; only the last, the length of the innermost scan, is free.
    """
    if levels == 1:
        if length > 1:
            yield (length,)
        return
    for factor in range(min(length, most or length), 1, -1):
        if length % factor == 0:
            for rest in blockings(length // factor, levels - 1, factor):
                yield (factor, *rest)


def _one_per_innermost(blockings: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The first of each length of the innermost scan, which is what most changes the time."""
    return list({blocks[-1]: blocks for blocks in reversed(blockings)}.values())[::-1]
