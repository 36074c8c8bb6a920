"""Steps of 3 to 100 numbers: they take less time than it takes to begin a kernel."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.workloads import steps
from benchmarks.workloads.recurrences import Recurrence, of_state


def lorenz_63(length: int, h: float = 0.001) -> Recurrence:
    """The three equations of Lorenz, by the classical method of Runge and Kutta."""

    def slope(u: Any) -> Any:
        x, y, z = u
        return jnp.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])

    return _solved("Lorenz-63", length, slope, jnp.ones(3), h)


def lorenz_96(length: int, width: int = 40, h: float = 0.001) -> Recurrence:
    return _solved("Lorenz-96", length, steps.lorenz_96, 8 + jnp.sin(jnp.arange(float(width))), h)


def predator_prey(length: int, h: float = 0.01) -> Recurrence:
    """The two equations of Lotka and Volterra, and their period's phase as a third."""

    def slope(u: Any) -> Any:
        prey, predators, _ = u
        return jnp.stack([prey * (1 - predators), predators * (prey - 1), prey - predators])

    return _solved("predator and prey", length, slope, jnp.array([1.5, 1.0, 0.0]), h)


def pendulums(length: int, count: int = 10) -> Recurrence:
    """Coupled pendulums, by leapfrog steps."""

    def step(_: Any, carry: Any, __: Any) -> Any:
        angle, speed = carry
        around = jnp.roll(angle, 1) - 2 * angle + jnp.roll(angle, -1)
        speed = speed + 0.01 * (around - jnp.sin(angle))
        return angle + 0.01 * speed, speed

    init = (jnp.sin(jnp.arange(float(count))), jnp.zeros(count))
    return of_state("pendulums", f"{count} of them", length, step, init)


def bodies(length: int, count: int = 5) -> Recurrence:
    """Bodies that attract each other, in a plane."""

    def step(_: Any, carry: Any, __: Any) -> Any:
        at, speed = carry
        apart = at[None] - at[:, None]
        speed = speed + 0.001 * jnp.sum(apart * (jnp.sum(apart**2, -1)[..., None] + 0.1) ** -1.5, 1)
        return at + 0.001 * speed, speed

    angles = 2 * jnp.pi * jnp.arange(count) / count
    at = jnp.stack([jnp.cos(angles), jnp.sin(angles)], 1)
    return of_state("bodies", f"{count} of them", length, step, (at, 0.3 * at[:, ::-1]))


def filter_of(length: int, width: int = 4) -> Recurrence:
    """The covariance of a Kalman filter that measures one number."""

    def step(_: Any, covariance: Any, __: Any) -> Any:
        forward = jnp.eye(width) + 0.1 * jnp.eye(width, k=1)
        covariance = forward @ covariance @ forward.T + 0.01 * jnp.eye(width)
        gain = covariance[:, 0] / (covariance[0, 0] + 1)
        return covariance - jnp.outer(gain, covariance[0])

    size = f"{width} states"
    return of_state("Kalman filter", size, length, step, jnp.eye(width))


def network(length: int, width: int = 100) -> Recurrence:
    """A recurrent network without a batch, differentiated with respect to its weights."""

    def step(w: Any, h: Any, _: Any) -> Any:
        return jnp.tanh(w @ h + 0.1)

    w = jax.random.normal(jax.random.key(0), (width, width)) / width**0.5
    passive = {"init": jnp.zeros(width), "xs": None}
    return Recurrence("network", f"width {width}", length, step, {"parameters": w}, passive)


def _solved(
    family: str, length: int, slope: Callable[[Any], Any], init: Any, h: float
) -> Recurrence:
    step = lambda _parameters, u, _x: steps.runge_kutta(slope, u, h)  # noqa: E731
    return of_state(family, f"{init.size} numbers", length, step, init)
