"""What is to be known of an accelerator: time over memory of large workloads in part 1, checkpoints
in the host's memory and while loops in part 2. What fails, as by lack of memory, is recorded with
its error, and the others go on."""

from collections.abc import Iterator

from benchmarks import fronts, storage, while_loop
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison

PARTS = {1: (fronts.large,), 2: (storage.large, while_loop.large)}


def of_part(part: int | None) -> Benchmark:
    """Or both of them, which write the same file."""

    def comparisons(quick: bool) -> Iterator[Comparison]:
        for number, pieces in PARTS.items():
            if part in (None, number):
                for some in pieces:
                    yield from some(quick)

    return Benchmark("accelerator", comparisons)
