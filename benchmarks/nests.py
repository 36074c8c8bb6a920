"""Programs of `jax.lax` whose loops contain loops: as they are, and by `checkpoint_loops` with a
share of the memory that they take."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.contenders.scans import JAX_REVOLVE
from benchmarks.report.results import Results, Run
from benchmarks.report.table import Table, over
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison
from benchmarks.runner.programs import (
    Compiler,
    Contender,
    Inputs,
    Loop,
    Program,
    Workload,
    sum_of_squares,
)
from benchmarks.workloads.recurrences import reaction_diffusion, rnn
from jax_revolve import checkpoint_loops

SHARES = (0.5, 0.2, 0.05)


def observed(active: Inputs, passive: Inputs) -> jax.Array:
    """A field that is compared with data every so many steps."""
    field = active["field"]

    def until_next(u: Any, data: Any) -> Any:
        u = lax.fori_loop(0, passive["data"].shape[1], lambda _, u: reaction_diffusion(u), u)
        return u, jnp.sum((u[: data.size] - data) ** 2)

    return jnp.sum(lax.scan(until_next, field, passive["data"])[1])


def epochs(active: Inputs, passive: Inputs) -> jax.Array:
    """A recurrent network that reads a sequence in each of several epochs, in windows."""
    step = rnn(1, *passive["init"].shape).step

    def read(h: Any, x: Any) -> Any:
        return step(active["parameters"], h, x), None

    def window(h: Any, xs: Any) -> Any:
        return lax.scan(read, h, xs)[0], None

    def epoch(h: Any, _: Any) -> Any:
        h, _ = lax.scan(window, h, passive["xs"])
        return h, sum_of_squares(h)

    return jnp.sum(lax.scan(epoch, passive["init"], None, 4)[1])


def unrolled(active: Inputs, passive: Inputs) -> jax.Array:
    """The gradient with respect to a rate, through training whose loss is a loop."""

    def loss(w: Any) -> jax.Array:
        turn = lambda h, _: (jnp.tanh(w @ h + 0.1), None)  # noqa: E731
        return sum_of_squares(lax.scan(turn, passive["init"], None, 50)[0] - 0.5)

    def update(w: Any, _: Any) -> Any:
        return w - active["rate"] * jax.grad(loss)(w), None

    return loss(lax.scan(update, passive["w"], None, passive["updates"].size)[0])


def workloads(quick: bool) -> Iterator[Workload]:
    width, gaps, steps = (16, 3, 4) if quick else (10_000, 50, 40)
    wave = jnp.sin(jnp.linspace(0, 2 * jnp.pi, width))
    data = jnp.zeros((gaps, steps))
    size = f"{gaps} of {steps} steps, width {width}"
    yield _workload("observed field", size, observed, {"field": wave}, {"data": data})
    windows, steps, batch, width = (2, 3, 2, 4) if quick else (10, 50, 16, 128)
    network = rnn(windows * steps, batch, width)
    xs = network.active["xs"].reshape(windows, steps, batch, width)
    active = {"parameters": network.active["parameters"]}
    size = f"4 epochs of {windows} windows of {steps} steps, {network.size}"
    yield _workload("epochs", size, epochs, active, network.passive | {"xs": xs})
    updates, width = (3, 4) if quick else (100, 64)
    w = jax.random.normal(jax.random.key(0), (width, width)) / width**0.5
    passive = {"w": w, "init": jnp.ones((width, 8)), "updates": jnp.zeros(updates)}
    size = f"{updates} updates of 50 steps, width {width}"
    yield _workload("training", size, unrolled, {"rate": jnp.float32(1e-3)}, passive)


def _workload(family: str, size: str, program: Any, active: Inputs, passive: Inputs) -> Workload:
    def loss(loop: Loop, active: Inputs, passive: Inputs) -> jax.Array:
        return loop(program)(active, passive)

    return Workload(family, "loops in loops", size, 0, loss, active, passive)


PLAIN = Contender("jax.lax", lambda program: program)


@dataclass(frozen=True)
class Within:
    """`checkpoint_loops` within a share of what the program takes as it is."""

    share: float

    def __call__(self, compile: Compiler, earlier: list[Program]) -> list[Program]:
        budget = int(self.share * earlier[0].temp_bytes)
        loop = partial(checkpoint_loops, memory=budget)
        return [compile(Contender(JAX_REVOLVE, loop, budget=budget, detail=f"{self.share:.0%}"))]


def comparisons(quick: bool) -> Iterator[Comparison]:
    for workload in workloads(quick):
        searches = [Within(share) for share in (SHARES[:1] if quick else SHARES)]
        yield Comparison(workload, "gradient", [PLAIN, *searches], share=1 / 2)


def _rewritten(results: Results) -> list[Run]:
    return [run for run in results.runs if run["contender"] == JAX_REVOLVE]


TABLES = {
    "nests": Table(
        "Gradients of programs of `jax.lax` with loops in loops {where}, by `checkpoint_loops` with"
        " `memory=` a share of what they take as they are; times are over that"
        " (`benchmarks/nests.py`):",
        _rewritten,
        [
            ("program", lambda run: f"{run['family']}: {run['workload'].split(', ', 2)[2]}"),
            ("`memory=`", "{detail}"),
            ("memory, as it is", lambda run: f"{run.beside(PLAIN.name)[0]['MB']:.1f} MB"),
            ("memory", "{MB:.2f} MB"),
            ("time", over(PLAIN.name)),
        ],
    ),
}
BENCHMARK = Benchmark("nests", comparisons, TABLES)
