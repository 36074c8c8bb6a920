"""Batching rules: which results are batched under `vmap`, and along which axis."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from jax_revolve._compat import as_array


def batched_dims(
    axis: Any, run: Callable[..., Sequence[Any]], operands: Sequence[Any], dims: Sequence[Any]
) -> list[Any]:
    """The batch axis of each result of a batched function: the first axis, or `None` if it is not
    batched."""
    batched = _find_batched(
        lambda look: vmap_over(axis, lambda *operands: look(run(*operands)), dims)(*operands)
    )
    return [0 if b else None for b in batched]


def vmap_over(
    axis: Any, fun: Callable[..., Sequence[Any]], dims: Sequence[Any], dims_out: Any = 0
) -> Any:
    """`jax.vmap` over the axis of a batching rule."""
    return jax.vmap(
        fun,
        in_axes=tuple(dims),
        out_axes=dims_out,
        axis_name=axis.name,
        axis_size=axis.size,
        spmd_axis_name=axis.spmd_name,
    )


def batched_as(
    axis: Any, values: Sequence[Any], dims: Sequence[Any], wanted: Sequence[Any]
) -> list[Any]:
    """The values, batched along the wanted axes; a value whose wanted axis is `None` is not
    batched."""

    def move(value: Any, dim: Any, to: Any) -> Any:
        if dim is not None:
            return jnp.moveaxis(value, dim, to)
        if to is None:
            return value
        row = jnp.expand_dims(as_array(value), to)
        return jnp.broadcast_to(row, (*row.shape[:to], axis.size, *row.shape[to + 1 :]))

    return [move(*each) for each in zip(values, dims, wanted, strict=True)]


def _find_batched(trace: Callable[[Callable[[Any], Any]], Any]) -> list[bool]:
    """Which values depend on batched ones. `trace(look)` must call `look(values)` once under
    `jax.vmap`; nothing runs."""
    found: list[bool] = []

    @custom_vmap
    def look(values: list[Any]) -> list[Any]:
        found[:] = [False] * len(values)  # JAX calls the rule below only if something is batched
        return values

    @look.def_vmap
    def _(axis_size: int, in_batched: Any, values: list[Any]) -> Any:
        del axis_size
        found[:] = in_batched[0]
        return values, in_batched[0]

    jax.eval_shape(lambda: trace(look))
    return found
