"""What little memory costs a heavy step: an LSTM with a share of the memory that `jax.lax.scan`
takes, beside pure Revolve, nested scans under `jax.checkpoint` and Equinox's loop.

By figures published in A. Gruslys et al., Memory-efficient backpropagation through time, 2016, 5%
of the memory costs 1.33 times the time in recurrent networks on sequences of length 1000.
"""

from collections.abc import Iterator

from benchmarks.contenders.budgets import Within, equinox_as_lean, single_steps
from benchmarks.contenders.nested import BestNested
from benchmarks.contenders.scans import LAX_SCAN
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison
from benchmarks.workloads.recurrences import lstm, scanned

# Steps of so much work never pay for the evaluations of another level.
NESTED = BestNested(levels_tried=1)

COMPARED = [
    LAX_SCAN,
    Within(0.1),
    Within(0.05, (single_steps, equinox_as_lean, NESTED)),
    Within(0.02, (single_steps, equinox_as_lean)),
]


def comparisons(quick: bool) -> Iterator[Comparison]:
    workload = scanned(lstm(194, 2, 4) if quick else lstm(1000, 32, 512))
    yield Comparison(workload, "gradient", COMPARED, least_rounds=3)


BENCHMARK = Benchmark("budget", comparisons)
