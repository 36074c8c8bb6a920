"""Contenders that may fail: each that runs out of memory is recorded with its error, and the others
go on."""

from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import Any

from benchmarks.runner.comparison import Record, Search, record_of
from benchmarks.runner.programs import Compiler, Contender, Program, Workload, difference
from benchmarks.runner.timing import interleave, spread

COMPILING = 0.6
"""The share of the seconds after which nothing further is compiled."""

LEAST_ROUNDS = 2
MOST_ROUNDS = 5
LONGEST_ERROR = 300


class _Limited(Compiler):
    """Compiles nothing more after a time: a search may want many programs."""

    def __init__(self, workload: Workload, quantity: str, until: float) -> None:
        super().__init__(workload, quantity)
        self._until = until

    def __call__(self, contender: Contender) -> Program:
        if contender not in self._programs and monotonic() > self._until:
            raise TimeoutError("There was no time left to compile it.")
        return super().__call__(contender)


class Trials:
    """Programs of one workload. Each is compiled and run once when it is tried; then all are timed
    in turns."""

    def __init__(self, workload: Workload, seconds: float, quantity: str = "gradient") -> None:
        self._workload, self._quantity = workload, quantity
        self._end = monotonic() + seconds
        self.compile = _Limited(workload, quantity, self._end - (1 - COMPILING) * seconds)
        self._reference: Any = None
        self._ran: list[tuple[Program, float]] = []
        self._failed: list[Record] = []

    def attempt(self, name: str, find: Callable[[], Iterable[Program]]) -> list[Program]:
        """The programs that are found and run; `name` is for the record of an error."""
        ran: list[Program] = []
        try:
            for program in find():
                self._ran.append((program, self._run_first(program)))
                ran.append(program)
        except Exception as error:  # of the compiler, the allocator, or a search that found nothing
            self._fail(name, f"{type(error).__name__}: {error}")
        return ran

    def attempt_all(self, contenders: Iterable[Contender]) -> list[Program]:
        return [
            program
            for contender in contenders
            for program in self.attempt(contender.name, lambda c=contender: [self.compile(c)])
        ]

    def search(self, name: str, search: Search, *earlier: Program) -> list[Program]:
        return self.attempt(name, lambda: search(self.compile, list(earlier)))

    def records(self, share: float = 0.5) -> Iterator[Record]:
        """Those of the programs that ran, timed in turns for a share of the time that is left, and
        those of the errors."""
        once = list({id(program.compiled): program for program, _ in self._ran}.values())
        left = self._end - monotonic()
        times: list[list[float]] = []
        if once:
            times = interleave([p.run for p in once], share * left, LEAST_ROUNDS, MOST_ROUNDS)
        taken = {id(p.compiled): spread(each) for p, each in zip(once, times, strict=True)}
        for program, apart in self._ran:
            spent = taken[id(program.compiled)]
            yield record_of(self._workload, self._quantity, program, spent, apart)
        yield from self._failed

    def _run_first(self, program: Program) -> float:
        result = program.run()
        if self._reference is None:
            self._reference = result
        return difference(result, self._reference)

    def _fail(self, name: str, error: str) -> None:
        first = error.strip().splitlines()[0][:LONGEST_ERROR]
        workload = {"family": self._workload.family, "workload": self._workload.name}
        self._failed.append(
            workload | {"quantity": self._quantity, "contender": name, "error": first}
        )
