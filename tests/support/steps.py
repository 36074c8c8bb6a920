"""Steps of common models: recurrent networks, and the Runge-Kutta rule."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def rnn(p: Any, h: Any, x: Any) -> Any:
    return jnp.tanh(h @ p["w"] + x @ p["v"] + p["b"])


def lstm(p: Any, carry: Any, x: Any) -> Any:
    h, c = carry
    keep, write, show, new = jnp.split(h @ p["w"] + x @ p["v"] + p["b"], 4, axis=1)
    c = jax.nn.sigmoid(keep + 1) * c + jax.nn.sigmoid(write) * jnp.tanh(new)
    return jax.nn.sigmoid(show) * jnp.tanh(c), c


def gru(p: Any, h: Any, x: Any) -> Any:
    update, reset = jnp.split(jax.nn.sigmoid(h @ p["w"] + x @ p["v"]), 2, axis=1)
    new = jnp.tanh((reset * h) @ p["u"] + x @ p["t"])
    return (1 - update) * h + update * new


def runge_kutta(field: Callable[[Any], Any], y: Any, dt: float = 0.01) -> Any:
    k1 = field(y)
    k2 = field(y + dt / 2 * k1)
    k3 = field(y + dt / 2 * k2)
    k4 = field(y + dt * k3)
    return y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
