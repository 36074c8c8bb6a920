"""`bounded_while_loop` beside other loops that stop by a condition."""

from collections.abc import Iterator

from benchmarks.contenders.while_loops import (
    bounded,
    default_checkpoints,
    equinox,
    jax_revolve,
    masked,
)
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison
from benchmarks.workloads.recurrences import Recurrence, lstm, rnn, stencil, until_limit

SHAPES = [
    (stencil, (1000, 20_000), 4096, (63, 10)),
    (stencil, (10_000, 1000), 16_384, (63,)),
    (rnn, (1000, 16, 128), 4096, (30,)),
    (lstm, (1000, 16, 128), 4096, (None,)),
]
"""With `max_steps` and the numbers of checkpoints; `None` is the library's default."""

QUICK_SHAPES = [(stencil, (12, 16), 32, (3,)), (rnn, (12, 2, 4), 32, (None,))]

MOST_SHORT_ROUNDS = 2000
"""For programs of less than a millisecond."""


def comparisons(quick: bool) -> Iterator[Comparison]:
    for make, shape, bound, checkpoints in QUICK_SHAPES if quick else SHAPES:
        counts = [s or default_checkpoints(bound) for s in checkpoints]
        each = [c for s in counts for c in (jax_revolve(bound, s), equinox(bound, s))]
        workload = until_limit(make(*shape), bound)
        yield Comparison(workload, "gradient", [masked(bound), bounded(bound), *each])
    recurrence, bound = (stencil(12, 16), 32) if quick else (stencil(200, 2000), 256)
    workload = until_limit(recurrence, bound, family="second-order")
    contenders = [masked(bound), bounded(bound), jax_revolve(bound)]
    yield Comparison(workload, "hvp", contenders, share=1 / 4)
    if quick:
        yield from with_bounds(stencil(4, 16), 4, 8, 2**20)
    else:
        yield from with_bounds(stencil(8, 20_000), 8, 16, 1024, 2**20)


def with_bounds(recurrence: Recurrence, checkpoints: int, *bounds: int) -> Iterator[Comparison]:
    """The same short loop, up to bounds that are further and further away."""
    workload = until_limit(recurrence, *bounds, family="bounds")
    told = masked(recurrence.length)
    for quantity, s in {"gradient": checkpoints, "gradient, default checkpoints": None}.items():
        contenders = [told, *(jax_revolve(bound, s) for bound in bounds)]
        yield Comparison(workload, quantity, contenders, 1 / 4, most_rounds=MOST_SHORT_ROUNDS)


BENCHMARK = Benchmark("while", comparisons)
