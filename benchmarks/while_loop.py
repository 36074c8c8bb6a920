"""`bounded_while_loop` beside other loops that stop by a condition."""

from collections.abc import Iterator

from benchmarks.contenders import while_loops as loops
from benchmarks.contenders.scans import EQUINOX, JAX_REVOLVE
from benchmarks.report.results import Results, Run, find, quickest
from benchmarks.report.table import Table, over, ratio
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison
from benchmarks.workloads.recurrences import Recurrence, lstm, rnn, stencil, under_vmap, until_limit
from benchmarks.workloads.steps import lorenz

SHAPES = [
    (stencil, (1000, 20_000), 4096, (63, 10)),
    (stencil, (10_000, 1000), 16_384, (63,)),
    (rnn, (1000, 16, 128), 4096, (30,)),
    (lstm, (1000, 16, 128), 4096, (None,)),
]
"""With `max_steps` and the numbers of checkpoints; `None` is the library's default."""

QUICK_SHAPES = [(stencil, (12, 16), 32, (3,)), (rnn, (12, 2, 4), 32, (None,))]

LARGE_SHAPES = [
    (stencil, (1000, 20_000), (64, 20_000), 4096),
    (lorenz, (500, 1_000_000), (32, 100_000), 2048),
]
QUICK_LARGE_SHAPES = [(make, (12, 16), (5, 16), 32) for make in (stencil, lorenz)]
"""For one loop and for many, with `max_steps`."""

MOST_SHORT_ROUNDS = 2000
"""For programs of less than a millisecond."""


def comparisons(quick: bool) -> Iterator[Comparison]:
    for make, shape, bound, checkpoints in QUICK_SHAPES if quick else SHAPES:
        counts = [s or loops.default_checkpoints(bound) for s in checkpoints]
        each = [c for s in counts for c in (loops.jax_revolve(bound, s), loops.equinox(bound, s))]
        workload = until_limit(make(*shape), bound)
        yield Comparison(workload, "gradient", [loops.masked(bound), loops.bounded(bound), *each])
    many, bound = (stencil(5, 16), 32) if quick else (stencil(64, 2000), 4096)
    s = loops.default_checkpoints(bound)
    contenders = [loops.masked(many.length), loops.jax_revolve(bound, s), loops.equinox(bound, s)]
    yield Comparison(under_vmap(many, bound), "gradient", contenders)
    recurrence, bound = (stencil(12, 16), 32) if quick else (stencil(200, 2000), 256)
    workload = until_limit(recurrence, bound, family="second-order")
    contenders = [loops.masked(bound), loops.bounded(bound), loops.jax_revolve(bound)]
    yield Comparison(workload, "hvp", contenders, share=1 / 4)
    if quick:
        yield from with_bounds(stencil(4, 16), 4, 8, 2**20)
    else:
        yield from with_bounds(stencil(8, 20_000), 8, 16, 1024, 2**20)


def large(quick: bool) -> Iterator[Comparison]:
    """For accelerators: light steps and heavy ones, one loop and many at once."""
    for make, single, batch, bound in QUICK_LARGE_SHAPES if quick else LARGE_SHAPES:
        for workload in (until_limit(make(*single), bound), under_vmap(make(*batch), bound)):
            theirs = loops.equinox(bound, loops.default_checkpoints(bound))
            contenders = [loops.jax_revolve(bound), theirs, loops.masked(workload.length)]
            yield Comparison(workload, "gradient", contenders, may_fail=True)


def with_bounds(recurrence: Recurrence, checkpoints: int, *bounds: int) -> Iterator[Comparison]:
    """The same short loop, up to bounds that are further and further away."""
    workload = until_limit(recurrence, *bounds, family="bounds")
    told = loops.masked(recurrence.length)
    for quantity, s in {"gradient": checkpoints, "gradient, default checkpoints": None}.items():
        contenders = [told, *(loops.jax_revolve(bound, s) for bound in bounds)]
        yield Comparison(workload, quantity, contenders, 1 / 4, most_rounds=MOST_SHORT_ROUNDS)


LABELS = {
    loops.MASKED: "`lax.scan` up to the bound, steps that are done masked",
    loops.EQUINOX_BOUNDED: 'Equinox\'s loop, `kind="bounded"`',
    JAX_REVOLVE: "`bounded_while_loop`",
}


def _of_while_loops(results: Results) -> Iterator[Run]:
    """The quickest of each loop and number of checkpoints."""
    runs = find(results.runs, quantity="gradient", contender=JAX_REVOLVE)
    runs = [run for run in runs if run["family"] != "bounds"]
    for workload, s in dict.fromkeys((run["workload"], run["checkpoints"]) for run in runs):
        yield quickest(runs, workload=workload, checkpoints=s)


def _bounds(results: Results) -> list[Run]:
    runs = find(results.runs, family="bounds", contender=JAX_REVOLVE)
    return [run for run in runs if run["quantity"] != "value"]


def _checkpoints(run: Run) -> str:
    by_default = "default" in run["quantity"]
    return f"{run['checkpoints']}, {'by default' if by_default else 'given'}"


def _over_least_bound(run: Run) -> str:
    same = {name: run[name] for name in ("workload", "quantity", "contender")}
    least = min(find(run.others, **same), key=lambda other: other["max_steps"])
    return ratio(run, least)


def _far_bound(results: Results) -> str:
    """The time with a bound of 2**20 and default checkpoints, over the time with a bound of 16."""
    runs = [run for run in _bounds(results) if "default" in run["quantity"]]
    near, far = (quickest(runs, max_steps=bound) for bound in (16, 2**20))
    return f"{far['median_ms'] / near['median_ms']:.1f}"


TABLES = {
    "while-loops": Table(
        "Gradients of while loops {where} and Equinox {machine[versions][equinox]}; times are"
        " ratios of medians, `jax_revolve` over the other (`benchmarks/while_loop.py`):",
        _of_while_loops,
        [
            ("loop", "{workload}"),
            ("checkpoints", "{checkpoints}"),
            ("memory, `jax_revolve`", "{MB:.2f} MB"),
            ("memory, Equinox's checkpointed", lambda r: f"{r.beside(EQUINOX)[0]['MB']:.2f} MB"),
            ("time / Equinox's checkpointed", over(EQUINOX)),
            ("time / Equinox's bounded", over(loops.EQUINOX_BOUNDED)),
        ],
    ),
    "bounds": Table(
        "The gradient of a loop that stops after 8 steps, {where}; times are ratios of medians,"
        " over that with the least bound (`benchmarks/while_loop.py`):",
        _bounds,
        [
            ("`max_steps`", "{max_steps}"),
            ("checkpoints", _checkpoints),
            ("memory", "{MB:.2f} MB"),
            ("time", _over_least_bound),
        ],
    ),
    "second-order": Table(
        "A Hessian-vector product through 200 steps of 256, of a stencil of width 2000, {where};"
        " times are ratios of medians, over Equinox's (`benchmarks/while_loop.py`):",
        lambda results: find(results.runs, family="second-order", quantity="hvp"),
        [
            ("loop", lambda run: LABELS[run["contender"]]),
            ("memory", "{MB:.2f} MB"),
            ("time", over(loops.EQUINOX_BOUNDED)),
        ],
    ),
}
BENCHMARK = Benchmark("while", comparisons, TABLES, {"far-bound": _far_bound})
