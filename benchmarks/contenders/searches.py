"""Scans whose gradient is to keep to a share of the memory that storing everything takes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from benchmarks.contenders.scans import JAX_REVOLVE, equinox, nested
from benchmarks.runner.comparison import Search
from benchmarks.runner.programs import Compiler, Contender, Loop, Program, Workload
from jax_revolve import checkpointed_scan, explain
from jax_revolve.schedule.arguments import TooLittleMemory
from jax_revolve.typing import Report

PURE_REVOLVE = "pure Revolve"
TOLERANCE = 1.05  # of the memory; so small a difference is not what is compared here
ENOUGH = 0.9  # of the memory of jax_revolve, for Equinox to be compared with it
TRIED = 4
LEVELS = range(2, 6)
FINALISTS = 3

Blocking: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Within:
    """A search for jax_revolve's program within a share of what the first program takes, if there
    is a plan for it, and then for those of the other searches."""

    share: float
    others: tuple[Search, ...] = ()

    def __call__(self, compile: Compiler, earlier: list[Program]) -> Iterator[Program]:
        budget = int(self.share * earlier[0].temp_bytes)
        plan = plan_within(compile.workload, budget)
        if plan is not None:
            loop = partial(checkpointed_scan, memory=budget)
            yield compile(_planned(JAX_REVOLVE, loop, budget, plan))
            for search in self.others:
                yield from search(compile, earlier)


def best_nested(compile: Compiler, earlier: list[Program]) -> list[Program]:
    """The quickest nested scans that need no more memory than the last program of jax_revolve."""
    lean = last_of_jax_revolve(earlier)
    found = sorted(nested_within(compile, lean.temp_bytes, levels=3), key=lambda p: p.once)
    return [beside(lean, program) for program in found[:FINALISTS]]


def nested_within(compile: Compiler, limit: int, levels: int) -> list[Program]:
    """Nested scans that need no more memory, of all ways to divide the length into so many levels,
    or fewer. If none fits, more levels are tried, of four and five the squarest alone; if still
    none does, the leanest is found."""
    tried: list[Program] = []
    fit: list[Program] = []
    for count in LEVELS:
        if count <= levels or not fit:
            ways = sorted(blockings(compile.workload.length, count), key=sum)
            ways = ways if count <= 3 else ways[:1]
            tried += [compile(nested(way, taped)) for way in ways for taped in (True, False)]
            fit = [p for p in tried if p.temp_bytes <= TOLERANCE * limit]
    return fit or sorted(tried, key=lambda p: p.temp_bytes)[:1]


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


def squarest(length: int, levels: int = 2) -> Blocking:
    """Nested scans as alike in length as can be: they take the least memory."""
    return min(blockings(length, levels), key=lambda blocks: (sum(blocks), blocks))


def single_steps(compile: Compiler, earlier: list[Program]) -> list[Program]:
    """Revolve in its original form, within the budget of the last program of jax_revolve."""
    budget = last_of_jax_revolve(earlier).contender.budget or 0
    plan = plan_within(compile.workload, budget, block_size=1)
    scan = partial(checkpointed_scan, plan=plan)
    return [] if plan is None else [compile(_planned(PURE_REVOLVE, scan, budget, plan))]


def equinox_as_lean(compile: Compiler, earlier: list[Program]) -> list[Program]:
    """Equinox's loop with nearly as much memory as the last program of jax_revolve.

    How many states it stores for its checkpoints is unknown here; the compiler's figure is known,
    and part of it does not grow with them, so that a guess too low is followed by better ones.
    """
    lean, checkpoints = last_of_jax_revolve(earlier), 3 * (earlier[-1].contender.checkpoints or 2)
    programs = list(_nearer(compile, lean.temp_bytes, max(checkpoints // 4, 1)))
    fit = [p for p in programs if p.temp_bytes <= TOLERANCE * lean.temp_bytes] or programs[-1:]
    return [beside(lean, max(fit, key=lambda program: program.temp_bytes))]


def _nearer(compile: Compiler, limit: int, checkpoints: int) -> Iterator[Program]:
    """Programs that come nearer and nearer to the limit."""
    for _ in range(TRIED):
        program = compile(equinox(checkpoints))
        yield program
        part = limit / program.temp_bytes
        better = min(max(int(part * checkpoints), 1), compile.workload.length)
        if better == checkpoints or 1 <= part < 1 / ENOUGH:
            return
        checkpoints = better


def last_of_jax_revolve(programs: list[Program]) -> Program:
    return next(p for p in reversed(programs) if p.contender.name == JAX_REVOLVE)


def beside(other: Program, program: Program) -> Program:
    """The program, recorded with the checkpoints and the budget of the other."""
    recorded = {"checkpoints": other.contender.checkpoints, "budget": other.contender.budget}
    return replace(program, contender=replace(program.contender, **recorded))


def plan_within(workload: Workload, budget: int, **options: Any) -> Any:
    """The plan that jax_revolve chooses within the budget; `None` if there is none."""
    try:
        return explained(workload, {"memory": budget, **options}).plan
    except TooLittleMemory:
        return None


def explained(workload: Workload, options: dict[str, Any] | None = None) -> Report:
    """The report of the workload's loop, as a `checkpointed_scan` with these options."""
    loss = partial(workload.loss, partial(checkpointed_scan, **options or {}))
    return explain(loss, argnums=0)(workload.active, workload.passive).loops[0]


def _planned(name: str, loop: Loop, budget: int, plan: Any) -> Contender:
    return Contender(name, loop, plan.checkpoints, block=plan.block_size, budget=budget)
