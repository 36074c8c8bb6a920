"""Loops of a step: a stencil, a recurrent network, an LSTM; as scans, and with a condition."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.runner.programs import Inputs, Loop, Workload, sum_of_squares


@dataclass(frozen=True)
class Recurrence:
    """`carry = step(parameters, carry, x)`, `length` times. `active` and `passive` hold the inputs
    "init", "parameters" and "xs" between them."""

    family: str
    size: str
    length: int
    step: Callable[[Any, Any, Any], Any]
    active: Inputs
    passive: Inputs


def of_state(family: str, size: str, length: int, step: Any, init: Any) -> Recurrence:
    """The gradient is that of the initial state."""
    passive = {"parameters": None, "xs": None}
    return Recurrence(family, size, length, step, {"init": init}, passive)


def reaction_diffusion(u: jax.Array) -> jax.Array:
    """One step of an equation on a ring: the first axis."""
    return u + 0.1 * (jnp.roll(u, 1, 0) - 2 * u + jnp.roll(u, -1, 0)) - 0.01 * u**3


def stencil(length: int, width: int) -> Recurrence:
    init = jnp.sin(jnp.linspace(0, 2 * jnp.pi, width, endpoint=False))
    step = lambda _parameters, u, _x: reaction_diffusion(u)  # noqa: E731
    return of_state("stencil", f"width {width}", length, step, init)


def rnn(length: int, batch: int, width: int) -> Recurrence:
    """A tanh network; the gradient is that of its parameters and inputs."""

    def step(parameters: dict[str, jax.Array], h: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(h @ parameters["w"] + x @ parameters["v"] + parameters["b"])

    return _network("rnn", step, jnp.zeros((batch, width)), width, length)


def lstm(length: int, batch: int, width: int) -> Recurrence:
    """A long short-term memory; the gradient is that of its parameters and inputs."""

    def step(parameters: dict[str, jax.Array], carry: Any, x: jax.Array) -> Any:
        h, c = carry
        gates = h @ parameters["w"] + x @ parameters["v"] + parameters["b"]
        keep, write, show, new = jnp.split(gates, 4, axis=1)
        c = jax.nn.sigmoid(keep + 1) * c + jax.nn.sigmoid(write) * jnp.tanh(new)
        return jax.nn.sigmoid(show) * jnp.tanh(c), c

    init = (jnp.zeros((batch, width)), jnp.zeros((batch, width)))
    return _network("lstm", step, init, 4 * width, length)


def _network(
    family: str, step: Callable[[Any, Any, Any], Any], init: Any, columns: int, length: int
) -> Recurrence:
    """One whose step multiplies state and input by matrices with `columns`."""
    batch, width = jax.tree.leaves(init)[0].shape
    key_w, key_v, key_x = jax.random.split(jax.random.key(0), 3)
    parameters = {
        "w": 0.9 * jax.random.normal(key_w, (width, columns)) / width**0.5,
        "v": jax.random.normal(key_v, (width, columns)) / width**0.5,
        "b": jnp.zeros(columns),
    }
    active = {"parameters": parameters, "xs": jax.random.normal(key_x, (length, batch, width))}
    return Recurrence(family, f"batch {batch}, width {width}", length, step, active, {"init": init})


def scanned(recurrence: Recurrence) -> Workload:
    """By a loop that is called as `lax.scan`."""

    def loss(loop: Loop, active: Inputs, passive: Inputs) -> jax.Array:
        inputs = active | passive

        def body(carry: Any, x: Any) -> tuple[Any, None]:
            return recurrence.step(inputs["parameters"], carry, x), None

        final, _ = loop(body, inputs["init"], inputs["xs"], recurrence.length)
        return sum_of_squares(final)

    r = recurrence
    return Workload(r.family, f"n = {r.length}", r.size, r.length, loss, r.active, r.passive)


def until_limit(recurrence: Recurrence, *bounds: int, family: str | None = None) -> Workload:
    """By a loop that is called as `lax.while_loop` is, with one of these `max_steps`.

    It counts its steps up to the input "limit", an argument of the program: the compiler does not
    know how many that is. The step's x is looked up by the count, and is not differentiated.
    """
    r = recurrence
    active = {name: value for name, value in r.active.items() if name != "xs"}
    inputs = r.active | r.passive | {"limit": jnp.int32(r.length)}
    passive = {name: value for name, value in inputs.items() if name not in active}
    family, size = (family, f"{r.family} of {r.size}") if family else (r.family, r.size)
    steps = f"{r.length} steps of {' or '.join(map(str, bounds))}"
    loss = partial(_loss_until_limit, r.step)
    return Workload(family, steps, size, r.length, loss, active, passive)


def _loss_until_limit(
    step: Callable[[Any, Any, Any], Any], loop: Loop, active: Inputs, passive: Inputs
) -> jax.Array:
    inputs = active | passive
    xs = inputs["xs"]

    def unfinished(state: tuple[jax.Array, Any]) -> jax.Array:
        return state[0] < inputs["limit"]

    def body(state: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
        i, carry = state
        x = jax.tree.map(partial(lax.dynamic_index_in_dim, index=i, keepdims=False), xs)
        return i + 1, step(inputs["parameters"], carry, x)

    _, final = loop(unfinished, body, (jnp.int32(0), inputs["init"]))
    return sum_of_squares(final)


def under_vmap(recurrence: Recurrence, bound: int) -> Workload:
    """As many examples of different heights as it has steps; they take 1, 2, ... steps."""
    one = until_limit(recurrence, bound, family="vmap")
    heights = jnp.linspace(0.5, 1, one.length)[:, None]

    def loss(loop: Loop, active: Inputs, passive: Inputs) -> jax.Array:
        return jnp.sum(jax.vmap(partial(one.loss, loop))(active, passive))

    return replace(
        one,
        steps=f"1 to {one.steps}",
        loss=loss,
        active={"init": heights * one.active["init"]},
        passive=one.passive | {"limit": jnp.arange(1, one.length + 1)},
    )
