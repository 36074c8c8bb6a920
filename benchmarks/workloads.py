"""The loops that are timed: a stencil, a recurrent network, an LSTM."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from jax_revolve.schedule.planning import Checkpoints

LoopFunction: TypeAlias = Callable[..., Any]
"""What a workload runs its steps with: here called as `jax.lax.scan`."""


@dataclass(frozen=True)
class Workload:
    """A loop `carry = step(parameters, carry, x)`, and what its loss is differentiated by.

    `active` and `passive` hold the inputs "init", "parameters" and "xs" between them: gradients and
    tangents are with respect to those in `active`.
    """

    family: str
    size: str
    length: int
    step: Callable[[Any, Any, Any], Any]
    active: dict[str, Any]
    passive: dict[str, Any]
    checkpoints: tuple[Checkpoints, ...]

    @property
    def name(self) -> str:
        return f"{self.family}, n = {self.length}, {self.size}"

    @property
    def init(self) -> Any:
        return (self.active | self.passive)["init"]

    def loss(
        self, loop: LoopFunction, active: dict[str, Any], passive: dict[str, Any]
    ) -> jax.Array:
        """The sum of the squares of the final carry."""
        inputs = active | passive

        def body(carry: Any, x: Any) -> tuple[Any, None]:
            return self.step(inputs["parameters"], carry, x), None

        final, _ = loop(body, inputs["init"], inputs["xs"], self.length)
        return sum_of_squares(final)


def sum_of_squares(tree: Any) -> jax.Array:
    return sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)), jnp.zeros(()))


def stencil(length: int, width: int, checkpoints: tuple[Checkpoints, ...]) -> Workload:
    """A reaction-diffusion equation on a ring; the gradient is that of its initial state."""

    def step(_parameters: None, u: jax.Array, _x: None) -> jax.Array:
        return u + 0.1 * (jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1)) - 0.01 * u**3

    init = jnp.sin(jnp.linspace(0, 2 * jnp.pi, width, endpoint=False))
    return Workload(
        family="stencil",
        size=f"width {width}",
        length=length,
        step=step,
        active={"init": init},
        passive={"parameters": None, "xs": None},
        checkpoints=checkpoints,
    )


def rnn(length: int, batch: int, width: int, checkpoints: tuple[Checkpoints, ...]) -> Workload:
    """A tanh network; the gradient is that of its parameters and inputs."""

    def step(parameters: dict[str, jax.Array], h: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(h @ parameters["w"] + x @ parameters["v"] + parameters["b"])

    init = jnp.zeros((batch, width))
    return _network("rnn", step, init, width, length, checkpoints)


def lstm(length: int, batch: int, width: int, checkpoints: tuple[Checkpoints, ...]) -> Workload:
    """A long short-term memory; the gradient is that of its parameters and inputs."""

    def step(parameters: dict[str, jax.Array], carry: Any, x: jax.Array) -> Any:
        h, c = carry
        gates = h @ parameters["w"] + x @ parameters["v"] + parameters["b"]
        keep, write, show, new = jnp.split(gates, 4, axis=1)
        c = jax.nn.sigmoid(keep + 1) * c + jax.nn.sigmoid(write) * jnp.tanh(new)
        return jax.nn.sigmoid(show) * jnp.tanh(c), c

    init = (jnp.zeros((batch, width)), jnp.zeros((batch, width)))
    return _network("lstm", step, init, 4 * width, length, checkpoints)


def _network(
    family: str,
    step: Callable[[Any, Any, Any], Any],
    init: Any,
    columns: int,
    length: int,
    checkpoints: tuple[Checkpoints, ...],
) -> Workload:
    """A recurrent workload, whose step multiplies state and input by matrices with `columns`."""
    batch, width = jax.tree.leaves(init)[0].shape
    key_w, key_v, key_x = jax.random.split(jax.random.key(0), 3)
    parameters = {
        "w": 0.9 * jax.random.normal(key_w, (width, columns)) / width**0.5,
        "v": jax.random.normal(key_v, (width, columns)) / width**0.5,
        "b": jnp.zeros(columns),
    }
    return Workload(
        family=family,
        size=f"batch {batch}, width {width}",
        length=length,
        step=step,
        active={"parameters": parameters, "xs": jax.random.normal(key_x, (length, batch, width))},
        passive={"init": init},
        checkpoints=checkpoints,
    )


def all_workloads() -> list[Workload]:
    # `None` is the library's default number of checkpoints.
    return [
        stencil(1000, 20_000, (63, 30, 10)),
        stencil(100_000, 1000, (63, 30, 10)),
        rnn(1000, 16, 128, (63, None, 10)),
        rnn(1000, 16, 512, (63, 10)),
        rnn(10_000, 16, 128, (None,)),
        rnn(100_000, 4, 16, (63,)),
        lstm(1000, 16, 128, (63, None, 10)),
        lstm(100, 32, 512, (None, 6)),
    ]


def smoke_workloads() -> list[Workload]:
    """Tiny ones, to see that everything runs; their times mean nothing. There is one way to nest
    scans of four steps."""
    return [
        stencil(4, 16, (2,)),
        rnn(4, 2, 4, (None,)),
    ]
