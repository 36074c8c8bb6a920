"""Plans of all kinds, timed in turns, beside what the cost model predicts.

- The loss by prediction: how much longer the plan that is chosen within a budget takes than the
  quickest one that fits. The quickest is chosen by half of the rounds, and compared with the
  chosen one by the other half, so that luck does not count.
- How far differences of times between plans are from the predicted ones.
- The constants of a profile: `python -m benchmarks constants` fits them to these times, and writes
  the profile of the package (`report/constants.py`). For that, each record has the `terms` of its
  time, by the names of the constants.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from tqdm import tqdm

from benchmarks import fronts, stencils
from benchmarks.contenders.scans import LAX_SCAN
from benchmarks.contenders.searches import explained
from benchmarks.report.results import Results, Run, find, grouped
from benchmarks.report.table import Table
from benchmarks.runner.benchmark import Benchmark, Measurement
from benchmarks.runner.programs import Compiler, Contender, Record, Workload
from benchmarks.runner.timing import interleave
from benchmarks.workloads.recurrences import rnn, scanned
from jax_revolve import checkpointed_scan
from jax_revolve.profiles.in_force import VARIABLE
from jax_revolve.profiles.profile import CPU, Profile
from jax_revolve.schedule import cost
from jax_revolve.schedule.arguments import TooLittleMemory
from jax_revolve.schedule.selection import quickest

SHAPES = [*fronts.SHAPES, (rnn, (1000, 16, 512)), *stencils.SHAPES]
SHARES = fronts.SHARES[1:]
BLOCKS = (1, 4, 16, 64, 256)
MOST_OF_FEWEST = 1.6
"""Plans that run more steps than so many times the fewest are not timed."""

ROUNDS = 10
"""Half of them choose, and half of them compare."""

TERMS = ("product_operation", "byte", "transcendental_byte", "slow_byte", "kernel")
TERMS += ("evaluation", "residual_byte", "copied_byte", "weight_byte", "held_byte")
"""The constants that times of plans in the device's memory are linear in."""


def measurements(quick: bool) -> Iterator[Measurement]:
    for make, shape in fronts.QUICK_SHAPES if quick else SHAPES:
        workload = scanned(make(*shape))
        shares = SHARES[:1] if quick else SHARES
        yield Measurement(workload.name, partial(_of_workload, workload, shares))


def _of_workload(workload: Workload, shares: tuple[float, ...], quick: bool) -> list[Record]:
    compile, value = Compiler(workload, "gradient"), Compiler(workload, "value")(LAX_SCAN)
    whole, report, terms = compile(LAX_SCAN), explained(workload), _by_constant(workload)
    chosen: dict[float, Any] = {}
    plans: list[Any] = []
    for share in shares:
        budget = int(share * whole.temp_bytes)
        with suppress(TooLittleMemory):
            chosen[share] = explained(workload, {"memory": budget}).plan
            plans += [chosen[share], *_others(workload.length, report.sizes, budget)]
    plans = list(dict.fromkeys(plans))
    programs = [
        compile(Contender("", partial(checkpointed_scan, plan=plan)))
        for plan in tqdm(plans, desc="Compiling", leave=False)
    ]
    rounds = 4 if quick else ROUNDS
    runs = [program.run for program in (value, whole, *programs)]
    times = interleave(runs, 0.0, rounds, rounds)
    ms = [1e3 * median(each) for each in times]
    about = {"workload": workload.name}
    work = {name: workload.length * sizes.work for name, sizes in terms.items()}
    work["evaluation"] = workload.length
    found = [about | {"ran": "value", "ms": ms[0], "terms": work}]
    found += [about | {"ran": "lax.scan", "ms": ms[1]}]
    for plan, taken in zip(plans, ms[2:], strict=True):
        record = about | {"ran": in_words(plan), "ms": taken}
        record["bytes"] = cost.memory(plan, report.sizes)
        record["predicted_ms"] = cost.time(plan, report.sizes) / 1e6
        record["terms"] = {name: cost.time(plan, sizes) for name, sizes in terms.items()}
        found.append(record)
    even = {plan: median(each[::2]) for plan, each in zip(plans, times[2:], strict=True)}
    odd = {plan: median(each[1::2]) for plan, each in zip(plans, times[2:], strict=True)}
    for share, plan in chosen.items():
        budget = int(share * whole.temp_bytes)
        fit = [p for p in plans if cost.memory(p, report.sizes) <= budget]
        best = min(fit, key=lambda p: even[p])
        record = about | {"share": share, "plans": len(fit), "best": in_words(best)}
        record |= {"best_ms": 1e3 * odd[best], "predicted": in_words(plan)}
        found.append(record | {"predicted_loss": odd[plan] / odd[best] - 1})
    return found


