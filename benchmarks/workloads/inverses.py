"""Steps with an inverse: waves, orbits, a solver and networks."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class System(NamedTuple):
    """`carry = step(parameters, carry, x)`, and `carry = back(parameters, carry, x)` undoes it."""

    step: Callable[[Any, Any, Any], Any]
    back: Callable[[Any, Any, Any], Any]
    parameters: Any
    init: Any
    xs: Any = None


def _bump(width: int) -> jax.Array:
    i = jnp.arange(width, dtype=jnp.float32)
    return jnp.exp(-0.02 * ((i[:, None] - width / 2) ** 2 + (i - width / 3) ** 2))


def wave(width: int, damping: float = 0.0) -> System:
    """Leapfrog in two dimensions, where the speed depends on the place. The carry is the wave, and
    the wave before."""
    kept = 1 - damping

    def change(c: Any, u: Any) -> Any:
        return c * (sum(jnp.roll(u, shift, axis) for shift in (1, -1) for axis in (0, 1)) - 4 * u)

    def step(c: Any, carry: Any, _: Any) -> Any:
        u, before = carry
        return u + kept * (u - before) + change(c, u), u

    def back(c: Any, carry: Any, _: Any) -> Any:
        after, u = carry
        return u, u - (after - u - change(c, u)) / kept

    return System(step, back, jnp.full((width, width), 0.2), (_bump(width), _bump(width)))


def staggered_wave(width: int) -> System:
    """The carry is the pressure and the two velocities, half a step apart."""

    def change(p: Any) -> Any:
        return [jnp.roll(p, -1, axis) - p for axis in (0, 1)]

    def flow(vs: Any) -> Any:
        return sum(v - jnp.roll(v, 1, axis) for axis, v in enumerate(vs))

    def step(c: Any, carry: Any, _: Any) -> Any:
        p, *vs = carry
        vs = [v + 0.4 * d for v, d in zip(vs, change(p), strict=True)]
        return p + c * flow(vs), *vs

    def back(c: Any, carry: Any, _: Any) -> Any:
        p, *vs = carry
        p = p - c * flow(vs)
        return p, *(v - 0.4 * d for v, d in zip(vs, change(p), strict=True))

    start = (_bump(width), *jnp.zeros((2, width, width)))
    return System(step, back, jnp.full((width, width), 0.5), start)


def _leapfrog(force: Callable[..., Any], h: float, p: Any, at: Any, velocity: Any) -> System:
    def step(p: Any, carry: Any, _: Any) -> Any:
        q, v = carry
        q = q + h / 2 * v
        v = v + h * force(p, q)
        return q + h / 2 * v, v

    def back(p: Any, carry: Any, _: Any) -> Any:
        q, v = carry
        q = q - h / 2 * v
        v = v - h * force(p, q)
        return q - h / 2 * v, v

    return System(step, back, p, (jnp.array(at), jnp.array(velocity)))


def henon_heiles(stars: int = 1) -> System:
    """Stars in a galaxy, that start at almost the same place."""

    def force(p: Any, q: Any) -> Any:
        x, y = q
        return jnp.stack([-x - 2 * p * x * y, -y - p * (x * x - y * y)])

    apart = jnp.linspace(0, 0.01, stars) if stars > 1 else 0.0
    at, velocity = [apart, 0.1 + apart], [0.5 + apart, apart]
    return _leapfrog(force, 0.05, jnp.float32(1), at, velocity)


def three_bodies() -> System:
    """Chaotic."""

    def force(masses: Any, q: Any) -> Any:
        apart = q[None] - q[:, None]
        cubed = (jnp.sum(apart**2, -1) + 1e-2) ** 1.5
        return jnp.sum(masses[None, :, None] * apart / cubed[..., None], 1)

    at, velocity = [[1.0, 0.0], [-0.5, 0.8], [-0.5, -0.7]], [[0.0, 0.5], [-0.4, -0.3], [0.4, -0.2]]
    return _leapfrog(force, 0.01, jnp.ones(3), at, velocity)


def reversible_heun() -> System:
    """Of a pendulum, with dt = 0.01."""

    def field(p: Any, y: Any) -> Any:
        return jnp.stack([y[1], -p * jnp.sin(y[0])])

    def step(p: Any, carry: Any, _: Any, h: float = 0.01) -> Any:
        y, z = carry
        after = 2 * y - z + h * field(p, z)
        return y + h / 2 * (field(p, z) + field(p, after)), after

    y = jnp.array([1.0, 0.5])
    return System(step, partial(step, h=-0.01), jnp.float32(0.5), (y, y))


def couplings(batch: int, width: int, layers: int | None = None) -> System:
    """A reversible residual network, of `layers` with weights of their own, or of as many as one
    likes with the same weights."""

    def change(w: Any, x: Any) -> Any:
        return 0.1 * jnp.tanh(x @ w[0]) @ w[1]

    def step(tied: Any, carry: Any, own: Any) -> Any:
        (a, b), w = carry, tied if layers is None else own
        a = a + change(w[0], b)
        return a, b + change(w[1], a)

    def back(tied: Any, carry: Any, own: Any) -> Any:
        (a, b), w = carry, tied if layers is None else own
        b = b - change(w[1], a)
        return a - change(w[0], b), b

    shape = (2, 2, width, width)
    shape = shape if layers is None else (layers, *shape)
    weights = jax.random.normal(jax.random.key(0), shape) / width**0.5
    a, b = (jax.random.normal(jax.random.key(key), (batch, width)) for key in (1, 2))
    p, xs = (weights, None) if layers is None else (None, weights)
    return System(step, back, p, (a, b), xs)
