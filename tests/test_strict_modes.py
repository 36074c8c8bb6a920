"""Loops where JAX promotes neither dtypes nor ranks."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_revolve import (
    Disk,
    HostMemory,
    ProgressMeter,
    bounded_while_loop,
    checkpointed_fori_loop,
    checkpointed_scan,
)

pytestmark = pytest.mark.usefixtures("default_precision")

LENGTH = 9
X = np.linspace(0.1, 0.9, 3, dtype=np.float32)


@pytest.fixture(autouse=True)
def strictly() -> Iterator[None]:
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


def advance(y: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.sin(y * x) + jnp.roll(y, 1)


def scanned(x: jax.Array, **options: Any) -> jax.Array:
    xs = x[0] * jnp.arange(1, LENGTH + 1, dtype=jnp.float32)
    step = lambda y, s: (advance(y, x) * s, jnp.sum(y))  # noqa: E731
    y, ys = checkpointed_scan(step, x, xs, **options)
    return jnp.sum(y) + jnp.sum(ys)


def stopped(x: jax.Array, **options: Any) -> jax.Array:
    """The number of steps depends on the example."""
    _, y = bounded_while_loop(
        lambda state: state[0] < jnp.where(state[1][0] > 1, 1, LENGTH),
        lambda state: (state[0] + 1, advance(state[1], x)),
        (0, x),
        **options,
    )
    return jnp.sum(y)


def counted(x: jax.Array, **options: Any) -> jax.Array:
    go_on = lambda state: state[0] < LENGTH  # noqa: E731
    body = lambda state: (state[0] + 1, advance(state[1], x))  # noqa: E731
    run = partial(bounded_while_loop, go_on, body, with_steps=True, throw=True)
    (_, y), steps = run((jnp.int32(0), x), **options)
    return jnp.sum(y) + steps.astype(jnp.float32)


def repeated(x: jax.Array, **options: Any) -> jax.Array:
    upper = jnp.where(x[0] > 1, 1, LENGTH)
    return jnp.sum(checkpointed_fori_loop(0, upper, lambda _, y: advance(y, x), x, **options))


BAR = ProgressMeter()
IN_BLOCKS = {"checkpoints": 3, "block_size": 2, "progress": BAR}
CASES: list[tuple[Any, dict[str, Any]]] = [
    (scanned, IN_BLOCKS),
    (scanned, {"memory": 4000}),
    (scanned, {"checkpoints": 2, "storage": HostMemory(), "progress": BAR}),
    (scanned, {"checkpoints": 2, "block_size": 2, "storage": Disk(".")}),
    (stopped, {"max_steps": 20, **IN_BLOCKS}),
    (stopped, {"max_steps": 20, "memory": 4000}),
    (stopped, {"max_steps": None, "checkpoints": 3, "progress": BAR}),
    (counted, {"max_steps": 20, "checkpoints": 1}),
    (repeated, {"max_steps": None, "checkpoints": 3}),
    (repeated, {"max_steps": 20}),
]


@pytest.mark.parametrize(("loop", "options"), CASES)
def test_nothing_is_promoted(loop: Callable[..., jax.Array], options: dict[str, Any]) -> None:
    """Whatever is traced and lowered of derivatives, of a batch too: nothing needs to be run."""

    def f(x: jax.Array) -> jax.Array:
        return loop(x, **options)

    def derivatives(x: jax.Array) -> Any:
        found = [jax.value_and_grad(f)(x), jax.jvp(f, (x,), (x,))]
        found.append(jax.vmap(jax.grad(f))(jnp.stack([x, -x])))
        return [*found, jax.jvp(jax.grad(f), (x,), (x,))]

    jax.jit(derivatives).lower(X)
