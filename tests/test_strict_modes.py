"""Loops where JAX promotes neither dtypes nor ranks."""

from collections.abc import Iterator
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


def scanned(x: jax.Array, **options: Any) -> Any:
    xs = x[0] * jnp.arange(1, LENGTH + 1, dtype=jnp.float32)
    step = lambda y, s: (advance(y, x) * s, jnp.sum(y))  # noqa: E731
    return checkpointed_scan(step, x, xs, **options)


def stopped(x: jax.Array, **options: Any) -> Any:
    """The number of steps depends on the example."""
    go_on = lambda state: state[0] < jnp.where(state[1][0] > 1, 1, LENGTH)  # noqa: E731
    body = lambda state: (state[0] + 1, advance(state[1], x))  # noqa: E731
    return bounded_while_loop(go_on, body, (0, x), **options)


def repeated(x: jax.Array, **options: Any) -> Any:
    upper = jnp.where(x[0] > 1, 1, LENGTH)
    return checkpointed_fori_loop(0, upper, lambda _, y: advance(y, x), x, **options)


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
    (stopped, {"max_steps": 20, "checkpoints": 1, "with_steps": True, "throw": True}),
    (repeated, {"max_steps": None, "checkpoints": 3}),
    (repeated, {"max_steps": 20}),
]


@pytest.mark.parametrize(("loop", "options"), CASES)
def test_nothing_is_promoted(loop: Any, options: dict[str, Any]) -> None:
    """Whatever is traced and lowered of derivatives, of a batch too: nothing needs to be run."""

    def f(x: jax.Array) -> jax.Array:
        leaves = jax.tree.leaves(loop(x, **options))
        return sum((jnp.sum(x.astype(jnp.float32)) for x in leaves), jnp.float32(0))

    def derivatives(x: jax.Array) -> Any:
        found = [jax.value_and_grad(f)(x), jax.jvp(f, (x,), (x,))]
        found.append(jax.vmap(jax.grad(f))(jnp.stack([x, -x])))
        return [*found, jax.jvp(jax.grad(f), (x,), (x,))]

    jax.jit(derivatives).lower(X)
