"""The models whose layers are run under checkpointing: a transformer, and a residual network."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from workloads import Workload

TRANSFORMER = "transformer"
STACK = "transformer stack"
RESNET = "residual network"


class TransformerBlock(eqx.Module):
    """Attention, and then two layers, each after a layer norm and with dropout."""

    norms: tuple[eqx.nn.LayerNorm, eqx.nn.LayerNorm]
    attention: eqx.nn.MultiheadAttention
    layers: tuple[eqx.nn.Linear, eqx.nn.Linear]
    dropout: eqx.nn.Dropout

    def __init__(self, width: int, key: jax.Array) -> None:
        keys = jax.random.split(key, 3)
        self.norms = (eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width))
        self.attention = eqx.nn.MultiheadAttention(4, width, key=keys[0])
        wide = 4 * width
        self.layers = (
            eqx.nn.Linear(width, wide, key=keys[1]),
            eqx.nn.Linear(wide, width, key=keys[2]),
        )
        self.dropout = eqx.nn.Dropout(0.1)

    def __call__(self, x: jax.Array, *, key: jax.Array) -> jax.Array:
        first, second = jax.random.split(key)
        normal = jax.vmap(self.norms[0])(x)
        x = x + self.dropout(self.attention(normal, normal, normal), key=first)
        hidden = jax.nn.gelu(jax.vmap(self.layers[0])(jax.vmap(self.norms[1])(x)))
        return x + self.dropout(jax.vmap(self.layers[1])(hidden), key=second)


class ResidualLayer(eqx.nn.StatefulLayer):
    """A convolution and a batch norm, added to what goes in."""

    convolution: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm

    def __init__(self, channels: int, key: jax.Array) -> None:
        self.convolution = eqx.nn.Conv2d(channels, channels, 3, padding=1, key=key)
        self.norm = eqx.nn.BatchNorm(channels, "batch", mode="batch")

    def __call__(self, x: jax.Array, state: eqx.nn.State, *, key: Any = None) -> Any:
        del key
        y, state = self.norm(self.convolution(x), state)
        return x + jax.nn.relu(y), state


@dataclass(frozen=True)
class LayerWorkload(Workload):
    """A model; `apply(run, layers, inputs)` is its loss, `run(layers, x, key, state)` being one way
    to run layers. `shares` are those of the plain gradient's memory that are given as budgets. A
    stack of layers is one module whose weights have a leading axis; otherwise they are a list."""

    apply: Callable[..., jax.Array] | None = None
    is_stack: bool = False
    shares: tuple[float, ...] = ()

    def loss(self, loop: Any, active: dict[str, Any], passive: dict[str, Any]) -> jax.Array:
        assert self.apply is not None
        return self.apply(loop, active["layers"], passive["inputs"])


def transformer(
    blocks: int,
    width: int,
    length: int,
    batch: int,
    checkpoints: tuple[int, ...],
    *,
    is_stack: bool,
) -> LayerWorkload:
    keys = jax.random.split(jax.random.key(0), blocks)
    make = partial(TransformerBlock, width)
    layers = eqx.filter_vmap(make)(keys) if is_stack else list(map(make, keys))
    weights, rest = eqx.partition(layers, eqx.is_inexact_array)
    xs = jax.random.normal(jax.random.key(1), (batch, length, width))

    def apply(run: Callable[..., Any], weights: Any, xs: jax.Array) -> jax.Array:
        layers = eqx.combine(weights, rest)
        keys = jax.random.split(jax.random.key(2), xs.shape[0])
        return jnp.sum(jax.vmap(lambda x, key: run(layers, x, key, None)[0])(xs, keys) ** 2)

    size = f"width {width}, sequence {length}, batch {batch}"
    workload = _workload(
        STACK if is_stack else TRANSFORMER, size, blocks, weights, xs, apply, checkpoints
    )
    return replace(workload, is_stack=is_stack)


def resnet(
    count: int, channels: int, width: int, batch: int, checkpoints: tuple[int, ...]
) -> LayerWorkload:
    keys = jax.random.split(jax.random.key(0), count)
    make = eqx.nn.make_with_state(lambda: [ResidualLayer(channels, key) for key in keys])
    layers, state = make()
    weights, rest = eqx.partition(layers, eqx.is_inexact_array)
    xs = jax.random.normal(jax.random.key(1), (batch, channels, width, width))

    def apply(run: Callable[..., Any], weights: Any, inputs: Any) -> jax.Array:
        xs, state = inputs
        call = partial(run, eqx.combine(weights, rest), key=None, state=state)
        mapped: Any = jax.vmap(call, axis_name="batch", out_axes=(0, None))
        ys, _ = mapped(xs)
        return jnp.mean(ys**2)

    size = f"{channels} channels, {width} x {width}, batch {batch}"
    return _workload(RESNET, size, count, weights, (xs, state), apply, checkpoints)


def _workload(
    family: str,
    size: str,
    count: int,
    weights: Any,
    inputs: Any,
    apply: Callable[..., jax.Array],
    checkpoints: tuple[int, ...],
) -> LayerWorkload:
    shares = (0.5, 0.25, 0.1) if count > 10 else (0.9,)
    return LayerWorkload(
        family=family,
        size=size,
        length=count,
        step=lambda *_: None,  # layers are no steps of a loop
        active={"layers": weights},
        passive={"inputs": inputs},
        checkpoints=checkpoints,
        apply=apply,
        shares=shares,
    )


def all_workloads() -> list[LayerWorkload]:
    """XLA takes minutes for each program of 48 blocks that are a list, and seconds for a stack."""
    return [
        transformer(48, 256, 256, 2, (24, 9), is_stack=True),
        replace(transformer(48, 256, 256, 1, (), is_stack=False), shares=(0.25,)),
        resnet(100, 16, 32, 8, (50, 13)),
    ]


def smoke_workloads() -> list[LayerWorkload]:
    """Tiny ones, to see that everything runs; their times mean nothing."""
    return [
        transformer(2, 8, 8, 2, (), is_stack=True),
        resnet(3, 2, 4, 2, (2,)),
    ]
