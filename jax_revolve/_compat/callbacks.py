"""Calls of Python functions from compiled programs."""

from functools import cache
from inspect import getclosurevars
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


@cache
def callback_effects() -> frozenset[Any]:
    """The effects of a program that calls `jax.debug.callback`."""
    with jax.disable_jit(False):
        return frozenset(jax.make_jaxpr(lambda: jax.debug.callback(lambda: None))().effects)


def functions_called(lowered: jax.stages.Lowered) -> list[Any]:
    """The Python functions that a program calls at any depth, and whose results it uses, instead of
    printing something for example; `object()` for one that cannot be found out, which differs from
    all others."""
    parameters = lowered._lowering.compile_args  # pyright: ignore[reportAttributeAccessIssue]
    called = (*parameters["host_callbacks"], *parameters["keepalive"])
    return [f for f in map(_function, called) if f is not None]


def _function(wrapped: Any) -> Any:
    """The function in JAX's closures around it, `None` if it has no results."""
    try:
        outer = getclosurevars(wrapped).nonlocals
        inner = getclosurevars(outer["callback"]).nonlocals
        return inner["callback"].callback_func if outer["result_avals"] else None
    except (TypeError, KeyError, AttributeError):
        return object()


def is_first_device() -> jax.Array | None:
    """Inside `jax.shard_map`, whether this is the first of the devices that run the same program;
    `None` elsewhere."""
    mesh = jax.sharding.get_abstract_mesh()
    axes = tuple(getattr(mesh, "manual_axes", ()))
    return jnp.all(lax.axis_index(axes) == 0) if axes else None
