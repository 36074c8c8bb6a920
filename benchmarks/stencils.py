"""Stencils of several stages: the value and the gradient, beside `lax.scan`, also with barriers
that its user writes by hand, and Equinox's loop."""

from collections.abc import Callable, Iterator

from benchmarks.contenders.scans import (
    BY_DEFAULT,
    EQUINOX,
    JAX_REVOLVE,
    LAX_SCAN,
    equinox,
    jax_revolve,
)
from benchmarks.report.results import Results, Run, find
from benchmarks.report.table import Table, text
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison
from benchmarks.workloads.recurrences import Recurrence, scanned
from benchmarks.workloads.stencils import (
    burgers,
    gray_scott,
    limited,
    lorenz_96,
    plate,
    shallow_water,
)

SHAPES: list[tuple[Callable[..., Recurrence], tuple[int, int]]] = [
    (lorenz_96, (3000, 2000)),
    (burgers, (2000, 4000)),
    (limited, (1500, 3000)),
    (plate, (400, 200)),
    (gray_scott, (400, 100)),
    (shallow_water, (400, 100)),
]
QUICK_SHAPES = [(burgers, (8, 16)), (plate, (4, 8))]
STAGED = (lorenz_96, burgers, limited, plate)
CHECKPOINTS = 10


def comparisons(quick: bool) -> Iterator[Comparison]:
    contenders = [LAX_SCAN, BY_DEFAULT, jax_revolve(CHECKPOINTS), equinox(CHECKPOINTS)]
    for make, shape in QUICK_SHAPES if quick else SHAPES:
        workload = scanned(make(*shape))
        yield Comparison(workload, "value", contenders[:2], share=1 / 4)
        yield Comparison(workload, "gradient", contenders, share=1 / 2)
        if make in STAGED:
            yield Comparison(scanned(make(*shape, True)), "gradient", [LAX_SCAN], share=1 / 4)


def _systems(results: Results) -> Iterator[tuple[list[Run], list[Run]]]:
    """The runs of each system as it is, and of it with barriers by hand, if there are any."""
    runs = results.runs
    for family in dict.fromkeys(run["family"] for run in runs):
        if not family.endswith("by hand"):
            yield find(runs, family=family), find(runs, family=f"{family}, barriers by hand")


def _ms(contender: str, quantity: str = "gradient", by_hand: bool = False) -> Callable[..., str]:
    shown = "{median_ms:.0f} ms" + ", {MB:.2f} MB" * (quantity == "gradient")

    def cell(both: tuple[list[Run], list[Run]]) -> str:
        found = find(both[by_hand], contender=contender, quantity=quantity)
        return text(shown, found[0]) if found else ""

    return cell


TABLES = {
    "stencils": Table(
        "Values and gradients of stencils {where}, the gradients also of `lax.scan` with barriers"
        f" that are written by hand, and with {CHECKPOINTS} checkpoints"
        " (`benchmarks/stencils.py`):",
        _systems,
        [
            ("loop", lambda both: both[0][0]["workload"]),
            ("value, `lax.scan`", _ms(LAX_SCAN.name, "value")),
            ("ours", _ms(BY_DEFAULT.name, "value")),
            ("gradient, `lax.scan`", _ms(LAX_SCAN.name)),
            ("by hand", _ms(LAX_SCAN.name, by_hand=True)),
            ("ours, by default", _ms(BY_DEFAULT.name)),
            ("ours", _ms(JAX_REVOLVE)),
            ("Equinox's loop", _ms(EQUINOX)),
        ],
    ),
}
BENCHMARK = Benchmark("stencils", comparisons, TABLES)
