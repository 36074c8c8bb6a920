"""`checkpointed_scan` with a budget of memory beside storing everything.

- What does little memory cost? LSTMs with a share of the memory that `jax.lax.scan` takes, beside
  pure Revolve, nested scans under `jax.checkpoint` and Equinox's loop in as much memory. By figures
  published in A. Gruslys et al., Memory-efficient backpropagation through time, 2016, 5% of the
  memory costs 1.33 times the time in recurrent networks on sequences of length 1000.
- Is the plan that is chosen the right one? It is timed beside others that fit into the budget.
"""

from collections.abc import Iterator

from benchmarks.contenders.budgets import Within, equinox_as_lean, other_plans, single_steps
from benchmarks.contenders.nested import BestNested
from benchmarks.contenders.scans import LAX_SCAN
from benchmarks.runner.benchmark import Benchmark, comparing
from benchmarks.runner.comparison import Comparison
from benchmarks.workloads.recurrences import lstm, rnn, scanned, stencil

# Steps of so much work never pay for the evaluations of another level.
NESTED = BestNested(levels_tried=1)

COMPARED = [
    LAX_SCAN,
    Within(0.1),
    Within(0.05, (single_steps, equinox_as_lean, NESTED)),
    Within(0.02, (single_steps, equinox_as_lean)),
    Within(0.01),
]
SHARES = (0.25, 0.1, 0.05, 0.02)


def comparisons(quick: bool) -> Iterator[Comparison]:
    if quick:
        light, others, shares = lstm(194, 2, 4), [stencil(200, 16)], SHARES[2:3]
    else:
        light, shares = lstm(1000, 16, 128), SHARES
        others = [lstm(1000, 16, 128), stencil(1000, 20_000), rnn(1000, 16, 128)]
    yield Comparison(scanned(light), "gradient", COMPARED)
    if not quick:
        yield Comparison(scanned(lstm(1000, 32, 512)), "gradient", COMPARED, least_rounds=3)
    for workload in map(scanned, others):
        for share in shares:
            quantity = f"gradient, {share:.0%} of the memory of lax.scan"
            plans = [LAX_SCAN, Within(share, (other_plans,))]
            yield Comparison(workload, quantity, plans, share=1 / 4)


BENCHMARK = Benchmark("budget", comparing(comparisons))
