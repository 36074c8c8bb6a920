"""`checkpoint_loops` on programs of packages that know nothing of it: the memory and the time of a
gradient by `jax.grad` alone, by `checkpoint_loops` with its defaults, and within a budget.

The packages are not dependencies of the project. A quick run leaves out programs whose packages are
missing; a full one says what to install.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.contenders import names
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison, Record
from benchmarks.runner.programs import Compiler, Contender, Program, Workload, difference
from benchmarks.workloads.packages import PROGRAMS, ThirdParty
from jax_revolve import checkpoint_loops, explain_loops

SHARE = 0.1
"""Of the plain gradient's temporaries, the budget."""

NOT_REVERSIBLE = "Reverse-mode differentiation does not work"
LEAST = re.compile(r"memory must be at least (\d+) bytes")
PLAIN = Contender(names.JAX_GRAD, lambda loss: loss)
RECORDED = (
    *("contender", "budget", "detail", "temp_bytes", "median_ms", "minimum_ms", "quartiles_ms"),
    *("repetitions", "difference"),
)


def measure(quick: bool) -> Iterator[list[Record]]:
    missing = {package for program in PROGRAMS for package in program.packages if not _has(package)}
    if missing and not quick:
        raise SystemExit(f"pip install {' '.join(sorted(missing))}")
    for program in PROGRAMS:
        if not missing & {*program.packages}:
            yield measured(program, quick)


def _has(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def measured(program: ThirdParty, quick: bool) -> list[Record]:
    """What runs a while loop has no gradient by `jax.grad`, and is compared with forward mode."""
    loss, argument = program.build()
    workload = Workload(
        *(program.name, program.size, "", 0),
        loss=lambda rewrite, active, _: rewrite(loss)(active["argument"]),
        active={"argument": argument},
        passive={},
    )
    rewrite = partial(checkpoint_loops, max_steps=program.max_steps)
    contenders: list[Any] = [Contender(names.CHECKPOINT_LOOPS, rewrite)]
    about: Record = {
        "program": program.name,
        "size": program.size,
        "versions": {package: version(package) for package in program.packages},
        "loops": _loops(loss, argument, program.max_steps),
        "rounding": None,
    }
    apart = {}
    if _is_reversible(loss, argument):
        contenders = [PLAIN, *contenders, partial(_within, rewrite)]
        about["rounding"] = _rounding(loss, argument)
    else:
        apart["difference"] = _difference_along_ones(loss, rewrite(loss), argument)
    records = Comparison(workload, "gradient", contenders, share=0.6).measured(quick)
    return [about | {name: record[name] for name in RECORDED} | apart for record in records]


def _within(
    rewrite: Callable[..., Any], compile: Compiler, earlier: list[Program]
) -> list[Program]:
    """Within the share or, if that is refused, within the least that is stated."""

    def within(memory: int) -> Contender:
        return Contender(names.WITHIN_BUDGET, partial(rewrite, memory=memory), budget=memory)

    try:
        return [compile(within(int(SHARE * earlier[0].temp_bytes)))]
    except ValueError as error:
        if found := LEAST.search(str(error)):
            return [compile(within(int(found[1])))]
        raise


def _loops(loss: Callable[[Any], Any], argument: Any, max_steps: int | None) -> int:
    """How many are checkpointed."""
    report = explain_loops(loss, max_steps=max_steps)(argument)
    return sum(of_loop is not None for of_loop in report.loops.values())


def _is_reversible(loss: Callable[[Any], Any], argument: Any) -> bool:
    try:
        jax.eval_shape(jax.grad(loss), argument)
    except ValueError as error:
        if NOT_REVERSIBLE not in str(error):
            raise
        return False
    return True


def _rounding(loss: Callable[[Any], Any], argument: Any) -> float:
    """By how much the plain gradient changes, relatively, with the last digit of its argument."""
    gradient = jax.jit(jax.grad(loss))
    moved = jax.tree.map(lambda x: x * (1 + jnp.finfo(x.dtype).eps), argument)
    return difference(gradient(moved), gradient(argument))


def _difference_along_ones(
    loss: Callable[[Any], Any], rewritten: Callable[[Any], Any], argument: Any
) -> float:
    ones = jax.tree.map(jnp.ones_like, argument)
    _, expected = jax.jit(lambda x: jax.jvp(loss, (x,), (ones,)))(argument)
    gradient = jax.jit(jax.grad(rewritten))(argument)
    along = sum((jnp.sum(leaf) for leaf in jax.tree.leaves(gradient)), jnp.zeros(()))
    return difference(along, expected)


BENCHMARK = Benchmark("third-party", measure)
