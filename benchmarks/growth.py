"""How the cost of a gradient grows with the length of the loop, and with the size of the step, when
the memory for carries is fixed."""

from collections.abc import Iterator
from functools import partial

from benchmarks.contenders.scans import JAX_REVOLVE, LAX_SCAN, REMAT, equinox, nested
from benchmarks.contenders.searches import squarest
from benchmarks.report.results import Results, Run, find
from benchmarks.report.table import Table
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison
from benchmarks.runner.programs import Contender, bytes_of
from benchmarks.workloads.recurrences import scanned, stencil
from jax_revolve import checkpointed_scan

LENGTHS, WIDTH = tuple(10**k for k in range(2, 7)), 100
WIDTHS, LENGTH = tuple(10**k for k in range(1, 8)), 30
CARRIES = {"length": 100, "size": 10}
"""The budget, in carries."""


def comparisons(quick: bool) -> Iterator[Comparison]:
    """`lax.scan` takes 400 MB for the longest loop, and 1.2 GB for the largest step."""
    lengths, widths = ((16, 32), (8, 16)) if quick else (LENGTHS, WIDTHS)
    cases = [("length", n, WIDTH) for n in lengths] + [("size", LENGTH, width) for width in widths]
    for varied, n, width in cases:
        workload = scanned(stencil(n, width))
        carries = CARRIES[varied]
        within = partial(checkpointed_scan, memory=carries * bytes_of(workload.active["init"]))
        contenders = [
            *(LAX_SCAN, REMAT, nested(squarest(n), True), nested(squarest(n, 3), True)),
            equinox(carries // 2),  # it stores two carries for each
            Contender(JAX_REVOLVE, within, detail="memory="),
        ]
        about = {"varied": varied, "width": width}
        yield Comparison(workload, "gradient", contenders, 0.2, may_fail=True, about=about)


def _rounded(value: float) -> str:
    return f"{float(f'{value:.3g}'):g}"


def _growing(varied: str, title: str, field: str) -> Table:
    def rows(results: Results) -> list[Run]:
        return find(results.runs, varied=varied)

    def time_of_a_step(run: Run) -> str:
        time = run["median_ms"]
        return run["error"] if time is None else f"{_rounded(1e3 * time / run['length'])} µs"

    return Table(
        f"Gradients of a stencil over {title}, with `memory=` {CARRIES[varied]} carries, {{where}}"
        " (`benchmarks/growth.py`):",
        rows,
        [
            (title, f"{{{field}}}"),
            ("loop", lambda run: " ".join(filter(None, (run["contender"], run["detail"])))),
            ("trace", "{trace_seconds:.2f} s"),
            ("lower", "{lower_seconds:.2f} s"),
            ("compile", "{compile_seconds:.2f} s"),
            ("instructions", "{instructions}"),
            ("memory", lambda run: f"{_rounded(run['MB'])} MB" if run["MB"] else ""),
            ("a step", time_of_a_step),
        ],
    )


TABLES = {
    "growth-length": _growing("length", "the length of the loop", "length"),
    "growth-size": _growing("size", "the size of the step", "width"),
}
BENCHMARK = Benchmark("growth", comparisons, TABLES)
