"""`checkpointed_scan` beside other ways to differentiate a long loop: the gradient, and a product
with the Hessian."""

from collections.abc import Callable, Iterator

from benchmarks.contenders.scans import (
    EQUINOX,
    JAX_REVOLVE,
    LAX_SCAN,
    NESTED,
    REMAT,
    equinox,
    jax_revolve,
)
from benchmarks.contenders.searches import best_nested
from benchmarks.report.results import Results, Run, find, quickest
from benchmarks.report.table import Column, Table, of, over
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison
from benchmarks.workloads.recurrences import lstm, rnn, scanned, stencil
from jax_revolve import plan

SHAPES = [
    (stencil, (1000, 20_000), (63,)),
    (rnn, (1000, 16, 512), (63,)),
    (lstm, (1000, 16, 128), (63, None)),
]
"""With the numbers of checkpoints; `None` is the library's default."""

QUICK_SHAPES = [(stencil, (4, 16), (2,)), (rnn, (4, 2, 4), (None,))]
"""There is one way to nest scans of four steps."""


def comparisons(quick: bool) -> Iterator[Comparison]:
    for make, shape, checkpoints in QUICK_SHAPES if quick else SHAPES:
        workload = scanned(make(*shape))
        counts = [plan(workload.length, s).checkpoints for s in checkpoints]
        others = [c for s in counts for c in (jax_revolve(s), equinox(s), best_nested)]
        yield Comparison(workload, "gradient", [LAX_SCAN, REMAT, *others])
        yield Comparison(workload, "hvp", [LAX_SCAN, REMAT, *others[:3]], share=1 / 2)


STENCIL = ("stencil, n = 1000, width 20000", 63)
RNN = ("rnn, n = 1000, batch 16, width 512", 63)
LSTM = "lstm, n = 1000, batch 16, width 128"
OF_LAX = {
    LAX_SCAN.name: "`lax.scan(f)`",
    REMAT.name: "`lax.scan(jax.checkpoint(f))`",
    NESTED: "the fastest nested scans",
}
OF_CHECKPOINTS = {JAX_REVOLVE: "`checkpointed_scan(f, checkpoints={})`"}
BY_DEFAULT = {EQUINOX: "Equinox's checkpointed loop", JAX_REVOLVE: "`checkpointed_scan(f)`"}


def _by_contender(
    quantity: str, shown: list[tuple[str, int]], labels: dict[str, str]
) -> Callable[[Results], Iterator[tuple[str, Run]]]:
    """A label and the best run of each contender, with so many checkpoints where it takes them."""

    def rows(results: Results) -> Iterator[tuple[str, Run]]:
        for workload, s in shown:
            runs = find(results.runs, workload=workload, quantity=quantity)
            runs = [run for run in runs if run["checkpoints"] in (None, s)]
            for contender, label in labels.items():
                yield label.format(s), quickest(runs, contender=contender)

    return rows


def _columns(title: str) -> list[Column]:
    return [
        ("loop", of(1, "{workload}")),
        (title, lambda row: row[0]),
        ("memory", of(1, "{MB:.2f} MB")),
        ("time", of(1, over(LAX_SCAN.name))),
    ]


TABLES = {
    "checkpointed-scans": Table(
        "Gradients {where}; times are ratios of medians, over `lax.scan`'s (`benchmarks/scan.py`):",
        _by_contender("gradient", [STENCIL, RNN, (LSTM, 44)], OF_LAX | OF_CHECKPOINTS),
        _columns("gradient of"),
    ),
    "second-order-of-scans": Table(
        "Hessian-vector products, forward over reverse, {where}; times are ratios of medians, over"
        " `lax.scan`'s (`benchmarks/scan.py`):",
        _by_contender("hvp", [STENCIL, RNN, (LSTM, 63)], OF_LAX | BY_DEFAULT),
        _columns("product through"),
    ),
}
BENCHMARK = Benchmark("scan", comparisons, TABLES)
