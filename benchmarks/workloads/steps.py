"""More steps: fields in one and two dimensions, particles, differential equations, networks."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.workloads.recurrences import Recurrence, of_state


def sine_stencil(length: int, width: int) -> Recurrence:
    """A chain of pendulums."""

    def step(_: None, u: Any, __: None) -> Any:
        return u + 0.1 * (jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1)) - 0.01 * jnp.sin(u)

    return of_state("sine stencil", f"width {width}", length, step, _wave(width))


def waves(length: int, width: int) -> Recurrence:
    """Leapfrog steps of the sine-Gordon equation in two dimensions."""

    def step(_: None, state: Any, __: None) -> Any:
        u, v = state
        spread = sum(jnp.roll(u, shift, axis) for shift in (1, -1) for axis in (0, 1))
        v = v + 0.1 * (spread - 4 * u - jnp.sin(u))
        return u + 0.1 * v, v

    init = (jnp.outer(_wave(width), _wave(width)), jnp.zeros((width, width)))
    return of_state("2-D wave", f"width {width}", length, step, init)


def particles(length: int, count: int) -> Recurrence:
    """Leapfrog steps under forces between all pairs."""

    def step(_: None, state: Any, __: None) -> Any:
        q, v = state
        apart = q[:, None] - q[None]
        square = jnp.sum(apart**2, -1) + 0.01
        v = v - 0.001 * jnp.sum(apart * (square**-1.5)[..., None], 1)
        return q + 0.01 * v, v

    keys = jax.random.split(jax.random.key(0))
    init = tuple(jax.random.normal(key, (count, 3)) for key in keys)
    return of_state("particles", f"{count} of them", length, step, init)


def lorenz(length: int, width: int) -> Recurrence:
    """Runge-Kutta steps of the Lorenz-96 equations."""

    step = lambda _parameters, u, _x: runge_kutta(lorenz_96, u, 0.001)  # noqa: E731
    return of_state("Lorenz-96", f"width {width}", length, step, 8 + _wave(width))


def lorenz_96(u: Any) -> Any:
    """The slope of the Lorenz-96 equations."""
    return (jnp.roll(u, -1) - jnp.roll(u, 2)) * jnp.roll(u, 1) - u + 8.0


def gru(length: int, batch: int, width: int) -> Recurrence:
    """A gated recurrent unit; the gradient is that of its parameters and inputs."""

    def step(p: Any, h: Any, x: Any) -> Any:
        update, reset = jnp.split(jax.nn.sigmoid(h @ p["w"] + x @ p["v"]), 2, axis=1)
        new = jnp.tanh((reset * h) @ p["u"] + x @ p["t"])
        return (1 - update) * h + update * new

    shapes = {"w": (width, 2 * width), "v": (width, 2 * width)}
    shapes |= {"u": (width, width), "t": (width, width)}
    xs = jax.random.normal(jax.random.key(1), (length, batch, width))
    init = jnp.zeros((batch, width))
    active = {"parameters": _weights(shapes), "xs": xs}
    size = f"batch {batch}, width {width}"
    return Recurrence("gru", size, length, step, active, {"init": init})


def transformer(length: int, tokens: int, width: int) -> Recurrence:
    """One block of a transformer, `length` times, as in a looped transformer."""

    def step(p: Any, h: Any, _: None) -> Any:
        q, k, v = jnp.split(_norm(h) @ p["qkv"], 3, axis=-1)
        h = h + jax.nn.softmax(q @ k.T / h.shape[-1] ** 0.5, axis=-1) @ v
        return h + 0.1 * jax.nn.gelu(_norm(h) @ p["in"]) @ p["out"]

    shapes = {"qkv": (width, 3 * width), "in": (width, 4 * width), "out": (4 * width, width)}
    size = f"{tokens} tokens, width {width}"
    init = jax.random.normal(jax.random.key(1), (tokens, width))
    return _of_parameters("transformer block", size, length, step, _weights(shapes), init)


def neural_ode(length: int, batch: int, width: int) -> Recurrence:
    """Runge-Kutta steps of a network with one hidden layer."""

    def step(p: Any, y: Any, _: None) -> Any:
        return runge_kutta(lambda y: jnp.tanh(y @ p["in"]) @ p["out"], y, 0.01)

    shapes = {"in": (width, 4 * width), "out": (4 * width, width)}
    init = jax.random.normal(jax.random.key(1), (batch, width))
    size = f"batch {batch}, width {width}"
    return _of_parameters("neural ODE", size, length, step, _weights(shapes), init)


def runge_kutta(slope: Callable[[Any], Any], y: Any, dt: float) -> Any:
    """A step by the classical method of Runge and Kutta."""
    first = slope(y)
    second = slope(y + dt / 2 * first)
    third = slope(y + dt / 2 * second)
    return y + dt / 6 * (first + 2 * second + 2 * third + slope(y + dt * third))


def _norm(x: Any) -> Any:
    centered = x - x.mean(-1, keepdims=True)
    return centered * jax.lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-5)


def _wave(width: int) -> jax.Array:
    return jnp.sin(jnp.linspace(0, 2 * jnp.pi, width, endpoint=False))


def _weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return {
        name: jax.random.normal(key, shape) / shape[-2] ** 0.5
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def _of_parameters(
    family: str, size: str, length: int, step: Any, parameters: Any, init: Any
) -> Recurrence:
    active = {"parameters": parameters}
    return Recurrence(family, size, length, step, active, {"init": init, "xs": None})
