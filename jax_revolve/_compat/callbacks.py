"""Calls of Python functions from compiled programs."""

from functools import cache
from inspect import getclosurevars
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat.interpreters import eager_constant_folding, in_own_settings
from jax_revolve._compat.jaxprs import call_jaxpr
from jax_revolve._compat.values import is_traced, on_the_device, with_weak_type


@cache
def callback_effects() -> frozenset[Any]:
    """The effects of a program that calls `jax.debug.callback`."""
    with jax.disable_jit(False):
        return frozenset(jax.make_jaxpr(lambda: jax.debug.callback(lambda: None))().effects)


class PythonCall(NamedTuple):
    """A function that a program calls (any object if unknown), and whether its result is used."""

    function: Any
    is_used: bool


def python_calls(lowered: jax.stages.Lowered) -> list[PythonCall]:
    """The calls of Python functions in a program, at any depth."""
    parameters = lowered._lowering.compile_args  # pyright: ignore[reportAttributeAccessIssue]
    return list(map(_python_call, (*parameters["host_callbacks"], *parameters["keepalive"])))


def _python_call(wrapped: Any) -> PythonCall:
    """The call of a function, which is in the closures of JAX's wrappers."""
    try:
        outer = getclosurevars(wrapped).nonlocals
        inner = getclosurevars(outer["callback"]).nonlocals
        return PythonCall(inner["callback"].callback_func, bool(outer["result_avals"]))
    except (TypeError, KeyError, AttributeError):
        return PythonCall(object(), True)


def is_first_device() -> jax.Array | None:
    """Inside `jax.shard_map`, whether this is its first device; `None` elsewhere."""
    axes, _ = _mapped_axes()
    return jnp.all(lax.axis_index(axes) == 0) if axes else None


def _mapped_axes() -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The mesh axes over which `jax.shard_map` maps, and the other axes."""
    mesh = jax.sharding.get_abstract_mesh()
    mapped = tuple(getattr(mesh, "manual_axes", ()))
    return mapped, tuple(axis for axis in mesh.axis_names if axis not in mapped)


@in_own_settings
def raise_if(wrong: jax.Array, value: Any, message: str) -> Any:
    """The value, with an error at run time if the value or its derivative is used. A derivative of
    `equinox.error_if` itself does not check. Equinox shows the stack of the first loop with this
    message, so the message should say where the loop is."""
    import equinox as eqx  # not needed by most programs

    if not is_traced(wrong) and not jax.device_get(wrong).any():  # explicit: a guard allows it
        return value
    mapped, others = _mapped_axes()
    if mapped and others:
        raise NotImplementedError(
            f"jax.shard_map maps over the axes {mapped} and leaves {others} to the compiler. JAX "
            "cannot call Python there, which an error at run time needs. Let jax.shard_map map "
            "over all axes, or turn the error off: throw=False, or no JAX_REVOLVE_CHECK."
        )

    def run(right: Any, wrong: Any) -> Any:
        return eqx.error_if(right, wrong, message)

    right = _ones(jnp.shape(wrong))
    if eager_constant_folding.value:  # `jax.ensure_compile_time_eval` would call back while tracing
        with eager_constant_folding(False):
            traced = jax.make_jaxpr(run)(right, wrong)
        (is_right,) = call_jaxpr(traced)(right, wrong)
    else:
        is_right = run(right, wrong)

    def check(x: Any) -> Any:
        aval = jax.typeof(x)
        if jnp.issubdtype(aval.dtype, jnp.bool_):
            return x & is_right.astype(aval.dtype)
        if jnp.issubdtype(aval.dtype, jnp.complexfloating):  # infinity times 1 + 0j is not itself
            return with_weak_type(lax.complex(check(jnp.real(x)), check(jnp.imag(x))), aval)
        if jnp.issubdtype(aval.dtype, jnp.number):
            return with_weak_type(x * is_right.astype(aval.dtype), aval)
        if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(
                check(jax.random.key_data(x)), impl=jax.random.key_impl(x)
            )
        return x

    return jax.tree.map(check, value)


@on_the_device
def _ones(shape: tuple[int, ...]) -> jax.Array:
    return jnp.ones(shape)
