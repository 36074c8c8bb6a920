"""Gradients whose checkpoints are beside the device: in the host's memory, or on a disk.

On a CPU the host's memory is the device's, so that only the files cost something there. Run it with
a disk of the kind that is asked about.
"""

from collections.abc import Iterator
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.contenders import names
from benchmarks.runner.benchmark import Benchmark, comparing
from benchmarks.runner.comparison import Comparison
from benchmarks.runner.programs import Contender
from benchmarks.workloads.recurrences import scanned, stencil
from jax_revolve import Disk, HostMemory, checkpointed_scan


def comparisons(quick: bool) -> Iterator[Comparison]:
    for length, width in [(12, 16)] if quick else [(1000, 20_000), (1000, 1_000_000)]:
        with TemporaryDirectory() as directory:
            count = 2 if quick else 10
            places: dict[str, dict[str, Any]] = {
                names.ON_DEVICE: {"checkpoints": count},
                "jax_revolve, checkpoints=0, HostMemory": {
                    "checkpoints": 0,
                    "storage": HostMemory(checkpoints=count),
                },
                "jax_revolve, HostMemory": {"checkpoints": count, "storage": HostMemory()},
                "jax_revolve, Disk": {"checkpoints": count, "storage": Disk(directory)},
            }
            loops = [
                Contender(name, partial(checkpointed_scan, **options))
                for name, options in places.items()
            ]
            yield Comparison(scanned(stencil(length, width)), "gradient", loops)


BENCHMARK = Benchmark("storage", comparing(comparisons))
