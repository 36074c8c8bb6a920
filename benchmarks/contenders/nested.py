"""The best nested scans that need no more memory than jax_revolve.

There are too many to compile them all. Those of the fewest levels that are expected to fit are
compiled, the compiler's figure decides whether they do, and a short timing which are the quickest.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

from benchmarks.contenders import names
from benchmarks.contenders.scans import LAX_SCAN, REMAT, nested
from benchmarks.runner.programs import Compiler, Program, bytes_of
from benchmarks.runner.timing import seconds

TOLERANCE = 1.05  # of the memory; so small a difference is not what is compared here
MISJUDGED = 1.1  # candidates expected to take more memory than this are not compiled
LEVELS = range(2, 7)
TRIED_PER_LEVEL = 4
FINALISTS = 2

Blocking: TypeAlias = tuple[int, ...]
ExpectedBytes: TypeAlias = Callable[[Blocking, bool], float]


@dataclass(frozen=True)
class BestNested:
    """A search for those beside the last program of jax_revolve. Every level more costs one more
    evaluation of every step; only so many numbers of levels are tried."""

    levels_tried: int = 2

    def __call__(self, compile: Compiler, earlier: list[Program]) -> list[Program]:
        """The quickest few, by a short timing. If none fits, the one that comes nearest."""
        lean, expected = last_of_jax_revolve(earlier), expected_bytes(compile)
        limit = TOLERANCE * lean.temp_bytes
        found = list(self._fitting(compile, expected, limit, taped=True))
        found += self._fitting(compile, expected, limit, taped=False)
        if len(found) > FINALISTS:
            found.sort(key=lambda program: min(seconds(program.run) for _ in range(3)))
        if not found:
            length = compile.workload.length
            choices = [blocks for levels in LEVELS for blocks in blockings(length, levels)]
            leanest = min(choices, key=lambda blocks: expected(blocks, False))
            found = [compile(nested(leanest, taped=False))]
        return [beside(lean, program) for program in found[:FINALISTS]]

    def _fitting(
        self, compile: Compiler, expected: ExpectedBytes, limit: float, taped: bool
    ) -> Iterator[Program]:
        """Those of the fewest levels with which any fits."""
        left = self.levels_tried
        for levels in LEVELS:
            sizes = {b: expected(b, taped) for b in blockings(compile.workload.length, levels)}
            likely = sorted((size, b) for b, size in sizes.items() if size <= MISJUDGED * limit)
            firsts: dict[int, Blocking] = {}
            for _, blocks in likely:  # the innermost scan's length is what most changes the time
                firsts.setdefault(blocks[-1], blocks)
            chosen = list(firsts.values())[:TRIED_PER_LEVEL]
            programs = [compile(nested(blocks, taped)) for blocks in chosen]
            fit = [program for program in programs if program.temp_bytes <= limit]
            yield from fit
            left -= bool(fit)
            if not left:
                return


def expected_bytes(compile: Compiler) -> ExpectedBytes:
    """Of nested scans, from what scans take. Products with the Hessian store tangents too."""
    n = compile.workload.length
    init = (compile.workload.active | compile.workload.passive)["init"]
    carry = (2 if compile.quantity == "hvp" else 1) * bytes_of(init)
    x = bytes_of(compile.workload.active.get("xs")) // n
    tape = compile(LAX_SCAN).temp_bytes / n
    fixed = max(compile(REMAT).temp_bytes - n * carry, 0)

    def expected(blocks: Blocking, taped: bool) -> float:
        carries = sum(blocks[:-1]) * carry + blocks[-1] * (tape if taped else carry)
        # Each inner scan hands the cotangents of its xs to the scan around it.
        xs = sum(prod(blocks[level:]) for level in range(1, len(blocks))) * x
        return len(blocks) * fixed + carries + xs

    return expected


def blockings(length: int, levels: int, most: int | None = None) -> Iterator[Blocking]:
    """Ways to write `length` as a product of `levels` factors > 1.

    The factors decrease, since the order of the outer scans changes neither their memory nor their
    work; only the last, the length of the innermost scan, is free.
    """
    if levels == 1 and length > 1:
        yield (length,)
    elif levels > 1:
        for factor in range(min(length, most or length), 1, -1):
            if length % factor == 0:
                for rest in blockings(length // factor, levels - 1, factor):
                    yield (factor, *rest)


def last_of_jax_revolve(programs: list[Program]) -> Program:
    return next(p for p in reversed(programs) if p.contender.name == names.JAX_REVOLVE)


def beside(other: Program, program: Program) -> Program:
    """The program, recorded with the checkpoints and the budget of the other."""
    recorded = {"checkpoints": other.contender.checkpoints, "budget": other.contender.budget}
    return replace(program, contender=replace(program.contender, **recorded))
