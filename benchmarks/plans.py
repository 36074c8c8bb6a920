"""The loss by prediction: the time of the plan that is chosen, over that of the quickest plan.

Of each workload and budget, plans of all kinds that fit are timed in turns. The quickest is chosen
by half of the rounds, and all are compared by the other half, so that luck does not count. The
others are what is chosen by prediction, and by `explain(..., measure=True)`.
"""

from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any

import jax
from tqdm import tqdm

from benchmarks.fronts import SHAPES
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Record
from benchmarks.runner.programs import Compiler, Contender, Program, Workload
from benchmarks.runner.timing import interleave
from benchmarks.workloads.recurrences import scanned
from benchmarks.workloads.steps import sine_stencil
from jax_revolve import Report, checkpointed_scan, explain
from jax_revolve.schedule.selection import quickest
from jax_revolve.schedule.two_level import AnyPlan

SHARES = (0.3, 0.1, 0.03)
QUICK_SHAPES = [(sine_stencil, (64, 16))]
BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
MOST_OF_FEWEST = 1.6
"""Plans that run more steps than so many times the fewest are not timed."""

ROUNDS = 12
MEASURING = 60.0
"""Seconds: the default of `explain`."""


def measure(quick: bool) -> Iterator[list[Record]]:
    for make, shape in QUICK_SHAPES if quick else SHAPES:
        workload = scanned(make(*shape))
        compile = Compiler(workload, "gradient")
        everything = compile(Contender("", jax.lax.scan)).temp_bytes
        for share in SHARES[:1] if quick else SHARES:
            budget = int(share * everything)
            found = _record(workload, compile, budget, quick)
            yield [{"workload": workload.name, "share": share, "budget": budget, **found}]


def _record(workload: Workload, compile: Compiler, budget: int, quick: bool) -> Record:
    predicted = _explained(workload, budget)
    sizes = predicted.sizes
    length = workload.length
    measured = _explained(workload, budget, measure=True, seconds=2.0 if quick else MEASURING)
    chosen = {"predicted": predicted.plan, "measured": measured.plan}
    others: list[Any] = []
    for block_size in (*(k for k in BLOCKS if k < length), length):
        try:
            others.append(quickest(length, sizes, budget, block_size=block_size))
        except ValueError:  # does not fit
            continue
    fewest = min(plan.evaluations for plan in [*others, *chosen.values()])
    others = [plan for plan in others if plan.evaluations <= MOST_OF_FEWEST * fewest]
    plans = list(dict.fromkeys([*chosen.values(), *others]))
    programs = [_program(compile, plan) for plan in tqdm(plans, desc="Compiling", leave=False)]
    for program in programs:
        program.run()
    rounds = 4 if quick else ROUNDS
    times = interleave([program.run for program in programs], 0.0, rounds, rounds)
    even = {plan: median(each[::2]) for plan, each in zip(plans, times, strict=True)}
    odd = {plan: median(each[1::2]) for plan, each in zip(plans, times, strict=True)}
    best = min(even, key=lambda plan: even[plan])
    record: Record = {"plans": len(plans), "best": _in_words(best), "best_ms": 1e3 * odd[best]}
    for name, plan in chosen.items():
        record |= {name: _in_words(plan), f"{name}_loss": odd[plan] / odd[best] - 1}
    return record


def _program(compile: Compiler, plan: Any) -> Program:
    loop = partial(checkpointed_scan, plan=plan)
    return compile(Contender("", loop, plan.checkpoints, block=plan.block_size))


def _explained(workload: Workload, budget: int, **how: Any) -> Report:
    loss = partial(workload.loss, partial(checkpointed_scan, memory=budget))
    return explain(loss, **how)(workload.active, workload.passive).loops[0]


def _in_words(plan: AnyPlan) -> str:
    return f"{plan.checkpoints} checkpoints, blocks of {plan.block_size}"


BENCHMARK = Benchmark("plans", measure)
