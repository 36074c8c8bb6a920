"""What showing progress costs: the same loops with and without `progress=True`."""

import os
from collections.abc import Iterator
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from benchmarks.report.results import Results, Run, find
from benchmarks.report.table import ENOUGH, Table, of
from benchmarks.runner.benchmark import Benchmark, Measurement
from benchmarks.runner.comparison import Comparison
from benchmarks.runner.programs import Contender, Record
from benchmarks.workloads.recurrences import Recurrence, of_state, scanned, stencil, until_limit
from jax_revolve import bounded_while_loop, checkpointed_scan

SILENT, SHOWN = "without progress", "progress=True"


def scalar(length: int, _: int = 1) -> Recurrence:
    step = lambda _parameters, u, _x: u - 0.001 * jnp.sin(u)  # noqa: E731
    return of_state("scalar", "", length, step, jnp.ones(1))


WHILE: dict[str, Any] = {"max_steps": None}
CASES: list[tuple[str, Any, tuple[int, int], dict[str, Any]]] = [
    ("stencil", stencil, (1000, 20_000), {}),
    ("stencil, every carry", stencil, (1000, 20_000), {"checkpoints": "all", "block_size": 1}),
    ("stencil, while", stencil, (1000, 20_000), WHILE),
    ("scalar", scalar, (100_000, 1), {}),
]
QUICK_CASES = [
    ("stencil", stencil, (10, 20), {"checkpoints": "all", "block_size": 1}),
    ("scalar", scalar, (9, 1), WHILE),
]


def comparisons(quick: bool) -> Iterator[Measurement]:
    for name, make, (steps, width), options in QUICK_CASES if quick else CASES:
        if options is WHILE:
            workload = until_limit(make(steps, width), 2 * steps)
            loop = partial(bounded_while_loop, max_steps=2 * steps)
        else:
            workload, loop = scanned(make(steps, width)), partial(checkpointed_scan, **options)
        both = [Contender(SILENT, loop), Contender(SHOWN, partial(loop, progress=True))]
        label = f"{name}, {steps} x {width}"
        for quantity in ("value", "gradient"):
            compared = Comparison(workload, quantity, both, share=0.6, about={"loop": label})
            yield Measurement(f"{label}: {quantity}", partial(_unseen, compared))


def _unseen(compared: Comparison, quick: bool) -> list[Record]:
    with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
        return compared.measured(quick)


def _by_loop(results: Results) -> Iterator[dict[str, Run]]:
    shown = find(results.runs, contender=SHOWN)
    for loop in dict.fromkeys(run["loop"] for run in shown):
        yield {run["quantity"]: run for run in find(shown, loop=loop)}


def _slower(run: Run) -> str:
    return f"{run['ratio']:.{2 if run['repetitions'] >= ENOUGH else 1}f}"


TABLES = {
    "progress": Table(
        "Time with bars over time without, {where} (`benchmarks/progress.py`):",
        _by_loop,
        [
            ("loop, steps x width", of("value", "{loop}")),
            ("value", of("value", _slower)),
            ("gradient", of("gradient", _slower)),
        ],
    ),
}
BENCHMARK = Benchmark("progress", comparisons, TABLES)
