"""Calls of Python functions from compiled programs."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


@cache
def callback_effects() -> frozenset[Any]:
    """The effects of a program that calls `jax.debug.callback`."""
    with jax.disable_jit(False):
        return frozenset(jax.make_jaxpr(lambda: jax.debug.callback(lambda: None))().effects)


def is_first_device() -> jax.Array | None:
    """Inside `jax.shard_map`, whether this is the first of the devices that run the same program;
    `None` elsewhere."""
    mesh = jax.sharding.get_abstract_mesh()
    axes = tuple(getattr(mesh, "manual_axes", ()))
    return jnp.all(lax.axis_index(axes) == 0) if axes else None
