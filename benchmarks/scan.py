"""Times `jax_revolve.checkpointed_scan` against other ways to differentiate a long loop.

    python benchmarks/scan.py

prints a table per workload and the goals, and writes `benchmarks/results/scan-DEVICE.json`. It
needs `jax_revolve[bench]`. All contenders of a workload take turns in one process; run it on a
machine that does nothing else.
"""

from command import Benchmark
from goals import goals, memory_ratio, time_ratios
from measurements import measure
from workloads import all_workloads, smoke_workloads

BENCHMARK = Benchmark(
    name="scan",
    description=__doc__ or "",
    reference="the result of lax.scan",
    workloads=all_workloads,
    smoke_workloads=smoke_workloads,
    measure=measure,
    goals=goals,
    time_ratios=time_ratios,
    memory_ratio=memory_ratio,
)

if __name__ == "__main__":
    BENCHMARK.run()
