"""The plans with which a workload keeps to a budget of bytes."""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from workloads import Workload

from jax_revolve import Plan, Report, explain_scan
from jax_revolve.schedule.selection import quickest

BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MOST_OF_FEWEST = 1.5  # plans that run more steps than this times the fewest are not timed


class Plans:
    """What `jax_revolve.explain_scan` finds out about the loop of a workload."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    @cached_property
    def _report(self) -> Report:
        return self._explained()

    def fits(self, budget: int, block_size: int = 1) -> bool:
        """Whether any plan with such blocks keeps to the budget."""
        return self._report.memory(Plan(self._workload.length, 1, block_size)) <= budget

    def chosen(self, budget: int) -> Plan:
        """The one that the loop chooses."""
        chosen = self._explained(memory=budget).plan
        assert isinstance(chosen, Plan)
        return chosen

    def with_block(self, budget: int, block_size: int) -> Plan:
        """The one with such blocks and as many checkpoints as fit, by the library's formula."""
        return quickest(self._workload.length, self._report.sizes, budget, block_size=block_size)

    def others(self, budget: int) -> Iterator[Plan]:
        """Sensible ones besides the chosen one: a few block lengths, from single steps to all."""
        length, chosen = self._workload.length, self.chosen(budget)
        blocks = [*(k for k in BLOCKS if k < length), length]
        plans = [self.with_block(budget, k) for k in blocks if self.fits(budget, k)]
        most = MOST_OF_FEWEST * min(plan.executed for plan in (*plans, chosen))
        yield from (plan for plan in plans if plan != chosen and plan.executed <= most)

    def _explained(self, **options: Any) -> Report:
        reports: list[Report] = []

        def loop(body: Callable[..., Any], init: Any, xs: Any, length: int) -> tuple[Any, None]:
            reports.append(explain_scan(body, init, xs, length, **options))
            return init, None

        self._workload.loss(loop, self._workload.active, self._workload.passive)
        return reports[0]
