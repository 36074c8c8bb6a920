"""Steps with an inverse: `checkpointed_scan(inverse=)` beside scans, checkpoints, and a
`jax.custom_vjp` written by hand."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.contenders.scans import JAX_REVOLVE, LAX_SCAN, NESTED, REMAT, nested
from benchmarks.contenders.searches import squarest
from benchmarks.report.results import Results, Run, find, grouped
from benchmarks.report.table import Cell, Column, Table, of, over, text
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison
from benchmarks.runner.programs import Contender, Inputs, Workload, sum_of_squares
from benchmarks.workloads.inverses import (
    System,
    couplings,
    henon_heiles,
    staggered_wave,
    wave,
)
from jax_revolve import checkpointed_scan

Step = Callable[..., Any]


def workload(family: str, size: str, length: int, system: System) -> Workload:
    """The gradient with respect to all inputs: "parameters", "init" and perhaps "xs"."""
    step = lambda p, carry, x: (system.step(p, carry, x), None)  # noqa: E731

    def loss(loop: Any, active: Inputs, _: Inputs) -> jax.Array:
        parts = (active["parameters"], active["init"], active["xs"])
        return sum_of_squares(loop(step, system.back, *parts, length)[0])

    active = {"parameters": system.parameters, "init": system.init, "xs": system.xs}
    return Workload(family, f"n = {length}", size, length, loss, active, {})


def _scan(scan: Any, step: Step, back: Step, p: Any, init: Any, xs: Any, length: int) -> Any:
    return scan(partial(step, p), init, xs, length)


def _walked_back(
    checkpoints: int | None, step: Step, back: Step, p: Any, init: Any, xs: Any, length: int
) -> Any:
    how: dict[str, Any] = {
        "inverse": lambda carry, x, _: back(p, carry, x),
        "checkpoints": checkpoints,
    }
    return checkpointed_scan(partial(step, p), init, xs, length, **how)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 5))
def by_hand(step: Step, back: Step, p: Any, init: Any, xs: Any, length: int) -> Any:
    """As people write it: the carry is walked back, and nothing is checked."""
    return lax.scan(partial(step, p), init, xs, length)


def _forth(step: Step, back: Step, p: Any, init: Any, xs: Any, length: int) -> Any:
    end, ys = lax.scan(partial(step, p), init, xs, length)
    return (end, ys), (p, end, xs)


def _back(step: Step, back: Step, length: int, held: Any, cts: Any) -> Any:
    p, end, xs = held

    def walk(state: Any, inputs: Any) -> Any:
        (after, ct, ct_p), (x, ct_y) = state, inputs
        before = back(p, after, x)
        _, pull_back = jax.vjp(step, p, before, x)
        more, ct, ct_x = pull_back((ct, ct_y))
        return (before, ct, jax.tree.map(jnp.add, ct_p, more)), ct_x

    start = (end, cts[0], jax.tree.map(jnp.zeros_like, p))
    (_, ct, ct_p), ct_xs = lax.scan(walk, start, (xs, cts[1]), length, reverse=True)
    return ct_p, ct, ct_xs


by_hand.defvjp(_forth, _back)
BY_HAND = Contender("custom_vjp by hand", by_hand)


def plain(contender: Contender) -> Contender:
    return Contender(contender.name, partial(_scan, contender.loop), detail=contender.detail)


WITH_INVERSE = f"{JAX_REVOLVE}, inverse"


def ours(checkpoints: int | None) -> list[Contender]:
    """Without the inverse, and with it."""
    scan = partial(_scan, partial(checkpointed_scan, checkpoints=checkpoints))
    return [
        Contender(JAX_REVOLVE, scan, checkpoints),
        Contender(WITH_INVERSE, partial(_walked_back, checkpoints), checkpoints),
    ]


def workloads(quick: bool) -> Iterator[Workload]:
    n, width, batch = (4, 4, 2) if quick else (1000, 100, 16)
    networks, layers = (4, 4) if quick else (128, 100)
    for length in (n, 10 * n):
        yield workload("wave", f"{width} x {width}", length, wave(width))
    yield workload("staggered wave", f"{width} x {width}", n, staggered_wave(width))
    yield workload("Hénon-Heiles", f"{n} stars", n, henon_heiles(n))
    size = f"batch {batch}, width {networks}"
    yield workload("couplings, own weights", size, layers, couplings(batch, networks, layers))
    yield workload("couplings, tied weights", size, n, couplings(batch, networks))


def comparisons(quick: bool) -> Iterator[Comparison]:
    """Of second order for loops of up to a thousand steps. What is written by hand has no forward
    mode, and so no Hessian-vector products."""
    few, many = (1, 2) if quick else (5, 20)
    for each in workloads(quick):
        others = [*map(plain, (LAX_SCAN, REMAT, nested(squarest(each.length), True)))]
        with_loops = [*others, *ours(None), *ours(many), *ours(few)]
        yield Comparison(each, "gradient", [*with_loops, BY_HAND])
        if each.length <= 1000:
            yield Comparison(each, "hvp", with_loops)


def _rows(results: Results) -> Iterator[dict[Any, Run]]:
    """The runs of one derivative of one loop, by contender and checkpoints."""
    for runs in grouped(results, "workload"):
        for quantity in dict.fromkeys(run["quantity"] for run in runs):
            same = find(runs, quantity=quantity)
            yield {(run["contender"], run["checkpoints"]): run for run in same}


def _cell(contender: str, checkpoints: int | None = None) -> Cell:
    cost = lambda run: text("{MB:.2f} MB", run) + f", {over(LAX_SCAN.name)(run)}"  # noqa: E731
    return of((contender, checkpoints), cost, missing="none")


OF_PLAIN = (LAX_SCAN.name, None)
COLUMNS: list[Column] = [
    ("loop", of(OF_PLAIN, "{workload}")),
    ("derivative", of(OF_PLAIN, "{quantity}")),
    ("`lax.scan`", of(OF_PLAIN, "{MB:.1f} MB, {median_ms:.0f} ms")),
    ("`jax.checkpoint`", _cell(REMAT.name)),
    ("nested", _cell(NESTED)),
    *((f"{k or 'default'}", _cell(JAX_REVOLVE, k)) for k in (None, 20, 5)),
    *((f"{k or 'default'}, inverse", _cell(WITH_INVERSE, k)) for k in (None, 20, 5)),
    ("by hand", _cell(BY_HAND.name)),
]

TABLES = {
    "reversible": Table(
        "Memory of derivatives of steps with an inverse {where}, and times over `lax.scan`'s: with"
        " `jax.checkpoint` of each step, in two nested scans, with checkpoints, with `inverse=`,"
        " and with a `jax.custom_vjp` by hand, which has no Hessian-vector product"
        " (`benchmarks/reversible.py`):",
        _rows,
        COLUMNS,
    ),
}


def _gains(checkpoints: int, loops: str, results: Results) -> str:
    """How many times as fast as checkpoints alone an inverse makes gradients, with as many."""
    gains = [
        rows[JAX_REVOLVE, checkpoints]["median_ms"] / rows[WITH_INVERSE, checkpoints]["median_ms"]
        for rows in _rows(results)
        if rows[OF_PLAIN]["quantity"] == "gradient" and rows[OF_PLAIN]["workload"].startswith(loops)
    ]
    return " to ".join(dict.fromkeys(f"{gain:.1f}" for gain in (min(gains), max(gains))))


FIGURES = {
    "inverse-gain": partial(_gains, 5, "wave, n = 1000,"),
    "inverse-gain-long": partial(_gains, 5, "wave, n = 10000,"),
    "inverse-gains": partial(_gains, 5, ""),
    "inverse-gains-20": partial(_gains, 20, ""),
}
BENCHMARK = Benchmark("reversible", comparisons, TABLES, FIGURES)
