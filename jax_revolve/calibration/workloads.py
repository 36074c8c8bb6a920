"""The loops that a device is measured with: each has its time in something else."""

from collections.abc import Callable, Iterator
from math import isqrt
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_revolve.schedule.binomial import fewest_checkpoints
from jax_revolve.schedule.plan import Plan


class Workload(NamedTuple):
    """`length` steps of a carry, with weights that are differentiated as well."""

    name: str
    step: Callable[[Any, jax.Array], jax.Array]
    weights: Any
    init: jax.Array
    length: int


def workloads(platform: str) -> list[Workload]:
    """Of sizes that a device of the platform has something to do with."""
    wide = 1 if platform == "cpu" else 32
    return [
        Workload("few numbers", _stencil, None, _numbers(8), 20_000 // wide),
        Workload("stencil", _stencil, None, _numbers(4000 * wide), 2000),
        Workload("wide stencil", _stencil, None, _numbers(100_000 * wide), 200),
        Workload("sine", _sine, None, _numbers(5000 * wide), 1000),
        Workload("tanh", _tanh, None, _numbers(5000 * wide), 1000),
        Workload("small weights", _dense, _weights(64), _numbers(32 * wide, 64), 1000),
        Workload("large weights", _dense, _weights(512), _numbers(16 * wide, 512), 200),
        Workload("network", _network, _weights(64, 256), _numbers(32 * wide, 64), 100),
    ]


def plans(length: int) -> Iterator[Plan]:
    """Single steps with all, some and few checkpoints; blocks, with a checkpoint each and with
    fewer; and all steps taped."""
    root = isqrt(length)
    yield Plan(length, length)
    for repetitions in (2, 3, 5):
        yield Plan(length, fewest_checkpoints(length + 1, repetitions))
    for block_size in (4, root, length // 4):
        yield Plan(length, -(-length // block_size), block_size)
    yield Plan(length, max(isqrt(root), 2), root)
    yield Plan(length, 1, length)


def _stencil(_: Any, u: jax.Array) -> jax.Array:
    return u + 0.1 * (jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1)) - 0.01 * u**3


def _sine(_: Any, u: jax.Array) -> jax.Array:
    return u + 0.1 * (jnp.roll(u, 1) - u) - 0.01 * jnp.sin(u)


def _tanh(_: Any, u: jax.Array) -> jax.Array:
    return u + 0.1 * jnp.tanh(jnp.roll(u, 1) - u)


def _dense(weights: Any, h: jax.Array) -> jax.Array:
    return jnp.tanh(h @ weights[0])


def _network(weights: Any, h: jax.Array) -> jax.Array:
    for _ in range(4):
        h = h + 0.01 * jnp.tanh(h @ weights[0]) @ weights[0].T
    return h


def _numbers(*shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(0), shape, jnp.float32)


def _weights(width: int, wide: int | None = None) -> list[jax.Array]:
    return [_numbers(width, wide or width) / width**0.5]
