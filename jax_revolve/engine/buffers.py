"""Buffers: arrays with a leading axis of slots or steps, read and written one entry at a time."""

from typing import Any

from jax import lax


def read(buffers: list[Any], index: Any) -> list[Any]:
    """The entry of each buffer; `None` of one that is `None`."""
    return [
        None if b is None else lax.dynamic_index_in_dim(b, index, keepdims=False) for b in buffers
    ]


def write(buffers: list[Any], values: list[Any], index: Any) -> list[Any]:
    """The buffers with these entries."""
    return [
        lax.dynamic_update_index_in_dim(b, v, index, 0)
        for b, v in zip(buffers, values, strict=True)
    ]
