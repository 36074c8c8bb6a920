"""Gradients whose checkpoints are beside the device: in the host's memory, or on a disk.

On a CPU the host's memory is the device's, so that only the files cost something there. Run it with
a disk of the kind that is asked about.
"""

from collections.abc import Iterator
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.contenders import names
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison
from benchmarks.runner.programs import Contender
from benchmarks.workloads.recurrences import scanned, stencil
from jax_revolve import Disk, HostMemory, checkpointed_scan


def comparisons(quick: bool) -> Iterator[Comparison]:
    for length, width in [(12, 16)] if quick else [(1000, 20_000), (1000, 1_000_000)]:
        with TemporaryDirectory() as directory:
            count = 2 if quick else 10
            contenders = [*on_a_device(count), _stored("Disk", count, Disk(directory))]
            yield Comparison(scanned(stencil(length, width)), "gradient", contenders)


def on_a_device(count: int) -> list[Contender]:
    """On the device alone, in the host's memory alone, and in both."""
    return [
        Contender(names.ON_DEVICE, partial(checkpointed_scan, checkpoints=count)),
        _stored("checkpoints=0, HostMemory", 0, HostMemory(checkpoints=count)),
        _stored("HostMemory", count, HostMemory()),
    ]


def _stored(name: str, checkpoints: int, storage: Any) -> Contender:
    scan = partial(checkpointed_scan, checkpoints=checkpoints, storage=storage)
    return Contender(f"jax_revolve, {name}", scan)


BENCHMARK = Benchmark("storage", comparisons)
