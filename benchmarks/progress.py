"""What showing progress costs: the same loops with and without `progress=True`.

A bar costs a little when it is opened and closed, whatever the loop: one that takes no time tells
how much.
"""

import os
from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import LEAST_ROUNDS, Record
from benchmarks.runner.programs import Compiler, Contender, Program
from benchmarks.runner.timing import interleave
from benchmarks.workloads.recurrences import Recurrence, scanned, stencil, until_limit
from jax_revolve import bounded_while_loop, checkpointed_scan

SECONDS = 15.0


@dataclass(frozen=True)
class Case:
    """A recurrence whose loop has `options`."""

    name: str
    recurrence: Recurrence
    options: dict[str, Any] = field(default_factory=dict)
    stops_by_itself: bool = False

    def program(self, quantity: str, progress: bool) -> Program:
        options = self.options | {"progress": progress}
        if self.stops_by_itself:
            bound = 2 * self.recurrence.length
            workload = until_limit(self.recurrence, bound)
            loop = partial(bounded_while_loop, max_steps=bound, **options)
        else:
            workload, loop = scanned(self.recurrence), partial(checkpointed_scan, **options)
        return Compiler(workload, quantity)(Contender("", loop))


def scalar(length: int) -> Recurrence:
    def step(_parameters: None, u: jax.Array, _x: None) -> jax.Array:
        return u - 0.001 * jnp.sin(u)

    passive = {"parameters": None, "xs": None}
    return Recurrence("scalar", "width 1", length, step, {"init": jnp.ones(1)}, passive)


def cases(quick: bool) -> list[Case]:
    few = 100 if quick else 1
    n, width, many = 1000 // few, 20_000, 100_000 // few
    short, size = stencil(n, width), f"{n} x {width}"
    every_carry = {"checkpoints": "all", "block_size": 1}
    found = [
        Case("no time at all, 1 x 1", scalar(1)),
        Case(f"stencil, every carry, {size}", short, every_carry),
        Case(f"stencil, blocks, {size}", short, {"block_size": 10}),
        Case(f"stencil, {size}", short),
        Case(f"stencil, {10 * n} x {width}", stencil(10 * n, width)),
        Case(f"stencil, while, {size}", short, stops_by_itself=True),
        Case(f"scalar, {many} x 1", scalar(many)),
        Case(f"scalar, while, {many} x 1", scalar(many), stops_by_itself=True),
    ]
    return [found[0], found[1], found[5]] if quick else found


def measure(quick: bool) -> Iterator[list[Record]]:
    for case in cases(quick):
        yield [compared(case, quantity, quick) for quantity in ("value", "gradient")]


def compared(case: Case, quantity: str, quick: bool) -> Record:
    """Seconds, and the median of their ratios, round by round."""
    runs = [partial(_run, case.program(quantity, progress)) for progress in (False, True)]
    seconds, least = (0.0, 2) if quick else (SECONDS, LEAST_ROUNDS)
    with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
        for run in runs:
            run()
        off, on = interleave(runs, seconds, least)
    return {
        "loop": case.name,
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
