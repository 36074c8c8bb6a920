"""What each piece of `jax_revolve.step.cpu` is worth: derivatives with all pieces, and without one.

A piece that changes no row by a twentieth, in time or in bytes, can go.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import stencils
from benchmarks.fronts import QUICK_SHAPES, SHAPES
from benchmarks.report.results import Results, Run, grouped
from benchmarks.report.table import Table
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison
from benchmarks.runner.programs import Compiler, Contender, Program, Workload
from benchmarks.workloads.inverses import couplings
from benchmarks.workloads.recurrences import Recurrence, of_state, scanned
from jax_revolve import checkpointed_scan
from jax_revolve.step.cpu import PIECES, turned_off

OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "20 checkpoints": {"checkpoints": 20, "block_size": 1},
    "20 checkpoints of blocks of 10": {"checkpoints": 20, "block_size": 10},
    "two blocks": {"checkpoints": 2, "block_size": 500},
    "one block": {"checkpoints": 1, "block_size": 1000},
}
WHOLE = "nothing"


def trajectory(length: int, width: int) -> Recurrence:
    """A step that reads the newest entry of an array, and writes the next one."""

    def step(_: Any, carry: Any, __: Any) -> Any:
        path, number = carry
        i = number.astype(jnp.int32)
        return path.at[i + 1].set(jnp.sin(path[i])), number + 1

    init = (jnp.ones((length + 1, width)), jnp.float32(0))  # all of it is differentiated
    return of_state("trajectory", str(width), length, step, init)


def layers(count: int, batch: int, width: int) -> Recurrence:
    """Couplings with weights of their own."""
    system = couplings(batch, width, count)
    active, size = {"init": system.init, "xs": system.xs}, f"batch {batch}, width {width}"
    return Recurrence("couplings", size, count, system.step, active, {"parameters": None})


def comparisons(quick: bool) -> Iterator[Comparison]:
    for make, shape in QUICK_SHAPES if quick else [*SHAPES, (trajectory, (1000, 1000))]:
        workload = scanned(make(*shape))
        for name, options in OPTIONS.items():
            yield _comparison(workload, f"gradient, {name}", options, PIECES)
    for make, shape in () if quick else stencils.SHAPES:
        yield _comparison(scanned(make(*shape)), "gradient, default", {}, ("windows",))
    shape = (10, 4, 16) if quick else (100, 16, 128)
    yield _comparison(scanned(layers(*shape)), "hvp, default", {}, ("transposes",))


def _comparison(
    workload: Workload, quantity: str, options: dict[str, Any], pieces: tuple[str, ...]
) -> Comparison:
    without = [partial(_without, piece, options) for piece in (WHOLE, *pieces)]
    return Comparison(workload, quantity, without, share=0.12)


def _without(
    piece: str, options: dict[str, Any], compile: Compiler, _: list[Program]
) -> list[Program]:
    """Nothing that was traced with a piece is in the caches when it is traced without."""
    jax.clear_caches()
    turned_off.add(piece)
    program = compile(Contender(piece, partial(checkpointed_scan, **options)))
    turned_off.clear()
    jax.clear_caches()
    return [program]


def _pieces_that_pay(results: Results) -> Iterator[Run]:
    """Where doing without a piece takes a twentieth more time or memory."""
    for run in (run for runs in grouped(results, "contender") for run in runs):
        if max(run["ratio"], run.memory_over(WHOLE)) >= 1.05:
            yield run


TABLES = {
    "cpu-pieces": Table(
        "Derivatives {where} without one piece of `jax_revolve.step.cpu`, if that takes a twentieth"
        " more time or memory (`benchmarks/cpu_pieces.py`):",
        _pieces_that_pay,
        [
            ("without", "`{contender}`"),
            ("workload", "{workload}"),
            ("plan", lambda run: run["quantity"].removeprefix("gradient, ")),
            ("time", "{ratio:.2f}"),
            ("memory", lambda run: f"{run.memory_over(WHOLE):.2f}"),
        ],
    ),
}
BENCHMARK = Benchmark("cpu-pieces", comparisons, TABLES)
