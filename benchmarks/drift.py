"""How far the gradient of steps that are walked back is from the gradient with checkpoints, in
float32: over one block, whose start the walk back must meet, and over the blocks of the default."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.report.results import Results
from benchmarks.report.table import Table
from benchmarks.reversible import couplings
from benchmarks.runner.benchmark import Benchmark, Measurement
from benchmarks.runner.programs import Record, sum_of_squares
from jax_revolve import checkpointed_scan, inverse_drift

LENGTHS = (1000, 10_000, 100_000)

System = tuple[Callable[..., Any], Callable[..., Any], Any, Any]
"""A step of parameters and a carry, its inverse, the parameters and the first carry."""


def _laplacian(u: Any) -> Any:
    return sum(jnp.roll(u, shift, axis) for shift in (1, -1) for axis in (0, 1)) - 4 * u


def _bump(width: int = 32) -> Any:
    i = jnp.arange(width, dtype=jnp.float32)
    return jnp.exp(-0.02 * ((i[:, None] - width / 2) ** 2 + (i - width / 3) ** 2))


def wave(damping: float) -> System:
    """The carry is the wave, and the wave before."""
    kept = 1 - damping

    def step(c: Any, carry: Any) -> Any:
        u, before = carry
        return u + kept * (u - before) + c * _laplacian(u), u

    def back(c: Any, carry: Any) -> Any:
        after, u = carry
        return u, u - (after - u - c * _laplacian(u)) / kept

    return step, back, jnp.full((32, 32), 0.2), (_bump(), _bump())


def staggered_wave() -> System:
    """The carry is the pressure and the two velocities, half a step apart."""

    def change(p: Any) -> Any:
        return [jnp.roll(p, -1, axis) - p for axis in (0, 1)]

    def flow(vs: Any) -> Any:
        return sum(v - jnp.roll(v, 1, axis) for axis, v in enumerate(vs))

    def step(c: Any, carry: Any) -> Any:
        p, *vs = carry
        vs = [v + 0.4 * d for v, d in zip(vs, change(p), strict=True)]
        return p + c * flow(vs), *vs

    def back(c: Any, carry: Any) -> Any:
        p, *vs = carry
        p = p - c * flow(vs)
        return p, *(v - 0.4 * d for v, d in zip(vs, change(p), strict=True))

    return step, back, jnp.full((32, 32), 0.5), (_bump(), *jnp.zeros((2, 32, 32)))


def leapfrog(force: Callable[..., Any], h: float, p: Any, at: Any, velocity: Any) -> System:
    def step(p: Any, carry: Any) -> Any:
        q, v = carry
        q = q + h / 2 * v
        v = v + h * force(p, q)
        return q + h / 2 * v, v

    def back(p: Any, carry: Any) -> Any:
        q, v = carry
        q = q - h / 2 * v
        v = v - h * force(p, q)
        return q - h / 2 * v, v

    return step, back, p, (jnp.array(at), jnp.array(velocity))


def henon_heiles() -> System:
    def force(p: Any, q: Any) -> Any:
        x, y = q
        return jnp.stack([-x - 2 * p * x * y, -y - p * (x * x - y * y)])

    return leapfrog(force, 0.05, jnp.float32(1), [0.0, 0.1], [0.5, 0.0])


def three_bodies() -> System:
    def force(masses: Any, q: Any) -> Any:
        apart = q[None] - q[:, None]
        cubed = (jnp.sum(apart**2, -1) + 1e-2) ** 1.5
        return jnp.sum(masses[None, :, None] * apart / cubed[..., None], 1)

    at, velocity = [[1.0, 0.0], [-0.5, 0.8], [-0.5, -0.7]], [[0.0, 0.5], [-0.4, -0.3], [0.4, -0.2]]
    return leapfrog(force, 0.01, jnp.ones(3), at, velocity)


def reversible_heun() -> System:
    def field(p: Any, y: Any) -> Any:
        return jnp.stack([y[1], -p * jnp.sin(y[0])])

    def step(p: Any, carry: Any, h: float = 0.01) -> Any:
        y, z = carry
        after = 2 * y - z + h * field(p, z)
        return y + h / 2 * (field(p, z) + field(p, after)), after

    y = jnp.array([1.0, 0.5])
    return step, partial(step, h=-0.01), jnp.float32(0.5), (y, y)


def tied_couplings() -> System:
    found = couplings(1, 16, 32, are_tied=True).active
    step, back = couplings_of(0.1), couplings_of(-0.1)
    return step, back, found["parameters"], found["init"]


def couplings_of(sign: float) -> Callable[..., Any]:
    def change(w: Any, x: Any) -> Any:
        return sign * jnp.tanh(x @ w[0]) @ w[1]

    def step(w: Any, carry: Any) -> Any:
        a, b = carry
        if sign > 0:
            a = a + change(w[0], b)
            return a, b + change(w[1], a)
        b = b + change(w[1], a)
        return a + change(w[0], b), b

    return step


SYSTEMS: dict[str, Callable[[], System]] = {
    "wave, as (u, u before)": partial(wave, 0.0),
    "wave, staggered": staggered_wave,
    **{
        f"wave, damped by {damping} a step": partial(wave, damping) for damping in (1e-3, 0.01, 0.1)
    },
    "Hénon-Heiles": henon_heiles,
    "three bodies, chaotic": three_bodies,
    "reversible Heun, dt = 0.01": reversible_heun,
    "couplings, the same weights in each layer": tied_couplings,
}


def _measured(name: str, length: int, quick: bool) -> list[Record]:
    step, back, p, init = SYSTEMS[name]()

    def scan(p: Any, **how: Any) -> Any:
        f = lambda carry, _: (step(p, carry), None)  # noqa: E731
        return sum_of_squares(checkpointed_scan(f, init, length=length, **how)[0])

    def inverse(p: Any) -> Any:
        return lambda carry, x, y: back(p, carry)

    def gradient(**how: Any) -> Any:
        return jax.jit(jax.grad(partial(scan, **how)))(p)

    def error(checkpoints: int | None) -> float:
        of_walk = lambda p: scan(p, inverse=inverse(p), checkpoints=checkpoints)  # noqa: E731
        found = jax.jit(jax.grad(of_walk))(p)
        return float(jnp.linalg.norm(jnp.ravel(found - exact)) / jnp.linalg.norm(jnp.ravel(exact)))

    exact = gradient()
    f = lambda carry, _: (step(p, carry), None)  # noqa: E731
    blocks = max(round((6 * length) ** (1 / 3)), 1)
    drift = inverse_drift(f, inverse(p), init, length=length, block_size=-(-length // blocks)).drift
    record = {"system": name, "length": length, "drift": float(jnp.max(drift))}
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
