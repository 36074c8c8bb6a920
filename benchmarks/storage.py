"""Times gradients whose checkpoints are beside the device: in the host's memory, or on disk.

    python benchmarks/storage.py

prints a table per workload and writes `benchmarks/results/storage-DEVICE.json`. On a CPU the host's
memory is the device's, so that only the files cost something there. It needs `jax_revolve[bench]`;
run it on a machine that does nothing else, with a disk of the kind that is asked about.
"""

import tempfile
from collections.abc import Iterator
from functools import partial
from typing import Any

from command import Benchmark
from contenders import OURS, Contender
from goals import Goal, memory_ratio, time_ratio
from measurements import Measurement, measure_programs
from programs import gradient
from workloads import Workload, stencil

from jax_revolve import Disk, HostMemory, checkpointed_scan

ON_DEVICE = "checkpoints on the device"
PINNED = "pinned_host"
HOST = "HostMemory"
DISK = "Disk"


def measure(workload: Workload, budget: float, least_rounds: int) -> list[Measurement]:
    (s,) = workload.checkpoints
    with tempfile.TemporaryDirectory() as directory:
        places: dict[str, Any] = {
            ON_DEVICE: None,
            PINNED: PINNED,
            HOST: HostMemory(),
            DISK: Disk(directory),
        }
        contenders = [
            Contender(f"{OURS}, {name}", partial(checkpointed_scan, checkpoints=s, storage=place))
            for name, place in places.items()
        ]
        programs = [gradient(workload, contender) for contender in contenders]
        return measure_programs(workload, "gradient", programs, budget, least_rounds)


def goals(measurements: list[Measurement]) -> Iterator[Goal]:
    """Bit for bit: the greatest difference to the gradient with checkpoints on the device."""
    for run in measurements:
        if ON_DEVICE not in run.contender:
            yield Goal(run.workload, f"{run.contender}: difference", 0.0, run.difference)


def time_ratios(run: Measurement, measurements: list[Measurement]) -> dict[str, float | None]:
    return {"on the device": time_ratio(run, measurements, f"{OURS}, {ON_DEVICE}")}


BENCHMARK = Benchmark(
    name="storage",
    description=__doc__ or "",
    reference="the gradient with checkpoints on the device",
    workloads=lambda: [stencil(1000, 20_000, (10,)), stencil(1000, 1_000_000, (10,))],
    smoke_workloads=lambda: [stencil(12, 16, (2,))],
    measure=measure,
    goals=goals,
    time_ratios=time_ratios,
    memory_ratio=partial(memory_ratio, rival=f"{OURS}, {ON_DEVICE}"),
)

if __name__ == "__main__":
    BENCHMARK.run()
