"""What each piece of `jax_revolve.step.cpu` is worth: gradients with all of them, and without one.

A piece that changes no row by a twentieth, in time or in bytes, can go.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
from tqdm import tqdm

from benchmarks.fronts import QUICK_SHAPES, SHAPES
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Record
from benchmarks.runner.programs import Compiler, Contender, Program
from benchmarks.runner.timing import interleave
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
SECONDS = 3.0


def trajectory(length: int, width: int) -> Recurrence:
    """A step that reads the newest entry of an array, and writes the next one."""

    def step(_: Any, carry: Any, __: Any) -> Any:
        path, number = carry
        i = number.astype(jnp.int32)
        return path.at[i + 1].set(jnp.sin(path[i])), number + 1

    init = (jnp.ones((length + 1, width)), jnp.float32(0))  # all of it is differentiated
    return of_state("trajectory", str(width), length, step, init)


def measure(quick: bool) -> Iterator[list[Record]]:
    shapes = QUICK_SHAPES if quick else [*SHAPES, (trajectory, (1000, 1000))]
    for make, shape in shapes:
        workload = scanned(make(*shape))
        for name, options in OPTIONS.items():
            loop = Contender(name, partial(checkpointed_scan, **options))
            programs: list[Program] = []
            for piece in tqdm(("", *PIECES), desc="Compiling", leave=False):
                with _without(piece):
                    programs.append(Compiler(workload, "gradient")(loop))
            runs = [program.run for program in programs]
            for run in runs:
                run()
            times = interleave(runs, 0.0 if quick else SECONDS, 2 if quick else 7)
            records = zip(("nothing", *PIECES), programs, times, strict=True)
            yield [
                {
                    "workload": workload.name,
                    "options": name,
                    "without": piece,
                    "ratio": median(b / a for a, b in zip(times[0], each, strict=True)),
                    "median_ms": 1e3 * median(each),
                    "temp_bytes": program.temp_bytes,
                }
                for piece, program, each in records
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


BENCHMARK = Benchmark("cpu-pieces", measure)
