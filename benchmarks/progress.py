"""What showing progress costs: the same loops with and without `progress=True`.

A bar costs a little when it is opened and closed, whatever the loop: one that takes no time tells
how much.
"""

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
from benchmarks.workloads.recurrences import Recurrence, scanned, stencil, until_limit
from jax_revolve import bounded_while_loop, checkpointed_scan

SECONDS = 15.0


def scalar(length: int, _: int = 1) -> Recurrence:
    def step(_parameters: None, u: jax.Array, _x: None) -> jax.Array:
        return u - 0.001 * jnp.sin(u)

    passive = {"parameters": None, "xs": None}
    return Recurrence("scalar", "", length, step, {"init": jnp.ones(1)}, passive)


def by_scan(recurrence: Recurrence, **options: Any) -> tuple[Workload, Any]:
    return scanned(recurrence), partial(checkpointed_scan, **options)


def by_while_loop(recurrence: Recurrence) -> tuple[Workload, Any]:
    bound = 2 * recurrence.length
    return until_limit(recurrence, bound), partial(bounded_while_loop, max_steps=bound)


every_carry = partial(by_scan, checkpoints="all", block_size=1)
in_blocks = partial(by_scan, block_size=10)

CASES = [
    ("no time at all", by_scan, scalar, (1, 1)),
    ("stencil", by_scan, stencil, (1000, 20_000)),
    ("stencil", by_scan, stencil, (10_000, 20_000)),
    ("stencil, every carry", every_carry, stencil, (1000, 20_000)),
    ("stencil, blocks", in_blocks, stencil, (1000, 20_000)),
    ("stencil, while", by_while_loop, stencil, (1000, 20_000)),
    ("scalar", by_scan, scalar, (100_000, 1)),
    ("scalar, while", by_while_loop, scalar, (100_000, 1)),
]
QUICK_CASES = [
    ("stencil", every_carry, stencil, (10, 20)),
    ("scalar", by_while_loop, scalar, (9, 1)),
]


def measure(quick: bool) -> Iterator[list[Record]]:
    for name, way, make, (steps, width) in QUICK_CASES if quick else CASES:
        workload, loop = way(make(steps, width))
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
