"""In single precision on CPU, gradients equal `lax.scan`'s to the last bit."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax_revolve import checkpointed_scan

pytestmark = pytest.mark.usefixtures("default_precision")


def stencil(scan: Any, u: Any, xs: Any) -> Any:
    def step(u: Any, x: Any) -> Any:
        u = u + 0.1 * (jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1)) - 0.01 * u**3 + 0.01 * x
        return u, jnp.tanh(u * x)

    u, ys = scan(step, u, xs)
    return jnp.sum(u**2) + jnp.sum(ys**2)


def recurrent(scan: Any, u: Any, xs: Any) -> Any:
    weights = jnp.cos(jnp.arange(u.size**2, dtype=jnp.float32)).reshape(u.size, u.size) / 3

    def step(u: Any, x: Any) -> Any:
        u = jnp.tanh(weights @ u + x)
        return u, u

    u, ys = scan(step, u, xs)
    return jnp.sum(u**2) + jnp.sum(ys**3)


@cache
def gradient(program: Any, scan: Any) -> Any:
    u = jax.random.normal(jax.random.key(0), (16,), jnp.float32)
    xs = jax.random.normal(jax.random.key(1), (37, 16), jnp.float32)
    return jax.jit(jax.grad(partial(program, scan), (0, 1)))(u, xs)


@pytest.mark.parametrize("program", [stencil, recurrent])
@pytest.mark.parametrize("checkpoints", [1, 7, "all"])
def test_gradients_equal_to_the_last_bit(program: Any, checkpoints: Any) -> None:
    scan = partial(checkpointed_scan, checkpoints=checkpoints, block_size=1)
    theirs = gradient(program, lax.scan)
    jax.tree.map(np.testing.assert_array_equal, gradient(program, scan), theirs)
