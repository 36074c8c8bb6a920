"""Measures several contenders on one workload."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tqdm import tqdm

from benchmarks.runner.programs import Compiler, Contender, Program, Workload, difference
from benchmarks.runner.timing import MOST_ROUNDS, interleave, spread

Record: TypeAlias = dict[str, Any]

Search: TypeAlias = Callable[[Compiler, list[Program]], Iterable[Program]]
"""Finds contenders that depend on what others take, given the programs of those before it."""

SECONDS = 25.0
LEAST_ROUNDS = 5


@dataclass(frozen=True)
class Comparison:
    """Contenders for the same result, that of the first of them. They are timed in turns, for a
    `share` of the time that a gradient has."""

    workload: Workload
    quantity: str
    contenders: Sequence[Contender | Search]
    share: float = 1.0
    least_rounds: int = LEAST_ROUNDS
    most_rounds: int = MOST_ROUNDS

    def measured(self, quick: bool) -> list[Record]:
        programs = list(self._programs())
        apart = _differences(programs)
        once = list({id(program.compiled): program for program in programs}.values())
        seconds, least = (0.0, 2) if quick else (self.share * SECONDS, self.least_rounds)
        times = interleave([program.run for program in once], seconds, least, self.most_rounds)
        taken = {id(p.compiled): spread(each) for p, each in zip(once, times, strict=True)}
        return [
            record_of(self.workload, self.quantity, p, taken[id(p.compiled)], apart[id(p.compiled)])
            for p in programs
        ]

    def _programs(self) -> Iterator[Program]:
        compile, found = Compiler(self.workload, self.quantity), []
        for contender in tqdm(self.contenders, desc="Compiling", unit="program", leave=False):
            if isinstance(contender, Contender):
                found.append(compile(contender))
            else:
                found += contender(compile, found)
        yield from found


def record_of(
    workload: Workload, quantity: str, program: Program, taken: Record, apart: float
) -> Record:
    """What is recorded of a program, its times `taken` and its difference from the first one."""
    fields = {k: v for k, v in vars(program.contender).items() if k != "loop"}
    return {
        "family": workload.family,
        "workload": workload.name,
        "length": workload.length,
        "quantity": quantity,
        "contender": fields.pop("name"),
        **fields,
        **taken,
        "temp_bytes": program.temp_bytes,
        "difference": apart,
    }


def _differences(programs: Sequence[Program]) -> dict[int, float]:
    """Of each compiled function's result to that of the first. All have run once then."""
    reference = programs[0].run()
    found: dict[int, float] = {}
    for program in programs:
        if id(program.compiled) not in found:
            found[id(program.compiled)] = difference(program.run(), reference)
    return found
