"""What little memory costs a heavy step: an LSTM with a share of the memory that `jax.lax.scan`
takes, beside pure Revolve, nested scans under `jax.checkpoint` and Equinox's loop.

By figures published in A. Gruslys et al., Memory-efficient backpropagation through time, 2016, 5%
of the memory costs 1.33 times the time in recurrent networks on sequences of length 1000.
"""

from collections.abc import Iterator

from benchmarks.contenders import searches
from benchmarks.contenders.scans import EQUINOX, JAX_REVOLVE, LAX_SCAN, NESTED
from benchmarks.report.results import Results, labeled, within
from benchmarks.report.table import Table, of, over
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison
from benchmarks.workloads.recurrences import lstm, scanned

SEARCHES = (searches.single_steps, searches.equinox_as_lean, searches.best_nested)


def comparisons(quick: bool) -> Iterator[Comparison]:
    workload = scanned(lstm(194, 2, 4) if quick else lstm(1000, 32, 512))
    contenders = [LAX_SCAN, *(searches.Within(share, SEARCHES) for share in (0.05, 0.02))]
    yield Comparison(workload, "gradient", contenders)


ROWS = [
    ("`lax.scan`, stores everything", LAX_SCAN.name, None),
    ("`memory=` 5% of that", JAX_REVOLVE, 0.05),
    ("`memory=` 2% of that", JAX_REVOLVE, 0.02),
    ("pure Revolve, single steps, 5% of that", searches.PURE_REVOLVE, 0.05),
    ("the fastest nested scans in as much memory as `memory=` 5%", NESTED, 0.05),
    ("Equinox's checkpointed loop, as much memory as `memory=` 5%", EQUINOX, 0.05),
]


def _of_the_budget(results: Results) -> str:
    """What the temporaries take of `memory=` 2%."""
    run = within(results.runs, JAX_REVOLVE, 0.02)
    assert run is not None
    return f"{run['temp_bytes'] / run['budget']:.0%}"


TABLES = {
    "budgets": Table(
        "Gradients of a heavy step, an LSTM with batch 32 and width 512 over 1000 steps, {where}"
        " (`benchmarks/budget.py`):",
        labeled(ROWS),
        [
            ("gradient of", lambda row: row[0]),
            ("memory", of(1, "{MB:.1f} MB")),
            ("time", of(1, "{seconds:.1f} s")),
            ("time / `lax.scan`", of(1, over(LAX_SCAN.name))),
        ],
    ),
}
BENCHMARK = Benchmark("budget", comparisons, TABLES, {"of-the-budget": _of_the_budget})
