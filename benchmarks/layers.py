"""Times `jax_revolve.checkpointed_chain` against storing what every layer leaves behind.

    python benchmarks/layers.py

prints tables and the goals, and writes `benchmarks/results/layers-DEVICE.json`: a transformer of 48
blocks with dropout and a residual network of 100 layers with batch norm, with several numbers of
checkpoints and budgets, beside the plain model and `jax.checkpoint` on every block.

It needs `jax_revolve[bench]`. All contenders of a table take turns in one process; run it on a
machine that does nothing else, for half an hour, most of which goes into compiling.
"""

from command import Benchmark
from layer_goals import goals, memory_ratio, time_ratios
from layer_measurements import measure
from layer_workloads import all_workloads, smoke_workloads

BENCHMARK = Benchmark(
    name="layers",
    description=__doc__ or "",
    reference="the gradient of the plain model",
    workloads=all_workloads,
    smoke_workloads=smoke_workloads,
    measure=measure,
    goals=goals,
    time_ratios=time_ratios,
    memory_ratio=memory_ratio,
    memory_title="of memory",
)

if __name__ == "__main__":
    BENCHMARK.run()
