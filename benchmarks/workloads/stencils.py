"""Stencils of several stages. What arithmetic computes in a stage is read through several windows.

With `apart`, each such value is behind a barrier that a user of `lax.scan` can write by hand.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.workloads import steps
from benchmarks.workloads.recurrences import Recurrence, of_state

Slope: TypeAlias = Callable[[Any], Any]


def _same(x: Any) -> Any:
    return x


def _named(family: str, apart: bool) -> str:
    return f"{family}, barriers by hand" if apart else family


def lorenz_96(length: int, width: int, apart: bool = False) -> Recurrence:
    """The Lorenz-96 equations, by the classical method of Runge and Kutta."""
    alone = lax.optimization_barrier if apart else _same

    slope = lambda u: steps.lorenz_96(alone(u))  # noqa: E731
    step = lambda _parameters, u, _x: steps.runge_kutta(slope, u, 0.001)  # noqa: E731
    return _of(_named("Lorenz-96 in stages", apart), length, width, step, 8 + _bump(width))


def burgers(length: int, width: int, apart: bool = False) -> Recurrence:
    """Burgers' equation with viscosity, by a Runge-Kutta method of three stages that are means of
    Euler steps (Shu and Osher 1988)."""
    alone = lax.optimization_barrier if apart else _same

    def euler(u: Any) -> Any:
        u = alone(u)
        left, right = jnp.roll(u, 1), jnp.roll(u, -1)
        return u - 0.05 * (right**2 - left**2) / 2 + 0.1 * (left - 2 * u + right)

    def step(_: Any, u: Any, __: Any) -> Any:
        first = euler(u)
        second = 0.75 * u + 0.25 * euler(first)
        return u / 3 + 2 / 3 * euler(second)

    return _of(_named("Burgers", apart), length, width, step, _bump(width))


def limited(length: int, width: int, apart: bool = False) -> Recurrence:
    """Upwind transport, with slopes limited by van Leer's function, by Heun's method."""
    alone = lax.optimization_barrier if apart else _same

    def slope(u: Any) -> Any:
        u = alone(u)
        below, above = u - jnp.roll(u, 1), jnp.roll(u, -1) - u
        same = below * above
        limited = alone(jnp.where(same > 0, 2 * same / (below + above + 1e-6), 0.0))
        face = alone(u + limited / 2)
        return jnp.roll(face, 1) - face

    def step(_: Any, u: Any, __: Any) -> Any:
        first = slope(u)
        return u + 0.1 * (first + slope(u + 0.2 * first))

    return _of(_named("upwind with a limiter", apart), length, width, step, 1 + _bump(width))


def plate(length: int, width: int, apart: bool = False) -> Recurrence:
    """Waves of a plate: the Laplacian of a Laplacian."""
    alone = lax.optimization_barrier if apart else _same

    def step(_: Any, carry: Any, __: Any) -> Any:
        before, u = carry
        bent = _laplacian(alone(_laplacian(u)))
        return u, 2 * u - before - 0.01 * bent

    u = jnp.outer(_bump(width), _bump(width))
    return _of(_named("plate", apart), length, width, step, (u, u))


def gray_scott(length: int, width: int) -> Recurrence:
    """Two substances that react and diffuse. Its windows read the carry."""

    def step(_: Any, carry: Any, __: Any) -> Any:
        u, v = carry
        react = u * v**2
        new = u + 0.16 * _laplacian(u) - react + 0.035 * (1 - u)
        return new, v + 0.08 * _laplacian(v) + react - 0.1 * v

    spot = jnp.outer(_bump(width), _bump(width)) ** 2
    return _of("Gray-Scott", length, width, step, (1 - spot / 2, spot / 4))


def shallow_water(length: int, width: int) -> Recurrence:
    """Height and two velocities on a staggered grid."""

    def step(_: Any, carry: Any, __: Any) -> Any:
        height, u, v = carry
        u = u - 0.1 * (jnp.roll(height, -1, 0) - height)
        v = v - 0.1 * (jnp.roll(height, -1, 1) - height)
        flow = (1 + height) * u - jnp.roll((1 + height) * u, 1, 0)
        return height - 0.1 * (flow + v - jnp.roll(v, 1, 1)), u, v

    height = 0.1 * jnp.outer(_bump(width), _bump(width))
    zero = jnp.zeros_like(height)
    return _of("shallow water", length, width, step, (height, zero, zero))


def _laplacian(u: Any) -> Any:
    padded = jnp.pad(u, 1, mode="wrap")
    sides = padded[2:, 1:-1] + padded[:-2, 1:-1] + padded[1:-1, 2:] + padded[1:-1, :-2]
    return sides - 4 * u


def _bump(width: int) -> jax.Array:
    return jnp.exp(-50 * (jnp.linspace(-0.5, 0.5, width, endpoint=False)) ** 2)


def _of(family: str, length: int, width: int, step: Any, init: Any) -> Recurrence:
    return of_state(family, f"width {width}", length, step, init)
