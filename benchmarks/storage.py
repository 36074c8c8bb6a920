"""Gradients whose checkpoints are beside the device: in the host's memory, or on a disk.

On a CPU the host's memory is the device's, so that only the files cost something there. Run it with
a disk of the kind that is asked about.
"""

from collections.abc import Iterator
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.report.results import Run
from benchmarks.report.table import Table, over
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison
from benchmarks.runner.programs import Contender
from benchmarks.workloads.recurrences import scanned, stencil
from jax_revolve import Disk, HostMemory, checkpointed_scan

ON_DEVICE = "jax_revolve, checkpoints on the device"


def comparisons(quick: bool) -> Iterator[Comparison]:
    for length, width in [(12, 16)] if quick else [(1000, 20_000), (1000, 1_000_000)]:
        with TemporaryDirectory() as directory:
            count = 2 if quick else 10
            contenders = [*_in_memory(count), _stored("Disk", count, Disk(directory))]
            yield Comparison(scanned(stencil(length, width)), "gradient", contenders)


def large(quick: bool) -> Iterator[Comparison]:
    """For accelerators."""
    for length, width in [(12, 16)] if quick else [(300, 200_000), (300, 16_000_000)]:
        workload, contenders = scanned(stencil(length, width)), _in_memory(2 if quick else 10)
        yield Comparison(workload, "gradient", contenders, may_fail=True)


def _in_memory(count: int) -> list[Contender]:
    """On the device alone, in the host's memory alone, and in both."""
    return [
        Contender(ON_DEVICE, partial(checkpointed_scan, checkpoints=count)),
        _stored("checkpoints=0, HostMemory", 0, HostMemory(checkpoints=count)),
        _stored("HostMemory", count, HostMemory()),
    ]


def _stored(name: str, checkpoints: int, storage: Any) -> Contender:
    scan = partial(checkpointed_scan, checkpoints=checkpoints, storage=storage)
    return Contender(f"jax_revolve, {name}", scan)


def _storage(run: Run) -> str:
    """The default has no name in the API."""
    storage = run["contender"].removeprefix("jax_revolve, ")
    return storage if run["contender"] == ON_DEVICE else f"`{storage}`"


TABLES = {
    "storage": Table(
        "Gradients with 10 checkpoints {where}; times are ratios of medians, over that with all of"
        " them on the device (`benchmarks/storage.py`):",
        lambda results: results.runs,
        [
            ("loop", "{workload}"),
            ("checkpoints", _storage),
            ("memory", "{MB:.2f} MB"),
            ("time", over(ON_DEVICE)),
        ],
    ),
}
BENCHMARK = Benchmark("storage", comparisons, TABLES)
