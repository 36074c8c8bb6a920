"""Times `jax_revolve.bounded_while_loop` against other loops that stop by a condition.

    python benchmarks/while_loop.py

prints a table per workload and the goals, and writes `benchmarks/results/while-DEVICE.json`. It
needs `jax_revolve[bench]`. All contenders of a workload take turns in one process; run it on a
machine that does nothing else.
"""

from command import Benchmark
from while_goals import goals, memory_ratio, time_ratios
from while_measurements import measure
from while_workloads import all_workloads, smoke_workloads

BENCHMARK = Benchmark(
    name="while",
    description=__doc__ or "",
    reference="the result of the first loop of the table",
    workloads=all_workloads,
    smoke_workloads=smoke_workloads,
    measure=measure,
    goals=goals,
    time_ratios=time_ratios,
    memory_ratio=memory_ratio,
)

if __name__ == "__main__":
    BENCHMARK.run()
