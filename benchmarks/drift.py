"""How far the gradient of steps that are walked back is from the gradient with checkpoints, in
float32: over one block, whose start the walk back must meet, and over the blocks of the default."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import jax_revolve
from benchmarks.report.results import Results
from benchmarks.report.table import Table
from benchmarks.runner.benchmark import Benchmark, Measurement
from benchmarks.runner.programs import Record, sum_of_squares
from benchmarks.workloads import inverses
from jax_revolve import checkpointed_scan

LENGTHS = (1000, 10_000, 100_000)
SYSTEMS: dict[str, Callable[[], inverses.System]] = {
    "wave, as (u, u before)": partial(inverses.wave, 32),
    "wave, staggered": partial(inverses.staggered_wave, 32),
    **{
        f"wave, damped by {damping} a step": partial(inverses.wave, 32, damping)
        for damping in (1e-3, 0.01, 0.1)
    },
    "Hénon-Heiles": inverses.henon_heiles,
    "three bodies, chaotic": inverses.three_bodies,
    "reversible Heun, dt = 0.01": inverses.reversible_heun,
    "couplings, the same weights in each layer": partial(inverses.couplings, 16, 32),
}


def _measured(name: str, length: int, quick: bool) -> list[Record]:
    step, back, p, init, _ = SYSTEMS[name]()

    def scan(p: Any, **how: Any) -> Any:
        f = lambda carry, x: (step(p, carry, x), None)  # noqa: E731
        return sum_of_squares(checkpointed_scan(f, init, length=length, **how)[0])

    def inverse(p: Any) -> Any:
        return lambda carry, x, y: back(p, carry, x)

    def gradient(**how: Any) -> Any:
        return jax.jit(jax.grad(partial(scan, **how)))(p)

    def error(checkpoints: int | None) -> float:
        of_walk = lambda p: scan(p, inverse=inverse(p), checkpoints=checkpoints)  # noqa: E731
        found = jax.jit(jax.grad(of_walk))(p)
        return float(jnp.linalg.norm(jnp.ravel(found - exact)) / jnp.linalg.norm(jnp.ravel(exact)))

    exact = gradient()
    f = lambda carry, x: (step(p, carry, x), None)  # noqa: E731
    blocks = max(round((6 * length) ** (1 / 3)), 1)
    found = jax_revolve.drift(f, inverse(p), init, length=length, block_size=-(-length // blocks))
    record = {"system": name, "length": length, "drift": float(jnp.max(found.drift))}
    return [record | {"one_block": error(1), "default": error(None)}]


def pieces(quick: bool) -> Iterator[Measurement]:
    for name in list(SYSTEMS)[:2] if quick else SYSTEMS:
        for length in (20,) if quick else LENGTHS:
            yield Measurement(f"{name}, {length}", partial(_measured, name, length))


def _rounded(field: str) -> Callable[[Any], str]:
    return lambda run: f"{run[field]:.0e}".replace("e-0", "e-").replace("nan", "NaN")


def _all(results: Results) -> Any:
    return results.runs


TABLES = {
    "drift": Table(
        "Steps that are walked back, in float32, {where} (`benchmarks/drift.py`): the largest drift"
        " of a block, and errors of the gradient against the one with checkpoints, in the 2-norm"
        " (grids of 32 x 32, networks of width 32):",
        _all,
        [
            ("system", "{system}"),
            ("steps", "{length}"),
            ("drift, default", _rounded("drift")),
            ("error, one block", _rounded("one_block")),
            ("error, default", _rounded("default")),
        ],
    ),
}
BENCHMARK = Benchmark("drift", pieces, TABLES)
