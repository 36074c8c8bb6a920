"""Gradients of loops whose steps compute few numbers, beside Equinox's loop with as many
checkpoints."""

from collections.abc import Callable, Iterator

from benchmarks.contenders.scans import (
    BY_DEFAULT,
    EQUINOX,
    JAX_REVOLVE,
    LAX_SCAN,
    equinox,
    jax_revolve,
)
from benchmarks.report.results import Results, Run, find, grouped
from benchmarks.report.table import Table, ratio, text
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison
from benchmarks.workloads import small
from benchmarks.workloads.recurrences import scanned

SYSTEMS = (
    small.lorenz_63,
    small.predator_prey,
    small.filter_of,
    small.pendulums,
    small.bodies,
    small.lorenz_96,
    small.network,
)
LENGTH = 20_000
CHECKPOINTS = (10, 30)


def comparisons(quick: bool) -> Iterator[Comparison]:
    each = [c for s in CHECKPOINTS for c in (jax_revolve(s), equinox(s))]
    for make in SYSTEMS[:2] if quick else SYSTEMS:
        workload = scanned(make(100 if quick else LENGTH))
        yield Comparison(workload, "gradient", [LAX_SCAN, BY_DEFAULT, *each], share=1 / 3)


def _ms(contender: str) -> Callable[[list[Run]], str]:
    return lambda runs: text("{median_ms:.1f} ms", find(runs, contender=contender)[0])


def _over_equinox(checkpoints: int) -> Callable[[list[Run]], str]:
    def cell(runs: list[Run]) -> str:
        ours, theirs = (
            find(runs, contender=name, checkpoints=checkpoints)[0]
            for name in (JAX_REVOLVE, EQUINOX)
        )
        return f"{text('{median_ms:.1f} ms', ours)}, {ratio(ours, theirs)}"

    return cell


def _systems(results: Results) -> Iterator[list[Run]]:
    return grouped(results, "workload")


TABLES = {
    "small-steps": Table(
        f"Gradients of {LENGTH} small steps {{where}}, and their times over Equinox's loop with"
        " as many checkpoints (`benchmarks/small_steps.py`):",
        _systems,
        [
            ("loop", lambda runs: runs[0]["workload"]),
            ("`lax.scan`", _ms(LAX_SCAN.name)),
            ("by default", _ms(BY_DEFAULT.name)),
            *((f"{s} checkpoints", _over_equinox(s)) for s in CHECKPOINTS),
        ],
    ),
}
BENCHMARK = Benchmark("small-steps", comparisons, TABLES)