def _others(length: int, sizes: Any, budget: int) -> Iterator[Any]:
    """The plans with least predicted times of several block sizes, if they run few steps more."""
    fit: list[Any] = []
    for block_size in (*(k for k in BLOCKS if k < length), length):
        with suppress(TooLittleMemory):
            fit.append(quickest(length, sizes, budget, block_size=block_size))
    fewest = min((plan.evaluations for plan in fit), default=0)
    return (plan for plan in fit if plan.evaluations <= MOST_OF_FEWEST * fewest)


def _by_constant(workload: Workload) -> dict[str, Any]:
    """For each constant, the sizes of a step whose times are what it would be multiplied by."""
    found: dict[str, Any] = {}
    for name in TERMS:
        numbers = {key: 0.0 for key, value in asdict(CPU).items() if not isinstance(value, str)}
        profile = Profile("cpu", name, **numbers | {name: 1.0, "reused": CPU.reused})
        with _in_force(profile):
            found[name] = explained(workload).sizes
    return found


@contextmanager
def _in_force(profile: Profile) -> Iterator[None]:
    before = os.environ.get(VARIABLE)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        path.write_text(json.dumps(asdict(profile)))
        os.environ[VARIABLE] = str(path)
        try:
            yield
        finally:
            os.environ.pop(VARIABLE)
            os.environ.update({VARIABLE: before} if before else {})


def in_words(plan: Any) -> str:
    slots = " x ".join(map(str, plan.levels)) or plan.checkpoints
    return f"{slots} checkpoints, blocks of {plan.block_size}"


def _losses(results: Results) -> list[Run]:
    return [run for run in results.runs if "share" in run.fields]


def errors(results: Results) -> Iterator[tuple[float, Run]]:
    """How far the time that a plan takes more than its workload's quickest plan is from the
    predicted one, over its time."""
    for runs in grouped(results, "workload"):
        plans = [run for run in runs if "predicted_ms" in run.fields]
        least = min(plans, key=lambda run: run["ms"], default=None)
        for run in plans:
            if least is not None and run is not least:
                more = run["ms"] - least["ms"]
                predicted = run["predicted_ms"] - least["predicted_ms"]
                yield abs(more - predicted) / run["ms"], run


def _error(results: Results) -> str:
    found = sorted((error for error, _ in errors(results)), reverse=True)
    return f"{median(found):.0%} in the median, {found[0]:.0%} at most"


def _worst(results: Results) -> str:
    return f"{max(run['predicted_loss'] for run in _losses(results)):.0%}"


def _ms_of_scan(run: Run) -> str:
    scan = find(run.others, workload=run["workload"], ran="lax.scan")[0]
    return f"{scan['ms']:.0f} ms"


TABLES = {
    "plans": Table(
        "Gradients with `memory=` a share of what `lax.scan` takes {where}: the"
        " fastest of the plans that fit, and how much longer the one predicted to be fastest takes"
        " (`benchmarks/plans.py`):",
        _losses,
        [
            ("loop", "{workload}"),
            ("`lax.scan`", _ms_of_scan),
            ("share", "{share:.0%}"),
            ("fastest", "{best}"),
            ("time", "{best_ms:.0f} ms"),
            ("predicted", "{predicted_loss:+.0%}"),
        ],
    ),
}
FIGURES = {"plans-error": _error, "plans-worst": _worst}
BENCHMARK = Benchmark("plans", measurements, TABLES, FIGURES)
