"""Times `jax_revolve.checkpointed_scan` with a budget of memory against storing everything.

    python benchmarks/budget.py

prints tables and the goals, and writes `benchmarks/results/budget-DEVICE.json` with a picture
beside it, which `--draw` draws again. Two questions are asked:

- What does little memory cost? LSTMs with a share of the memory that `jax.lax.scan` takes, against
    pure Revolve, nested scans under `jax.checkpoint` and Equinox's loop in as much memory.
- Is the plan that is chosen the right one? It is timed beside others that fit into the budget.

It needs `jax_revolve[bench,plot]`. All contenders of a table take turns in one process; run it on a
machine that does nothing else, for a quarter of an hour.
"""

from budget_goals import PUBLISHED, goals, memory_ratio, time_ratios
from budget_measurements import measure
from budget_picture import draw
from budget_workloads import all_workloads, smoke_workloads
from command import Benchmark

BENCHMARK = Benchmark(
    name="budget",
    description=__doc__ or "",
    reference="the result of lax.scan",
    workloads=all_workloads,
    smoke_workloads=smoke_workloads,
    measure=measure,
    goals=goals,
    time_ratios=time_ratios,
    memory_ratio=memory_ratio,
    memory_title="of memory",
    note=PUBLISHED,
    draw=draw,
)

if __name__ == "__main__":
    BENCHMARK.run()
