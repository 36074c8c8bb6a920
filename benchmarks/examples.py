"""`jax.vmap` of gradients: each example has an initial state, parameters and xs of its own."""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp

from benchmarks.contenders.scans import BY_DEFAULT, EQUINOX, LAX_SCAN, REMAT, equinox, jax_revolve
from benchmarks.report.results import Results, Run, by_contender
from benchmarks.report.table import Table, of
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison
from benchmarks.runner.programs import Workload
from benchmarks.workloads.recurrences import Recurrence, lstm, scanned, stencil

SHAPES = [(stencil, (1000, 2000), 16), (lstm, (300, 4, 64), 8)]
QUICK_SHAPES = [(stencil, (8, 16), 2), (lstm, (6, 2, 4), 3)]
CHECKPOINTS = 20


def mapped(recurrence: Recurrence, count: int) -> Workload:
    """So many examples, whose inputs differ in size."""
    one = scanned(recurrence)
    heights = jnp.linspace(0.5, 1.0, count)
    several = lambda x: jax.vmap(lambda height: height * x)(heights)  # noqa: E731
    inputs = (jax.tree.map(several, each) for each in (one.active, one.passive))
    steps = f"{count} examples of {one.length} steps"
    return Workload(one.family, steps, one.size, one.length, one.loss, *inputs)


def comparisons(quick: bool) -> Iterator[Comparison]:
    contenders = [LAX_SCAN, REMAT, BY_DEFAULT, jax_revolve(CHECKPOINTS), equinox(CHECKPOINTS)]
    for make, shape, count in QUICK_SHAPES if quick else SHAPES:
        workload = mapped(make(*shape), count)
        yield Comparison(workload, "gradients of examples", contenders, share=1 / 2)


def _workloads(results: Results) -> Iterator[dict[str, Run]]:
    return by_contender(results, "workload")


_cost = partial(of, cell="{MB:.2f} MB, {median_ms:.0f} ms")

TABLES = {
    "examples": Table(
        "`jax.vmap` of gradients whose examples have initial states, parameters and xs of their own"
        f" {{where}}; the last two have {CHECKPOINTS} checkpoints (`benchmarks/examples.py`):",
        _workloads,
        [
            ("loop", of(LAX_SCAN.name, "{workload}")),
            ("`lax.scan(f)`", _cost(LAX_SCAN.name)),
            ("`lax.scan(jax.checkpoint(f))`", _cost(REMAT.name)),
            ("by default", _cost(BY_DEFAULT.name)),
            ("ours", _cost("jax_revolve")),
            ("Equinox's loop", _cost(EQUINOX)),
        ],
    ),
}
BENCHMARK = Benchmark("examples", comparisons, TABLES)
