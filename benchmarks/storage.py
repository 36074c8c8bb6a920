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
            places: dict[str, Any] = {
                names.ON_DEVICE: None,
                "jax_revolve, pinned_host": "pinned_host",
                "jax_revolve, HostMemory": HostMemory(),
                "jax_revolve, Disk": Disk(directory),
            }
            scan = partial(checkpointed_scan, checkpoints=2 if quick else 10)
            loops = [Contender(name, partial(scan, storage=s)) for name, s in places.items()]
            yield Comparison(scanned(stencil(length, width)), "gradient", loops)


BENCHMARK = Benchmark("storage", comparing(comparisons))
