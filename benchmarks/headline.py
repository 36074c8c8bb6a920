"""The gradient of one loop over its length, and the picture of it on the first pages: other
contenders have the memory or the checkpoints that `checkpointed_scan` takes by default."""

from collections.abc import Iterator

from benchmarks.contenders import names
from benchmarks.contenders.nested import BestNested
from benchmarks.contenders.scans import LAX_SCAN, REMAT, equinox
from benchmarks.runner.benchmark import Benchmark, comparing
from benchmarks.runner.comparison import Comparison
from benchmarks.runner.programs import Contender
from benchmarks.workloads.recurrences import scanned, stencil
from jax_revolve import checkpointed_scan, plan


def comparisons(quick: bool) -> Iterator[Comparison]:
    for length, width in [(4, 16)] if quick else [(10**k, 1000) for k in (2, 3, 4, 5)]:
        s = plan(length).checkpoints
        by_default = Contender(names.JAX_REVOLVE, checkpointed_scan, s)
        contenders = [LAX_SCAN, REMAT, by_default, BestNested(), equinox(s)]
        yield Comparison(scanned(stencil(length, width)), "gradient", contenders)


BENCHMARK = Benchmark("headline", comparing(comparisons))
