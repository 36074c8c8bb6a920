"""Ways to run a loop whose gradient is to keep to a budget of bytes."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from contenders import OURS, Contender, equinox
from nesting import TOLERANCE
from programs import Program, gradient
from workloads import Workload

from jax_revolve import Plan, checkpointed_scan

REVOLVE = "pure Revolve"
GIVEN = "jax_revolve, plan given"
ENOUGH = 0.9  # of the memory of a rival, for Equinox to be compared with it
TRIED = 4


def ours(budget: int, plan: Plan) -> Contender:
    """The loop that is told the budget and chooses `plan`."""
    return _with_plan(OURS, partial(checkpointed_scan, memory=budget), budget, plan)


def forced(name: str, budget: int, plan: Plan) -> Contender:
    """The loop that is told the plan."""
    return _with_plan(name, partial(checkpointed_scan, plan=plan), budget, plan)


def _with_plan(name: str, scan: Callable[..., Any], budget: int, plan: Plan) -> Contender:
    return Contender(
        name, scan, plan.checkpoints, plan.executed, block=plan.block_size, budget=budget
    )


def equinox_within(rival: Program, workload: Workload, checkpoints: int) -> Program:
    """Equinox's loop with nearly as much memory as `rival`, found from a guess of `checkpoints`.

    How many states it stores for its checkpoints is not ours to say; the compiler's figure is, and
    part of that does not grow with them, so that a guess too low is followed by better ones.
    """
    limit = rival.temp_bytes or 0
    programs = list(_equinox_programs(workload, limit, max(checkpoints, 1)))
    fit = [p for p in programs if (p.temp_bytes or 0) <= TOLERANCE * limit] or programs[-1:]
    best = max(fit, key=lambda program: program.temp_bytes or 0)
    return for_budget(best, rival.contender.budget)


def _equinox_programs(workload: Workload, limit: int, checkpoints: int) -> Iterator[Program]:
    """Programs that come nearer and nearer to the limit."""
    for _ in range(TRIED):
        program = gradient(workload, equinox(checkpoints))
        yield program
        part = limit / (program.temp_bytes or 1)
        better = min(max(int(part * checkpoints), 1), workload.length)
        if better == checkpoints or 1 <= part < 1 / ENOUGH:
            return
        checkpoints = better


def for_budget(program: Program, budget: int | None) -> Program:
    return replace(program, contender=replace(program.contender, budget=budget))
