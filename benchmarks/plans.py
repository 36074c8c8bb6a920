"""The loss by prediction: the time of the plan that is chosen, over that of the quickest plan.

Of each workload and budget, plans of all kinds that fit are timed in turns. The quickest is chosen
by half of the rounds, and compared with the predicted one by the other half, so that luck does not
count.
"""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from statistics import median
from typing import Any

from tqdm import tqdm

from benchmarks.contenders.scans import LAX_SCAN
from benchmarks.contenders.searches import explained
from benchmarks.fronts import QUICK_SHAPES, SHAPES
from benchmarks.report.table import Table
from benchmarks.runner.benchmark import Benchmark, Measurement
from benchmarks.runner.programs import Compiler, Contender, Record, Workload
from benchmarks.runner.timing import interleave
from benchmarks.workloads.recurrences import scanned
from jax_revolve import checkpointed_scan
from jax_revolve.schedule.selection import quickest

SHARES = (0.3, 0.1, 0.03)
BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
MOST_OF_FEWEST = 1.6
"""Plans that run more steps than so many times the fewest are not timed."""

ROUNDS = 14
"""Half of them choose, and half of them compare."""


def measurements(quick: bool) -> Iterator[Measurement]:
    for make, shape in QUICK_SHAPES if quick else SHAPES:
        workload = scanned(make(*shape))
        shares = SHARES[:1] if quick else SHARES
        yield Measurement(workload.name, partial(_of_workload, workload, shares))


def _of_workload(workload: Workload, shares: tuple[float, ...], quick: bool) -> list[Record]:
    compile = Compiler(workload, "gradient")
    budgets = {share: int(share * compile(LAX_SCAN).temp_bytes) for share in shares}
    about = {"workload": workload.name}
    return [
        about | {"share": share, **_within(workload, compile, budget, quick)}
        for share, budget in budgets.items()
    ]


def _within(workload: Workload, compile: Compiler, budget: int, quick: bool) -> Record:
    report, length = explained(workload, {"memory": budget}), workload.length
    chosen = report.plan
    others: list[Any] = []
    for block_size in (*(k for k in BLOCKS if k < length), length):
        with suppress(ValueError):  # does not fit
            others.append(quickest(length, report.sizes, budget, block_size=block_size))
    fewest = min(plan.evaluations for plan in [*others, chosen])
    others = [plan for plan in others if plan.evaluations <= MOST_OF_FEWEST * fewest]
    plans = list(dict.fromkeys([chosen, *others]))
    programs = [
        compile(Contender("", partial(checkpointed_scan, plan=plan)))
        for plan in tqdm(plans, desc="Compiling", leave=False)
    ]
    rounds = 4 if quick else ROUNDS
    times = interleave([program.run for program in programs], 0.0, rounds, rounds)
    even = {plan: median(each[::2]) for plan, each in zip(plans, times, strict=True)}
    odd = {plan: median(each[1::2]) for plan, each in zip(plans, times, strict=True)}
    best = min(even, key=lambda plan: even[plan])
    record: Record = {"plans": len(plans), "best": in_words(best), "best_ms": 1e3 * odd[best]}
    return record | {"predicted": in_words(chosen), "predicted_loss": odd[chosen] / odd[best] - 1}


def in_words(plan: Any) -> str:
    slots = " x ".join(map(str, plan.levels)) or plan.checkpoints
    return f"{slots} checkpoints, blocks of {plan.block_size}"


TABLES = {
    "plans": Table(
        "Gradients with `memory=` a share of what `lax.scan` takes {where}: the"
        " fastest of the plans that fit, and how much longer the one predicted to be fastest takes"
        " (`benchmarks/plans.py`):",
        lambda results: results.runs,
        [
            ("loop", "{workload}"),
            ("share", "{share:.0%}"),
            ("fastest", "{best}"),
            ("time", "{best_ms:.0f} ms"),
            ("predicted", "{predicted_loss:+.0%}"),
        ],
    ),
}
BENCHMARK = Benchmark("plans", measurements, TABLES)
