"""Steps with an inverse: `checkpointed_scan(inverse=)` beside `lax.scan`, checkpoints, and a
`jax.custom_vjp` written by hand."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.contenders import names
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison
from benchmarks.runner.programs import Contender, Inputs, Workload, sum_of_squares
from jax_revolve import checkpointed_scan

Step = Callable[..., Any]
"""`step(parameters, carry, x)`, and `back(parameters, carry, x)` for its inverse."""


def laplacian(u: jax.Array) -> Any:
    return sum(jnp.roll(u, shift, axis) for shift in (1, -1) for axis in (0, 1)) - 4 * u


def workload(
    family: str, length: int, size: str, step: Step, back: Step, active: Inputs, xs: Any = None
) -> Workload:
    """The gradient with respect to `active`: "parameters", "init" and perhaps "xs"."""

    def loss(loop: Any, active: Inputs, passive: Inputs) -> jax.Array:
        inputs = passive | active
        parts = (inputs["parameters"], inputs["init"], inputs["xs"])
        return sum_of_squares(loop(step, back, *parts, length)[0])

    return Workload(family, f"n = {length}", size, length, loss, active, {"xs": xs})


def wave(length: int, width: int) -> Workload:
    def step(c: Any, carry: Any, _: Any) -> Any:
        u, before = carry
        return (2 * u - before + c * laplacian(u), u), None

    def back(c: Any, carry: Any, _: Any) -> Any:
        after, u = carry
        return u, 2 * u - after + c * laplacian(u)

    active = {"parameters": jnp.full((width, width), 0.2), "init": (bump(width),) * 2}
    return workload("wave", length, f"{width} x {width}", step, back, active)


def bump(width: int) -> jax.Array:
    i = jnp.arange(width, dtype=jnp.float32)
    return jnp.exp(-0.02 * ((i[:, None] - width / 2) ** 2 + (i - width / 3) ** 2))


def staggered(length: int, width: int) -> Workload:
    def step(c: Any, carry: Any, _: Any) -> Any:
        p, vx, vy = carry
        vx, vy = vx - 0.5 * (jnp.roll(p, -1, 0) - p), vy - 0.5 * (jnp.roll(p, -1, 1) - p)
        return (p - c * (vx - jnp.roll(vx, 1, 0) + vy - jnp.roll(vy, 1, 1)), vx, vy), None

    def back(c: Any, carry: Any, _: Any) -> Any:
        p, vx, vy = carry
        p = p + c * (vx - jnp.roll(vx, 1, 0) + vy - jnp.roll(vy, 1, 1))
        return p, vx + 0.5 * (jnp.roll(p, -1, 0) - p), vy + 0.5 * (jnp.roll(p, -1, 1) - p)

    init = (bump(width), *[jnp.zeros((width, width))] * 2)
    active = {"parameters": jnp.full((width, width), 0.4), "init": init}
    return workload("staggered wave", length, f"{width} x {width}", step, back, active)


def couplings(length: int, batch: int, width: int, *, are_tied: bool) -> Workload:
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


def henon_heiles(length: int) -> Workload:
    def force(p: Any, q: Any) -> Any:
        x, y = q
        return -jnp.stack([x + 2 * p * x * y, y + p * (x * x - y * y)])

    def step(p: Any, carry: Any, _: Any) -> Any:
        q, v = carry
        v = v + 0.05 * force(p, q)
        return (q + 0.05 * v, v), None

    def back(p: Any, carry: Any, _: Any) -> Any:
        q, v = carry
        q = q - 0.05 * v
        return q, v - 0.05 * force(p, q)

    init = (jnp.array([0.0, 0.1]), jnp.array([0.49, 0.05]))
    active = {"parameters": jnp.float32(1.0), "init": init}
    return workload("Hénon-Heiles", length, "2 x 2", step, back, active)


def _of_scan(scan: Any, step: Step, back: Step, p: Any, init: Any, xs: Any, length: int) -> Any:
    return scan(partial(step, p), init, xs, length)


def _walked_back(
    options: dict[str, Any], step: Step, back: Step, p: Any, init: Any, xs: Any, length: int
) -> Any:
    inverse = lambda carry, x, _: back(p, carry, x)  # noqa: E731
    return checkpointed_scan(partial(step, p), init, xs, length, inverse=inverse, **options)


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

LAX = Contender(names.LAX_SCAN, partial(_of_scan, lax.scan))
BY_HAND = Contender("custom_vjp by hand", by_hand)


def plain(checkpoints: int | None) -> Contender:
    scan = partial(checkpointed_scan, checkpoints=checkpoints)
    return Contender(names.JAX_REVOLVE, partial(_of_scan, scan), checkpoints)


def walked(checkpoints: int | None) -> Contender:
    options = {"checkpoints": checkpoints}
    name = f"{names.JAX_REVOLVE}, inverse"
    return Contender(name, partial(_walked_back, options), checkpoints)


def comparisons(quick: bool) -> Iterator[Comparison]:
    if quick:
        yield Comparison(wave(8, 6), "gradient", [LAX, plain(2), walked(1), BY_HAND])
        yield Comparison(couplings(4, 2, 4, are_tied=False), "gradient", [LAX, walked(2), BY_HAND])
        yield Comparison(henon_heiles(8), "hvp", [LAX, walked(None)])
        return
    workloads = [
        wave(1000, 100),
        wave(10_000, 100),
        staggered(1000, 100),
        couplings(100, 16, 128, are_tied=False),
        couplings(1000, 16, 128, are_tied=True),
        henon_heiles(10_000),
    ]
    ours = [plain(None), plain(20), plain(5), walked(None), walked(20), walked(1)]
    for each in workloads:
        yield Comparison(each, "gradient", [LAX, *ours, BY_HAND])
    yield Comparison(workloads[0], "hvp", [LAX, *ours])


BENCHMARK = Benchmark("reversible", comparisons)
