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
from benchmarks.runner.comparison import Comparison, Record, Search
from benchmarks.runner.programs import Compiler, Contender, Program, Workload, difference
from benchmarks.workloads.packages import PROGRAMS, ThirdParty
from jax_revolve import checkpoint_loops, explain

SHARE = 0.1
"""Of the plain gradient's temporaries, the budget."""

LEAST = re.compile(r"memory must be at least (\d+) bytes")
RECORDED = (
    *("contender", "budget", "temp_bytes", "median_ms", "minimum_ms", "quartiles_ms"),
    *("repetitions", "difference"),
)


def measure(quick: bool) -> Iterator[list[Record]]:
    missing = {package for program in PROGRAMS for package in program.packages if not _has(package)}
    if missing and not quick:
        raise SystemExit(f"pip install {' '.join(sorted(missing))}")
    yield from (measured(p, quick) for p in PROGRAMS if not missing & {*p.packages})


def _has(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def measured(program: ThirdParty, quick: bool) -> list[Record]:
    """What runs a while loop has no gradient by `jax.grad`, and is compared with forward mode."""
    loss, argument = program.build()
    rewrite = partial(checkpoint_loops, max_steps=program.max_steps)
    contenders: list[Contender | Search] = [Contender(names.CHECKPOINT_LOOPS, rewrite)]
    known: Record
    if program.max_steps is None:
        contenders = [Contender(names.JAX_GRAD, lambda loss: loss), *contenders, _within_share]
        known = {"rounding": _rounding(loss, argument)}
    else:
        known = {"rounding": None, "difference": _along_ones(loss, rewrite(loss), argument)}

    def rewritten(rewrite: Any, active: Any, _: Any) -> Any:
        return rewrite(loss)(active["argument"])

    ours = checkpoint_loops(loss, max_steps=program.max_steps)
    about = {
        "program": program.name,
        "size": program.size,
        "versions": {package: version(package) for package in program.packages},
        "loops": sum(loop.is_own for loop in explain(ours)(argument).loops),
    }
    workload = Workload(program.name, program.size, "", 0, rewritten, {"argument": argument}, {})
    records = Comparison(workload, "gradient", contenders, share=0.6).measured(quick)
    return [about | {name: record[name] for name in RECORDED} | known for record in records]


def _within_share(compile: Compiler, earlier: list[Program]) -> list[Program]:
    """Or, if that is refused, within the least that is stated."""

    def within(memory: int) -> Program:
        rewrite = partial(checkpoint_loops, memory=memory)
        return compile(Contender(names.WITHIN_BUDGET, rewrite, budget=memory))

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


BENCHMARK = Benchmark("third-party", measure)
