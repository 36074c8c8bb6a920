"""The best nested scans that need no more memory than jax_revolve.

There are too many to compile them all. Those of the fewest levels that are expected to fit are
compiled, the compiler's figure decides whether they do, and a short timing which are the quickest.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

from benchmarks.contenders import names
from benchmarks.contenders.scans import LAX_SCAN, REMAT, nested
from benchmarks.runner.programs import Compiler, Program, bytes_of
from benchmarks.runner.timing import quickest

TOLERANCE = 1.05  # of the memory; so small a difference is not what is compared here
MISJUDGED = 1.1  # candidates expected to take more memory than this are not compiled
LEVELS = range(2, 7)
TRIED_PER_LEVEL = 4
FINALISTS = 2

Blocking: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class BestNested:
    """A search for those beside the last program of jax_revolve. Every level more costs one more
    evaluation of every step; only so many numbers of levels are tried."""

    levels_tried: int = 2

    def __call__(self, compile: Compiler, earlier: list[Program]) -> list[Program]:
        """The quickest few, by a short timing. If none fits, the one that comes nearest."""
        rival = last_of_jax_revolve(earlier)
        limit, sizes = TOLERANCE * rival.temp_bytes, Sizes.of(compile)
        found = [
            program
            for taped in (True, False)
            for program in self._fitting(compile, sizes, limit, taped)
        ]
        if len(found) > FINALISTS:
            found.sort(key=lambda program: quickest(program.run))
        best = found[:FINALISTS] or [_leanest(compile, sizes)]
        return [beside(rival, program) for program in best]

    def _fitting(
        self, compile: Compiler, sizes: "Sizes", limit: float, taped: bool
    ) -> Iterator[Program]:
        """Those of the fewest levels with which any fits."""
        left = self.levels_tried
        for levels in LEVELS:
            likely = [
                b for b in sizes.ordered(levels, taped) if sizes(b, taped) <= MISJUDGED * limit
            ]
            compiled = [
                compile(nested(blocks, taped))
                for blocks in _one_per_innermost(likely)[:TRIED_PER_LEVEL]
            ]
            fit = [program for program in compiled if program.temp_bytes <= limit]
            yield from fit
            left -= bool(fit)
            if not left:
                return


@dataclass(frozen=True)
class Sizes:
    """The bytes that nested scans of a loop are expected to take. Products with the Hessian store
    tangents of carries too."""

    length: int
    carry: int
    x: int
    tape: float
    fixed: float

    @classmethod
    def of(cls, compile: Compiler) -> "Sizes":
        workload = compile.workload
        n, inputs = workload.length, workload.active | workload.passive
        carry = (2 if compile.quantity == "hvp" else 1) * bytes_of(inputs["init"])
        x = bytes_of(workload.active.get("xs")) // n
        fixed = max(compile(REMAT).temp_bytes - n * carry, 0)
        return cls(n, carry, x, compile(LAX_SCAN).temp_bytes / n, fixed)

    def __call__(self, blocks: Blocking, taped: bool) -> float:
        innermost = self.tape if taped else self.carry
        carries = sum(blocks[:-1]) * self.carry + blocks[-1] * innermost
        # Each inner scan hands the cotangents of its xs to the scan around it.
        xs = sum(prod(blocks[level:]) for level in range(1, len(blocks))) * self.x
        return len(blocks) * self.fixed + carries + xs

    def ordered(self, levels: int, taped: bool) -> list[Blocking]:
        """Those expected to take least memory first."""
        choices = blockings(self.length, levels)
        return sorted(choices, key=lambda blocks: (self(blocks, taped), blocks))


def _leanest(compile: Compiler, sizes: Sizes) -> Program:
    """The one that is expected to take least memory."""
    choices = (blocks for levels in LEVELS for blocks in blockings(sizes.length, levels))
    return compile(nested(min(choices, key=lambda blocks: sizes(blocks, False)), False))


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


def last_of_jax_revolve(programs: list[Program]) -> Program:
    return next(p for p in reversed(programs) if p.contender.name == names.JAX_REVOLVE)


def beside(rival: Program, program: Program) -> Program:
    """The program, recorded with the checkpoints and the budget of its rival."""
    recorded = {"checkpoints": rival.contender.checkpoints, "budget": rival.contender.budget}
    return replace(program, contender=replace(program.contender, **recorded))
