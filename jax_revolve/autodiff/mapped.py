"""Functions of a sweep under `jax.vmap`.

A batched sweep is recorded as the sweep of one example and the axes that it is mapped over, so that
its derivative is the derivative of one example's, mapped over the same axes. The sweep of a batched
loop would not do: it adds up the cotangents of operands that are not batched, where `jax.vmap` of
a gradient returns one for each example.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from jax_revolve.autodiff.batching import batched_dims, vmap_over
from jax_revolve.autodiff.family import Flat

Run = Callable[..., Flat]


class Vmap(NamedTuple):
    """An axis that a sweep is mapped over: the axes of its operands, and of its results."""

    axis: Any
    dims: tuple[Any, ...]
    dims_out: tuple[Any, ...]


def mapped(run: Run, vmaps: Sequence[Vmap]) -> Run:
    """`run`, mapped over these axes, the innermost first."""
    for vmap in vmaps:
        run = partial(_mapped_over, vmap.axis, vmap.dims, run)
    return run


def _mapped_over(axis: Any, dims: Any, run: Run, *operands: Any) -> Flat:
    return vmap_over(axis, run, dims, batched_dims(axis, run, operands, dims))(*operands)
