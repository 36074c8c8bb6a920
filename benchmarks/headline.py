"""Times the gradient of one loop over its length: the picture of the README and of the first page.

    python benchmarks/headline.py

writes `benchmarks/results/headline-DEVICE.json` and a picture of it: a stencil of 1000 numbers, 100
to 100000 steps of it, differentiated by `lax.scan`, with its steps under `jax.checkpoint`, by the
best nested scans, by Equinox's checkpointed loop, and by `checkpointed_scan` with nothing said. The
rivals have the memory or the checkpoints that it takes. It needs `jax_revolve[bench,plot]`; run it
on a machine that does nothing else.
"""

from collections.abc import Iterator
from functools import partial

from command import Benchmark
from contenders import OURS, Contender, equinox, plain, rematerialized
from goals import Goal, memory_ratio, time_ratios
from headline_picture import draw
from measurements import Measurement, measure_programs
from nesting import NestedScans
from programs import gradient
from workloads import Workload, stencil

from jax_revolve import checkpointed_scan, plan

WIDTH = 1000
LENGTHS = (100, 1000, 10_000, 100_000)


def measure(workload: Workload, budget: float, least_rounds: int) -> list[Measurement]:
    """The gradient, by every contender."""
    length = workload.length
    s = plan(length).checkpoints
    reference = gradient(workload, plain(length))
    remat = gradient(workload, rematerialized(length))
    ours = gradient(workload, Contender(OURS, partial(checkpointed_scan), s))
    nested = NestedScans(workload, reference, remat).best(ours)
    programs = [reference, remat, *nested, gradient(workload, equinox(s)), ours]
    return measure_programs(workload, "gradient", programs, budget, least_rounds)


def goals(measurements: list[Measurement]) -> Iterator[Goal]:
    """None is stated: the goals are those of `scan.py`."""
    del measurements
    yield from ()


def workloads() -> list[Workload]:
    return [stencil(length, WIDTH, (None,)) for length in LENGTHS]


def smoke_workloads() -> list[Workload]:
    return [stencil(4, 16, (None,))]


BENCHMARK = Benchmark(
    name="headline",
    description=__doc__ or "",
    reference="the result of lax.scan",
    workloads=workloads,
    smoke_workloads=smoke_workloads,
    measure=measure,
    goals=goals,
    time_ratios=time_ratios,
    memory_ratio=memory_ratio,
    draw=draw,
)

if __name__ == "__main__":
    BENCHMARK.run()
