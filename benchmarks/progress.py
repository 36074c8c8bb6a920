"""What showing progress costs: the same loops with and without `progress=True`."""

import os
from collections.abc import Iterator
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import LEAST_ROUNDS, Record
from benchmarks.runner.programs import Compiler, Contender, Program, Workload
from benchmarks.runner.timing import interleave
from benchmarks.workloads.recurrences import Recurrence, of_state, scanned, stencil, until_limit
from jax_revolve import bounded_while_loop, checkpointed_scan

SECONDS = 15.0


def scalar(length: int, _: int = 1) -> Recurrence:
    step = lambda _parameters, u, _x: u - 0.001 * jnp.sin(u)  # noqa: E731
    return of_state("scalar", "", length, step, jnp.ones(1))


WHILE = {"max_steps": None}
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


def measure(quick: bool) -> Iterator[list[Record]]:
    for name, make, (steps, width), options in QUICK_CASES if quick else CASES:
        if options is WHILE:
            workload = until_limit(make(steps, width), 2 * steps)
            loop = partial(bounded_while_loop, max_steps=2 * steps)
        else:
            workload, loop = scanned(make(steps, width)), partial(checkpointed_scan, **options)
        label = f"{name}, {steps} x {width}"
        quantities = ("value", "gradient")
        yield [{"loop": label} | compared(workload, loop, q, quick) for q in quantities]


def compared(workload: Workload, loop: Any, quantity: str, quick: bool) -> Record:
    """Seconds, and the median of their ratios, round by round."""
    compile = Compiler(workload, quantity)
    loops = [Contender("", partial(loop, progress=progress)) for progress in (False, True)]
    runs = [partial(_run, compile(each)) for each in loops]
    seconds, least = (0.0, 2) if quick else (SECONDS, LEAST_ROUNDS)
    with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
        for run in runs:
            run()
        off, on = interleave(runs, seconds, least)
    return {
        "program": quantity,
        "off": median(off),
        "on": median(on),
        "ratio": median(b / a for a, b in zip(off, on, strict=True)),
        "rounds": len(off),
    }


def _run(program: Program) -> None:
    program.run()
    jax.effects_barrier()


BENCHMARK = Benchmark("progress", measure)
