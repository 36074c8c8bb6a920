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


def stencil(u: Any, x: Any) -> Any:
    u = u + 0.1 * (jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1)) - 0.01 * u**3 + 0.01 * x
    return u, jnp.tanh(u * x)


def recurrent(u: Any, x: Any) -> Any:
    weights = jnp.cos(jnp.arange(u.size**2, dtype=jnp.float32)).reshape(u.size, u.size) / 3
    u = jnp.tanh(weights @ u + x)
    return u, u


@cache
def gradient(step: Any, scan: Any) -> Any:
    u, xs = (jax.random.normal(jax.random.key(len(n)), n, jnp.float32) for n in ((16,), (37, 16)))

    def loss(u: Any, xs: Any) -> Any:
        u, ys = scan(step, u, xs)
        return jnp.sum(u**2) + jnp.sum(ys**3)

    return jax.jit(jax.grad(loss, (0, 1)))(u, xs)


@pytest.mark.parametrize("step", [stencil, recurrent])
@pytest.mark.parametrize("checkpoints", [1, 7, "all"])
def test_gradients_equal_to_the_last_bit(step: Any, checkpoints: Any) -> None:
    ours = gradient(step, partial(checkpointed_scan, checkpoints=checkpoints, block_size=1))
    jax.tree.map(np.testing.assert_array_equal, ours, gradient(step, lax.scan))
