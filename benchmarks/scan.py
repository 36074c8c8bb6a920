"""`checkpointed_scan` beside other ways to differentiate a long loop: value, derivative, gradient
and, of loops that are not too long, a product with the Hessian."""

from collections.abc import Iterator

from benchmarks.contenders.nested import BestNested
from benchmarks.contenders.scans import LAX_SCAN, REMAT, equinox, jax_revolve
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison
from benchmarks.runner.programs import Workload
from benchmarks.workloads.recurrences import lstm, rnn, scanned, stencil
from jax_revolve import plan

MOST_OF_SECOND_ORDER = 1000  # steps

SHAPES = [
    (stencil, (1000, 20_000), (63, 30, 10)),
    (stencil, (100_000, 1000), (63, 30, 10)),
    (rnn, (1000, 16, 128), (63, None, 10)),
    (rnn, (1000, 16, 512), (63, 10)),
    (rnn, (10_000, 16, 128), (None,)),
    (rnn, (100_000, 4, 16), (63,)),
    (lstm, (1000, 16, 128), (63, None, 10)),
    (lstm, (100, 32, 512), (None, 6)),
]
"""With the numbers of checkpoints; `None` is the library's default."""

QUICK_SHAPES = [(stencil, (4, 16), (2,)), (rnn, (4, 2, 4), (None,))]
"""There is one way to nest scans of four steps."""


def comparisons(quick: bool) -> Iterator[Comparison]:
    for make, shape, checkpoints in QUICK_SHAPES if quick else SHAPES:
        workload = scanned(make(*shape))
        yield from of(workload, [plan(workload.length, s).checkpoints for s in checkpoints])


def of(workload: Workload, checkpoints: list[int]) -> Iterator[Comparison]:
    """How many checkpoints jax_revolve is given matters to first-order reverse mode alone."""
    first = checkpoints[0]
    for quantity in ("value", "jvp"):
        yield Comparison(workload, quantity, [LAX_SCAN, jax_revolve(first)], share=1 / 8)
    others = [c for s in checkpoints for c in (jax_revolve(s), equinox(s), BestNested())]
    yield Comparison(workload, "gradient", [LAX_SCAN, REMAT, *others])
    if workload.length <= MOST_OF_SECOND_ORDER:
        yield Comparison(workload, "hvp", [LAX_SCAN, REMAT, *others[:3]], share=1 / 2)


BENCHMARK = Benchmark("scan", comparisons)
