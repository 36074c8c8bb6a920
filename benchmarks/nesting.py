"""The best nested scan that needs no more memory than another program.

There are too many to compile them all. Those of the fewest levels that are expected to fit are
compiled, the compiler's figure decides whether they do, and a short timing which are the quickest.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import prod
from typing import Any, TypeAlias

import jax
from contenders import Contender, nested
from programs import Program, gradient, hvp
from timing import quickest
from workloads import Workload

TOLERANCE = 1.05  # of the memory; so small a difference is not what is compared here
MISJUDGED = 1.1  # candidates expected to take more memory than this are not compiled
LEVELS = range(2, 7)
LEVELS_TRIED = 2  # every level more costs one more evaluation of every step
TRIED_PER_LEVEL = 4
FINALISTS = 2

Blocking: TypeAlias = tuple[int, ...]


class NestedScans:
    """The nested scans of one workload, each compiled once at most. `build` is what is wanted of
    them, as it is of the two programs: `gradient`, or `hvp`, which stores tangents of carries too.
    """

    def __init__(
        self,
        workload: Workload,
        plain: Program,
        rematerialized: Program,
        levels_tried: int = LEVELS_TRIED,
        build: Callable[[Workload, Contender], Program] = gradient,
    ) -> None:
        self._workload = workload
        self._levels_tried = levels_tried
        self._build = build
        self._carry_bytes = (2 if build is hvp else 1) * _bytes(workload.init)
        self._x_bytes = _bytes(workload.active.get("xs")) // workload.length
        self._tape_bytes = (plain.temp_bytes or 0) / workload.length
        carries = workload.length * self._carry_bytes
        self._fixed_bytes = max((rematerialized.temp_bytes or 0) - carries, 0)
        self._compiled: dict[tuple[Blocking, bool], Program] = {}

    def best(self, rival: Program) -> list[Program]:
        """The quickest few that fit into `rival`'s memory, by a first short timing.

        If none fits, the one that comes nearest.
        """
        limit = TOLERANCE * (rival.temp_bytes or 0)
        candidates = [*self._candidates(limit, taped=True), *self._candidates(limit, taped=False)]
        if len(candidates) > FINALISTS:
            candidates.sort(key=lambda program: quickest(program.run))
        s = rival.contender.checkpoints
        return [
            replace(program, contender=replace(program.contender, checkpoints=s))
            for program in candidates[:FINALISTS] or [self._leanest()]
        ]

    def _candidates(self, limit: float, taped: bool) -> list[Program]:
        """Those that fit, of the least numbers of levels with which any does."""
        found: list[list[Program]] = []
        for levels in LEVELS:
            likely = self._likely(MISJUDGED * limit, levels, taped)
            fit = [p for p in likely if p.temp_bytes is not None and p.temp_bytes <= limit]
            if fit:
                found.append(fit)
            if len(found) == self._levels_tried:
                break
        return [program for fit in found for program in fit]

    def _likely(self, most: float, levels: int, taped: bool) -> list[Program]:
        """Those expected to take the least memory and not more than `most`."""
        choices = self._by_expected_bytes(levels, taped)
        likely = [(size, blocks) for size, blocks in choices if size <= most]
        chosen = _one_per_innermost(blocks for _, blocks in likely)[:TRIED_PER_LEVEL]
        return [self._compile(blocks, taped) for blocks in chosen]

    def _leanest(self) -> Program:
        choices = (choice for levels in LEVELS for choice in self._by_expected_bytes(levels, False))
        self._compile(min(choices)[1], taped=False)
        return min(self._compiled.values(), key=lambda program: program.temp_bytes or 0)

    def _by_expected_bytes(self, levels: int, taped: bool) -> list[tuple[float, Blocking]]:
        choices = blockings(self._workload.length, levels)
        return sorted((self._expected_bytes(blocks, taped), blocks) for blocks in choices)

    def _expected_bytes(self, blocks: Blocking, taped: bool) -> float:
        innermost = self._tape_bytes if taped else self._carry_bytes
        carries = sum(blocks[:-1]) * self._carry_bytes + blocks[-1] * innermost
        # Each inner scan hands the cotangents of its xs to the scan around it.
        xs = sum(prod(blocks[level:]) for level in range(1, len(blocks))) * self._x_bytes
        return len(blocks) * self._fixed_bytes + carries + xs

    def _compile(self, blocks: Blocking, taped: bool) -> Program:
        if (blocks, taped) not in self._compiled:
            program = self._build(self._workload, nested(blocks, taped))
            self._compiled[blocks, taped] = program
        return self._compiled[blocks, taped]


def _bytes(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def blockings(length: int, levels: int, most: int | None = None) -> Iterator[Blocking]:
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


def _one_per_innermost(blockings: Iterable[Blocking]) -> list[Blocking]:
    """The first of each length of the innermost scan, which is what most changes the time."""
    firsts: dict[int, Blocking] = {}
    for blocks in blockings:
        firsts.setdefault(blocks[-1], blocks)
    return list(firsts.values())
