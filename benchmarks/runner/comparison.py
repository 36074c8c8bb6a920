"""Measures several contenders on one workload."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tqdm import tqdm

from benchmarks.runner.programs import (
    PHASES,
    Compiler,
    Contender,
    Program,
    Record,
    Workload,
    difference,
)
from benchmarks.runner.timing import LEAST_ROUNDS, MOST_ROUNDS, interleave, spread

Search: TypeAlias = Callable[[Compiler, list[Program]], Iterable[Program]]
"""Finds contenders that depend on what others take, given the programs before each of them."""

SECONDS = 12.0
MEASURED = ("detail", "temp_bytes", "instructions", "median_ms", *PHASES)


@dataclass(frozen=True)
class Comparison:
    """Contenders for the same result, that of the first of them. They are timed in turns, for a
    `share` of the time that a gradient has. `about` is added to each record.

    Where a contender `may_fail`, as by lack of memory, its error is recorded, and the others go on.
    """

    workload: Workload
    quantity: str
    contenders: Sequence[Contender | Search]
    share: float = 1.0
    least_rounds: int = LEAST_ROUNDS
    most_rounds: int = MOST_ROUNDS
    may_fail: bool = False
    about: Record = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.workload.name}: {self.quantity}"

    def measured(self, quick: bool) -> list[Record]:
        compile = Compiler(self.workload, self.quantity)
        found: list[Program] = []
        ran: list[Program] = []
        apart: dict[int, float] = {}
        failed: list[Record] = []
        reference: Any = None
        for each in tqdm(self.contenders, desc="Compiling", unit="program", leave=False):
            try:
                is_one = isinstance(each, Contender)
                for program in [compile(each)] if is_one else each(compile, found):
                    found.append(program)
                    if id(program.compiled) not in apart:
                        result = program.run()
                        reference = result if reference is None else reference
                        apart[id(program.compiled)] = difference(result, reference)
                    ran.append(program)
            except Exception as error:  # of the compiler, the allocator, or a search
                if not self.may_fail:
                    raise
                name = each.name if isinstance(each, Contender) else type(each).__name__
                message = f"{type(error).__name__}: {error}".splitlines()[0][:300]
                failed.append(self._about(name) | dict.fromkeys(MEASURED) | {"error": message})
        once = list({id(program.compiled): program for program in ran}.values())
        rounds = (self.share * SECONDS, self.least_rounds, self.most_rounds)
        times = interleave([program.run for program in once], *rounds, quick)
        taken = {id(p.compiled): spread(t, times[0]) for p, t in zip(once, times, strict=True)}
        return failed + [self._record(p, taken[id(p.compiled)], apart[id(p.compiled)]) for p in ran]

    def _about(self, contender: str) -> Record:
        return {
            "family": self.workload.family,
            "workload": self.workload.name,
            "length": self.workload.length,
            "quantity": self.quantity,
            "contender": contender,
            **self.about,
        }

    def _record(self, program: Program, taken: Record, apart: float) -> Record:
        fields = {k: v for k, v in vars(program.contender).items() if k != "loop"}
        about = self._about(fields.pop("name"))
        sizes = {"temp_bytes": program.temp_bytes, "instructions": program.instructions}
        return about | fields | taken | sizes | program.phases | {"difference": apart}
