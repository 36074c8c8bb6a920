"""What each piece of `jax_revolve.step.cpu` is worth: gradients with all of them, and without one.

A piece that changes no row by a twentieth, in time or in bytes, can go.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from tqdm import tqdm

from benchmarks.fronts import QUICK_SHAPES, SHAPES
from benchmarks.report.results import Results, Run, find, grouped
from benchmarks.report.table import Table, of
from benchmarks.runner.benchmark import Benchmark, Measurement
from benchmarks.runner.programs import Compiler, Contender, Program, Record, Workload
from benchmarks.runner.timing import LEAST_ROUNDS, interleave, spread
from benchmarks.workloads.recurrences import Recurrence, of_state, scanned
from jax_revolve import checkpointed_scan
from jax_revolve.step.cpu import PIECES, VARIABLE

OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "20 checkpoints": {"checkpoints": 20, "block_size": 1},
    "20 checkpoints of blocks of 10": {"checkpoints": 20, "block_size": 10},
    "two blocks": {"checkpoints": 2, "block_size": 500},
    "one block": {"checkpoints": 1, "block_size": 1000},
}
NOTHING = "nothing"
SECONDS = 3.0


def trajectory(length: int, width: int) -> Recurrence:
    """A step that reads the newest entry of an array, and writes the next one."""

    def step(_: Any, carry: Any, __: Any) -> Any:
        path, number = carry
        i = number.astype(jnp.int32)
        return path.at[i + 1].set(jnp.sin(path[i])), number + 1

    init = (jnp.ones((length + 1, width)), jnp.float32(0))  # all of it is differentiated
    return of_state("trajectory", str(width), length, step, init)


def measurements(quick: bool) -> Iterator[Measurement]:
    for make, shape in QUICK_SHAPES if quick else [*SHAPES, (trajectory, (1000, 1000))]:
        workload = scanned(make(*shape))
        for options in OPTIONS:
            name = f"{workload.name}: {options}"
            yield Measurement(name, partial(_with_and_without, workload, options))


def _with_and_without(workload: Workload, options: str, quick: bool) -> list[Record]:
    loop = Contender(options, partial(checkpointed_scan, **OPTIONS[options]))
    programs: list[Program] = []
    for piece in tqdm(("", *PIECES), desc="Compiling", leave=False):
        with _without(piece):
            programs.append(Compiler(workload, "gradient")(loop))
    for program in programs:
        program.run()
    seconds, least = (0.0, 2) if quick else (SECONDS, LEAST_ROUNDS)
    times = interleave([program.run for program in programs], seconds, least)
    about = {"workload": workload.name, "options": options}
    return [
        about | {"without": piece, "temp_bytes": program.temp_bytes, **spread(each, times[0])}
        for piece, program, each in zip((NOTHING, *PIECES), programs, times, strict=True)
    ]


@contextmanager
def _without(piece: str) -> Iterator[None]:
    """Nothing that was traced with a piece is in the caches when it is traced without."""
    jax.clear_caches()
    os.environ[VARIABLE] = piece
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        jax.clear_caches()


def _pieces_that_pay(results: Results) -> Iterator[tuple[Run, float]]:
    """Where doing without a piece takes a twentieth more time or memory, and how many times the
    memory that is."""
    for run in (run for runs in grouped(results, "without") for run in runs):
        same = {name: run[name] for name in ("workload", "options")}
        (whole,) = find(results.runs, without=NOTHING, **same)
        times_the_bytes = run["temp_bytes"] / whole["temp_bytes"]
        if max(run["ratio"], times_the_bytes) >= 1.05:
            yield run, times_the_bytes


TABLES = {
    "cpu-pieces": Table(
        "Gradients {where} without one piece of `jax_revolve.step.cpu`, if that takes a twentieth"
        " more time or memory (`benchmarks/cpu_pieces.py`):",
        _pieces_that_pay,
        [
            ("without", of(0, "`{without}`")),
            ("workload", of(0, "{workload}")),
            ("plan", of(0, "{options}")),
            ("time", of(0, "{ratio:.2f}")),
            ("memory", lambda row: f"{row[1]:.2f}"),
        ],
    ),
}
BENCHMARK = Benchmark("cpu-pieces", measurements, TABLES)
