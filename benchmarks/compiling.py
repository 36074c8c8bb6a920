"""What it takes to compile the gradient of a loop, over the loop's length: no loop is run.

JAX's caches and those of jax_revolve are cleared before each time.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import jax

from benchmarks.contenders import names, scans, while_loops
from benchmarks.contenders.nested import blockings
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Record
from benchmarks.runner.programs import Compiler, Contender, Workload, bytes_of
from benchmarks.runner.timing import interleave, seconds
from benchmarks.workloads.recurrences import Recurrence, scanned, stencil, until_limit
from jax_revolve import bounded_while_loop, checkpointed_scan, plan
from jax_revolve.schedule import selection

LENGTHS = (10, 1000, 100_000)
ROUNDS = 3
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%\S+ = ", re.MULTILINE)
CARRIES = 100
"""The budget of `memory=`, in carries: short loops may be taped whole in it, long ones may not."""


class Compilation:
    """Compiles a quantity of a workload by one contender, again and again."""

    def __init__(
        self, workload: Workload, contender: Contender, quantity: str = "gradient"
    ) -> None:
        self._workload, self._contender = workload, contender
        self._compiler = Compiler(workload, quantity)
        self._seconds: list[list[float]] = []
        self._compiled: Any = None

    def run(self) -> None:
        """From nothing to a compiled program; the time of clearing the caches is not noted."""
        jax.clear_caches()
        selection.quickest.cache_clear()
        stages: list[Any] = [jax.jit(self._compiler.traceable(self._contender))]
        trace = seconds(lambda: stages.append(stages[-1].trace(*self._compiler.arguments)))
        lower = seconds(lambda: stages.append(stages[-1].lower()))
        compile = seconds(lambda: stages.append(stages[-1].compile()))
        self._seconds.append([trace, lower, compile])
        self._compiled = stages[-1]

    def record(self) -> Record:
        """The first time is left out: in it, modules are imported and much else is set up."""
        phases = zip(*self._seconds[1:], strict=True)
        fields = ("trace_seconds", "lower_seconds", "compile_seconds")
        return {
            "family": self._workload.family,
            "size": self._workload.size,
            "length": self._workload.length,
            "contender": self._contender.name,
            "detail": self._contender.detail,
            "quantity": self._compiler.quantity,
            **dict(zip(fields, map(median, phases), strict=True)),
            "rounds": len(self._seconds) - 1,
            "instructions": len(INSTRUCTION.findall(self._compiled.as_text())),
        }


def of_scan(recurrence: Recurrence) -> list[Compilation]:
    """The nested scans are the two most alike in length, which take least memory."""
    n, workload = recurrence.length, scanned(recurrence)
    budget = CARRIES * bytes_of((workload.active | workload.passive)["init"])
    square = min(blockings(n, 2), key=lambda blocks: (max(blocks), blocks))
    within = partial(checkpointed_scan, memory=budget)
    contenders = [
        scans.LAX_SCAN,
        scans.REMAT,
        scans.nested(square, True),
        scans.equinox(plan(n).checkpoints),
        Contender(names.JAX_REVOLVE, checkpointed_scan, detail="by default"),
        Contender(names.JAX_REVOLVE, within, detail="memory="),
    ]
    return [Compilation(workload, contender) for contender in contenders]


def of_while_loop(recurrence: Recurrence) -> list[Compilation]:
    """Equinox's has as many checkpoints as jax_revolve's has by default."""
    n, workload = recurrence.length, until_limit(recurrence, recurrence.length)
    workload = replace(workload, family=f"{workload.family}, while")
    equinox = while_loops.equinox(n, while_loops.default_checkpoints(n))
    by_default = Contender(names.JAX_REVOLVE, partial(bounded_while_loop, max_steps=n, throw=False))
    return [Compilation(workload, contender) for contender in (equinox, by_default)]


def of_second_order(recurrence: Recurrence) -> list[Compilation]:
    """Gradients and Hessian-vector products, in turns: their ratio is what is of interest."""
    workload = replace(scanned(recurrence), family="stencil, second order")
    contenders = scans.LAX_SCAN, Contender(names.JAX_REVOLVE, checkpointed_scan)
    quantities = "gradient", "hvp"
    return [Compilation(workload, c, quantity) for c in contenders for quantity in quantities]


def compilations(quick: bool) -> Iterator[list[Compilation]]:
    """Made one after the other, since inputs of long loops are large."""
    lengths, width = ((4,), 16) if quick else (LENGTHS, 1000)
    yield from (of_scan(stencil(n, width)) for n in lengths)
    yield from (of_while_loop(stencil(n, width)) for n in lengths)
    yield from (of_second_order(stencil(n, width)) for n in lengths)


def measure(quick: bool) -> Iterator[list[Record]]:
    for each in compilations(quick):
        runs = [compilation.run for compilation in each]
        for run in runs:
            run()
        interleave(runs, 0.0, 1 if quick else ROUNDS)
        yield [compilation.record() for compilation in each]


BENCHMARK = Benchmark("compiling", measure)
