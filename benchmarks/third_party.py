"""`checkpoint_loops` on programs of packages that know nothing of it: the memory and the time of a
gradient by `jax.grad` alone, by `checkpoint_loops` with its defaults, and within a budget.

The packages are not dependencies of the project. A quick run leaves out programs whose packages are
missing; a full one says what to install.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.report.results import Run, by_contender
from benchmarks.report.table import Column, Table, of, ratio
from benchmarks.runner.benchmark import Benchmark, Measurement
from benchmarks.runner.comparison import Comparison, Search
from benchmarks.runner.machine import installed
from benchmarks.runner.programs import Compiler, Contender, Program, Record, Workload, difference
from benchmarks.workloads.packages import PROGRAMS, ThirdParty
from jax_revolve import checkpoint_loops, explain

JAX_GRAD = "jax.grad"
CHECKPOINT_LOOPS = "checkpoint_loops"
WITHIN_BUDGET = "checkpoint_loops(memory=)"

SHARE = 0.1
"""Of the plain gradient's temporaries, the budget."""

LEAST = re.compile(r"memory must be at least (\d+) bytes")


def measurements(quick: bool) -> Iterator[Measurement]:
    packages = {package for program in PROGRAMS for package in program.packages}
    missing = {package for package in packages if installed(package) is None}
    if missing and not quick:
        raise SystemExit(f"pip install {' '.join(sorted(missing))}")
    for program in PROGRAMS:
        if not missing & {*program.packages}:
            yield Measurement(program.name, partial(measured, program))


def measured(program: ThirdParty, quick: bool) -> list[Record]:
    """What runs a while loop has no gradient by `jax.grad`, and is compared with forward mode."""
    loss, argument = program.build()
    rewrite = partial(checkpoint_loops, max_steps=program.max_steps)
    contenders: list[Contender | Search] = [Contender(CHECKPOINT_LOOPS, rewrite)]
    known: Record
    if program.max_steps is None:
        contenders = [Contender(JAX_GRAD, lambda loss: loss), *contenders, _within_share]
        known = {"rounding": _rounding(loss, argument)}
    else:
        known = {"rounding": None, "difference": _along_ones(loss, rewrite(loss), argument)}

    def rewritten(rewrite: Any, active: Any, _: Any) -> Any:
        return rewrite(loss)(active["argument"])

    about = {
        "program": program.name,
        "size": program.size,
        "versions": {package: installed(package) for package in program.packages},
        "loops": sum(loop.is_own for loop in explain(rewrite(loss))(argument).loops),
    }
    workload = Workload(program.name, program.size, "", 0, rewritten, {"argument": argument}, {})
    compared = Comparison(workload, "gradient", contenders, share=0.6, about=about)
    return [record | known for record in compared.measured(quick)]


def _within_share(compile: Compiler, earlier: list[Program]) -> list[Program]:
    """Or, if that is refused, within the least that is stated."""

    def within(memory: int) -> Program:
        rewrite = partial(checkpoint_loops, memory=memory)
        return compile(Contender(WITHIN_BUDGET, rewrite, budget=memory))

    try:
        return [within(int(SHARE * earlier[0].temp_bytes))]
    except ValueError as error:
        if found := LEAST.search(str(error)):
            return [within(int(found[1]))]
        raise


def _rounding(loss: Callable[[Any], Any], argument: Any) -> float:
    """By how much the plain gradient changes, relatively, with the last digit of its argument."""
    gradient = jax.jit(jax.grad(loss))
    moved = jax.tree.map(lambda x: x * (1 + jnp.finfo(x.dtype).eps), argument)
    return difference(gradient(moved), gradient(argument))


def _along_ones(loss: Any, rewritten: Any, argument: Any) -> float:
    """The difference of the gradient's sum to the derivative in forward mode."""
    ones = jax.tree.map(jnp.ones_like, argument)
    _, expected = jax.jit(lambda x: jax.jvp(loss, (x,), (ones,)))(argument)
    gradient = jax.jit(jax.grad(rewritten))(argument)
    return difference(sum(jnp.sum(leaf) for leaf in jax.tree.leaves(gradient)), expected)


def _title(run: Run) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in run["versions"].items())
    return f"{run['program']}: {run['size']} ({versions})"


def _memory_and_time(title: str, contender: str, missing: str = "") -> list[Column]:
    """The time is a ratio where there is something to compare with."""

    def time(runs: dict[str, Run]) -> str:
        if contender not in runs:
            return ""
        if contender == JAX_GRAD or JAX_GRAD not in runs:
            return f"{runs[contender]['median_ms']:.0f} ms"
        return ratio(runs[contender], runs[JAX_GRAD])

    return [(title, of(contender, "{MB:.2f} MB", missing)), ("time", time)]


def _relative(name: str) -> Callable[[Run], str]:
    """A relative difference of numbers in single precision."""

    def cell(run: Run) -> str:
        value = run[name]
        return "" if value is None else "< 1e-07" if value < 1e-7 else f"{value:.0e}"

    return cell


TABLES = {
    "third-party": Table(
        "Gradients of programs of other packages {where}: alone, with `checkpoint_loops` by"
        " default, and with `memory=` a tenth of the first column (`benchmarks/third_party.py`):",
        partial(by_contender, name="program"),
        [
            ("program", of(CHECKPOINT_LOOPS, _title)),
            ("loops", of(CHECKPOINT_LOOPS, "{loops}")),
            *_memory_and_time("memory", JAX_GRAD, missing="no gradient"),
            *_memory_and_time("by default", CHECKPOINT_LOOPS),
            *_memory_and_time("`memory=`", WITHIN_BUDGET),
            ("difference", of(CHECKPOINT_LOOPS, _relative("difference"))),
            ("rounding", of(CHECKPOINT_LOOPS, _relative("rounding"))),
        ],
    ),
}
BENCHMARK = Benchmark("third-party", measurements, TABLES)
