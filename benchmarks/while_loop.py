"""`bounded_while_loop` beside other loops that stop by a condition."""

from collections.abc import Iterator

from benchmarks.contenders.while_loops import (
    LAX_WHILE_LOOP,
    bounded,
    default_checkpoints,
    equinox,
    jax_revolve,
    masked,
)
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison
from benchmarks.workloads.recurrences import (
    Recurrence,
    growth,
    lstm,
    rnn,
    stencil,
    under_vmap,
    until_limit,
)

SHAPES = [
    (stencil, (1000, 20_000), 4096, (63, 30, 10)),
    (stencil, (10_000, 1000), 16_384, (63, 30, 10)),
    (rnn, (1000, 16, 128), 4096, (63, 30, 10)),
    (lstm, (1000, 16, 128), 4096, (63, 30, None, 10)),
    (growth, (8000, 1), 10_000, (1000, 100, 30, None)),
    (growth, (8000, 40), 10_000, (1000, 100, 30, None)),
]
"""With `max_steps` and the numbers of checkpoints; `None` is the library's default."""

QUICK_SHAPES = [(stencil, (12, 16), 32, (3,)), (rnn, (12, 2, 4), 32, (None,))]

MOST_SHORT_ROUNDS = 2000
"""For programs of less than a millisecond."""


def comparisons(quick: bool) -> Iterator[Comparison]:
    for make, shape, bound, checkpoints in QUICK_SHAPES if quick else SHAPES:
        counts = [s or default_checkpoints(bound) for s in checkpoints]
        yield from each_mode(make(*shape), bound, counts)
    if quick:
        yield second_order(stencil(12, 16), 32)
        yield from with_bounds(stencil(4, 16), 4, 8, 2**20)
        yield many_examples(stencil(5, 16), 32, 3)
    else:
        yield second_order(stencil(200, 2000), 256)
        yield from with_bounds(stencil(8, 20_000), 8, 16, 1024, 2**20)
        yield many_examples(stencil(64, 2000), 4096, 10)


def each_mode(recurrence: Recurrence, bound: int, checkpoints: list[int]) -> Iterator[Comparison]:
    workload, by_default = until_limit(recurrence, bound), jax_revolve(bound)
    forward = [LAX_WHILE_LOOP, by_default]
    yield Comparison(workload, "value", forward, share=1 / 4)
    yield Comparison(workload, "jvp", [*forward, bounded(bound)], share=1 / 4)
    each = [c for s in checkpoints for c in (jax_revolve(bound, s), equinox(bound, s))]
    yield Comparison(workload, "gradient", [masked(bound), bounded(bound), *each])


def second_order(recurrence: Recurrence, bound: int) -> Comparison:
    workload = until_limit(recurrence, bound, family="second-order")
    contenders = [masked(bound), bounded(bound), jax_revolve(bound)]
    return Comparison(workload, "hvp", contenders, share=1 / 4)


def with_bounds(recurrence: Recurrence, checkpoints: int, *bounds: int) -> Iterator[Comparison]:
    """The same short loop, up to bounds that are further and further away."""
    workload = until_limit(recurrence, *bounds, family="bounds")
    told, by_default = masked(recurrence.length), [jax_revolve(bound) for bound in bounds]
    given = [jax_revolve(bound, checkpoints) for bound in bounds]
    for quantity, contenders in {
        "value": [LAX_WHILE_LOOP, *by_default],
        "gradient": [told, *given],
        "gradient, default checkpoints": [told, *by_default],
    }.items():
        yield Comparison(workload, quantity, contenders, 1 / 4, most_rounds=MOST_SHORT_ROUNDS)


def many_examples(recurrence: Recurrence, bound: int, s: int) -> Comparison:
    """The masked scan is told how many steps the longest example takes."""
    contenders = [masked(recurrence.length), jax_revolve(bound, s), equinox(bound, s)]
    return Comparison(under_vmap(recurrence, bound), "gradient", contenders)


BENCHMARK = Benchmark("while", comparisons)
