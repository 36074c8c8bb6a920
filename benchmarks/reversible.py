"""Steps with an inverse: `checkpointed_scan(inverse=)` beside scans, checkpoints, and a
`jax.custom_vjp` written by hand."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.contenders.scans import JAX_REVOLVE, LAX_SCAN, REMAT, nested
from benchmarks.contenders.searches import squarest
from benchmarks.report.table import Table, over
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison
from benchmarks.runner.programs import Contender, Inputs, Workload, sum_of_squares
from jax_revolve import checkpointed_scan

Step = Callable[..., Any]
"""`step(parameters, carry, x)`, and `back(parameters, carry, x)` for its inverse."""


def workload(
    family: str, length: int, size: str, step: Step, back: Step, active: Inputs
) -> Workload:
    """The gradient with respect to all inputs: "parameters", "init" and perhaps "xs"."""

    def loss(loop: Any, active: Inputs, _: Inputs) -> jax.Array:
        parts = (active["parameters"], active["init"], active.get("xs"))
        return sum_of_squares(loop(step, back, *parts, length)[0])

    return Workload(family, f"n = {length}", size, length, loss, active, {})


def wave(length: int, width: int) -> Workload:
    """Leapfrog steps of a wave in two dimensions, whose speed depends on the place."""

    def change(c: Any, u: Any) -> Any:
        return c * (sum(jnp.roll(u, shift, axis) for shift in (1, -1) for axis in (0, 1)) - 4 * u)

    def step(c: Any, carry: Any, _: Any) -> Any:
        u, before = carry
        return (2 * u - before + change(c, u), u), None

    def back(c: Any, carry: Any, _: Any) -> Any:
        after, u = carry
        return u, 2 * u - after + change(c, u)

    i = jnp.arange(width, dtype=jnp.float32)
    bump = jnp.exp(-0.02 * ((i[:, None] - width / 2) ** 2 + (i - width / 3) ** 2))
    active = {"parameters": jnp.full((width, width), 0.2), "init": (bump, bump)}
    return workload("wave", length, f"{width} x {width}", step, back, active)


def couplings(length: int, batch: int, width: int, *, are_tied: bool) -> Workload:
    """A reversible residual network, whose layers have the same weights or weights of their own."""

    def change(w: Any, x: Any) -> Any:
        return jnp.tanh(x @ w[0]) @ w[1]

    def step(tied: Any, carry: Any, own: Any) -> Any:
        (a, b), w = carry, tied if are_tied else own
        a = a + 0.1 * change(w[0], b)
        return (a, b + 0.1 * change(w[1], a)), None

    def back(tied: Any, carry: Any, own: Any) -> Any:
        (a, b), w = carry, tied if are_tied else own
        b = b - 0.1 * change(w[1], a)
        return a - 0.1 * change(w[0], b), b

    shape = (2, 2, width, width) if are_tied else (length, 2, 2, width, width)
    weights = jax.random.normal(jax.random.key(0), shape) / width**0.5
    init = tuple(jax.random.normal(jax.random.key(key), (batch, width)) for key in (1, 2))
    active = {"parameters": weights if are_tied else None, "init": init}
    active |= {} if are_tied else {"xs": weights}
    family = f"couplings, {'tied' if are_tied else 'own'} weights"
    return workload(family, length, f"batch {batch}, width {width}", step, back, active)


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


def ours(checkpoints: int | None) -> list[Contender]:
    """Without the inverse, and with it."""
    scan = partial(_scan, partial(checkpointed_scan, checkpoints=checkpoints))
    return [
        Contender(JAX_REVOLVE, scan, checkpoints),
        Contender(f"{JAX_REVOLVE}, inverse", partial(_walked_back, checkpoints), checkpoints),
    ]


def comparisons(quick: bool) -> Iterator[Comparison]:
    if quick:
        workloads = [wave(8, 6), couplings(4, 2, 4, are_tied=False)]
    else:
        workloads = [
            *(wave(1000, 100), wave(10_000, 100)),
            *(couplings(100, 16, 128, are_tied=False), couplings(1000, 16, 128, are_tied=True)),
        ]
    for each in workloads:
        others = map(plain, (LAX_SCAN, REMAT, nested(squarest(each.length), True)))
        contenders = [*others, *ours(None), *ours(2 if quick else 20), BY_HAND]
        yield Comparison(each, "gradient", contenders)
    contenders = [plain(LAX_SCAN), *ours(None)]
    yield Comparison(workloads[0], "hvp", contenders)


TABLES = {
    "reversible": Table(
        "Derivatives of steps with an inverse {where}; times are ratios of medians, over"
        " `lax.scan`'s (`benchmarks/reversible.py`):",
        lambda results: results.runs,
        [
            ("loop", "{workload}"),
            ("derivative", "{quantity}"),
            ("loop run by", "{contender}"),
            ("checkpoints", "{checkpoints}"),
            ("memory", "{MB:.2f} MB"),
            ("time", over(LAX_SCAN.name)),
        ],
    ),
}
BENCHMARK = Benchmark("reversible", comparisons, TABLES)
