"""What is measured of one loop that is to keep to a budget."""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from budget_contenders import GIVEN, REVOLVE, equinox_within, for_budget, forced, ours
from budget_plans import Plans
from budget_workloads import BudgetWorkload
from contenders import plain, rematerialized
from measurements import Measurement, measure_programs
from nesting import NestedScans
from programs import Program, gradient
from tqdm import tqdm

GRADIENT = "gradient"
LEVELS_TRIED = 1  # of nested scans: in steps of so much work, one evaluation more never pays


def choice(share: float) -> str:
    """The name of the quantity by which choices are compared."""
    return f"{GRADIENT}, {share:.0%} of the memory of lax.scan"


def measure(workload: BudgetWorkload, budget: float, least_rounds: int) -> list[Measurement]:
    """Our loop against its rivals, and its choices against others; `budget` is the time in seconds
    for the rounds of the former, and a quarter of that for each set of the latter."""
    least_rounds = ceil(workload.of_rounds * least_rounds)
    programs = Programs(workload)
    results: list[Measurement] = []
    if workload.ours_at:
        progress = tqdm(programs.compared(), desc="Compiling", unit="program", leave=False)
        results += measure_programs(workload, GRADIENT, list(progress), budget, least_rounds)
    for share in workload.choices_at:
        if programs.fits(share):
            progress = tqdm(programs.choices(share), desc="Compiling", unit="program", leave=False)
            results += measure_programs(
                workload, choice(share), list(progress), budget / 4, least_rounds
            )
    return results


class Programs:
    """The gradients of a workload, each with a share of the memory that storing everything takes.

    Shares within which there is no plan are left out.
    """

    def __init__(self, workload: BudgetWorkload) -> None:
        self._workload = workload
        self._plans = Plans(workload)
        self._plain = gradient(workload, plain(workload.length))
        if self._plain.temp_bytes is None:
            raise RuntimeError("The compiler does not say how much memory lax.scan takes here.")
        self._everything = self._plain.temp_bytes

    def fits(self, share: float) -> bool:
        return self._plans.fits(self._bytes(share))

    def _bytes(self, share: float) -> int:
        return int(share * self._everything)

    def compared(self) -> Iterator[Program]:
        """That which stores everything, and for each share ours and its rivals."""
        yield self._plain
        for share in filter(self.fits, self._workload.ours_at):
            loop = self._ours(share)
            yield loop
            if share in self._workload.rivals_at:
                yield from self._rivals(loop, self._bytes(share))
            if share in self._workload.nested_at:
                yield from self._nested(loop, self._bytes(share))

    def choices(self, share: float) -> Iterator[Program]:
        """That which stores everything, ours, and others that are told their plan."""
        yield self._plain
        yield self._ours(share)
        budget = self._bytes(share)
        for plan in self._plans.others(budget):
            yield gradient(self._workload, forced(GIVEN, budget, plan))

    def _ours(self, share: float) -> Program:
        budget = self._bytes(share)
        return gradient(self._workload, ours(budget, self._plans.chosen(budget)))

    def _rivals(self, loop: Program, budget: int) -> Iterator[Program]:
        """Revolve within the budget; Equinox, by the compiler's figure, in the memory of ours."""
        plan = self._plans.with_block(budget, block_size=1)
        yield gradient(self._workload, forced(REVOLVE, budget, plan))
        yield equinox_within(loop, self._workload, 3 * plan.checkpoints // 4)

    def _nested(self, loop: Program, budget: int) -> Iterator[Program]:
        """The best nested scans in the memory of ours."""
        remat = gradient(self._workload, rematerialized(self._workload.length))
        scans = NestedScans(self._workload, self._plain, remat, LEVELS_TRIED)
        for program in scans.best(loop):
            contender = replace(program.contender, checkpoints=None)
            yield for_budget(replace(program, contender=contender), budget)
