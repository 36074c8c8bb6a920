"""Calls of Python functions from compiled programs."""

from functools import cache
from inspect import getclosurevars
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


@cache
def callback_effects() -> frozenset[Any]:
    """The effects of a program that calls `jax.debug.callback`."""
    with jax.disable_jit(False):
        return frozenset(jax.make_jaxpr(lambda: jax.debug.callback(lambda: None))().effects)


class PythonCall(NamedTuple):
    """A function that a program calls, any object if unknown, and whether its result counts."""

    function: Any
    is_used: bool


def python_calls(lowered: jax.stages.Lowered) -> list[PythonCall]:
    """The calls of Python functions in a program, at any depth."""
    parameters = lowered._lowering.compile_args  # pyright: ignore[reportAttributeAccessIssue]
    return list(map(_python_call, (*parameters["host_callbacks"], *parameters["keepalive"])))


def _python_call(wrapped: Any) -> PythonCall:
    """The call of a function that JAX has wrapped in its own, whose closures have the function."""
    try:
        outer = getclosurevars(wrapped).nonlocals
        inner = getclosurevars(outer["callback"]).nonlocals
        return PythonCall(inner["callback"].callback_func, bool(outer["result_avals"]))
    except (TypeError, KeyError, AttributeError):
        return PythonCall(object(), True)


def is_first_device() -> jax.Array | None:
    """Inside `jax.shard_map`, whether this is its first device; `None` elsewhere."""
    mesh = jax.sharding.get_abstract_mesh()
    axes = tuple(getattr(mesh, "manual_axes", ()))
    return jnp.all(lax.axis_index(axes) == 0) if axes else None
