"""`checkpointed_scan` beside other ways to differentiate a long loop: the gradient, and a product
with the Hessian."""

from collections.abc import Iterator

from benchmarks.contenders.nested import BestNested
from benchmarks.contenders.scans import LAX_SCAN, REMAT, equinox, jax_revolve
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison
from benchmarks.workloads.recurrences import lstm, rnn, scanned, stencil
from jax_revolve import plan

SHAPES = [
    (stencil, (1000, 20_000), (63,)),
    (rnn, (1000, 16, 512), (63,)),
    (lstm, (1000, 16, 128), (63, None)),
]
"""With the numbers of checkpoints; `None` is the library's default."""

QUICK_SHAPES = [(stencil, (4, 16), (2,)), (rnn, (4, 2, 4), (None,))]
"""There is one way to nest scans of four steps."""


def comparisons(quick: bool) -> Iterator[Comparison]:
    for make, shape, checkpoints in QUICK_SHAPES if quick else SHAPES:
        workload = scanned(make(*shape))
        counts = [plan(workload.length, s).checkpoints for s in checkpoints]
        others = [c for s in counts for c in (jax_revolve(s), equinox(s), BestNested())]
        yield Comparison(workload, "gradient", [LAX_SCAN, REMAT, *others])
        yield Comparison(workload, "hvp", [LAX_SCAN, REMAT, *others[:3]], share=1 / 2)


BENCHMARK = Benchmark("scan", comparisons)
