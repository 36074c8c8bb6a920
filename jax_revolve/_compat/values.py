"""Types of values, tangents and cotangents."""

from collections.abc import Iterable, Sequence
from functools import partial
from math import prod
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray as ShapedArray
from jax.core import Tracer
from jax.custom_derivatives import SymbolicZero as SymbolicZero
from jax.extend.core.primitives import convert_element_type_p
from jax.interpreters import ad
from jax.sharding import NamedSharding

T = TypeVar("T")

AbstractValue: TypeAlias = Any
"""A `jax.core.ShapedArray`: shape, dtype, weak type, sharding, varying axes."""


def is_jit_disabled() -> bool:
    return jax.config.jax_disable_jit  # pyright: ignore[reportAttributeAccessIssue]


def is_traced(value: Any) -> bool:
    """Whether a value is a tracer, whose numbers are unknown."""
    return isinstance(value, Tracer)


_AT_ONCE: Any = jax.Inline.JAX_EARLY if hasattr(jax, "Inline") else True  # before jax 0.12

on_the_device = partial(jax.jit, static_argnums=0, inline=_AT_ONCE)
"""Decorates a function that makes constants, of a static argument. Outside `jax.jit`, they would be
sent to the device, which `jax.transfer_guard` may disallow. In a program, there is no call."""


@on_the_device
def int32(number: int) -> jax.Array:
    return jnp.int32(number)


# Derivatives


def is_zero(tangent: Any) -> bool:
    """Whether a tangent or cotangent is a symbolic zero, as derivative rules get them."""
    return isinstance(tangent, ad.Zero | SymbolicZero)


is_linear_input = ad.is_undefined_primal
"""Whether a transposition rule must return the cotangent of this operand."""

add_cotangents = ad.add_jaxvals
"""The sum of two cotangents, as their dtype defines it."""


def added(total: Any, value: Any) -> Any:
    """The sum of two cotangents, either of which may be `None`."""
    if total is None or value is None:
        return value if total is None else total
    return add_cotangents(total, value)


def tangent_type(primal: Any) -> AbstractValue:
    return jax.typeof(primal).to_tangent_aval()


def cotangent_type(primal: Any) -> AbstractValue:
    """The type of a value's cotangents, unreduced over mesh axes where the value is reduced."""
    return jax.typeof(primal).to_ct_aval()


def symbolic_zero(aval: AbstractValue) -> Any:
    """The symbolic zero tangent of values of type `aval`, as rules of primitives return it."""
    return ad.Zero(aval.to_tangent_aval())


@on_the_device
def zeros(aval: AbstractValue) -> jax.Array:
    """Zeros of the type `aval`, with its sharding, varying axes and memory; also PRNG keys."""
    if getattr(aval, "memory_space", None) == jax.memory.Space.Host:
        own = zeros(aval.update(memory_space=jax.memory.Space.Device))
        return jax.device_put(own, jax.memory.Space.Host)
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):  # their tangents are not keys
        made = vary(laid_out_as(lax.full(aval.shape, 0, aval.dtype), aval), varying_axes(aval))
    else:
        made = ad.zeros_like_aval(aval)
    # jax 0.12 loses the mesh where no mesh is set.
    mesh = aval.sharding.mesh
    return made if mesh.empty else laid_out(made, mesh, aval.sharding.spec)


def instantiate(tangent: Any) -> Any:
    """A tangent or cotangent as an array, even if it is a symbolic zero."""
    return zeros(tangent.aval) if is_zero(tangent) else tangent


# Types


def is_array_type(aval: AbstractValue) -> bool:
    """Whether values of this type are arrays, rather than mutable references or tokens."""
    return isinstance(aval, ShapedArray)


SYMBOLIC_SIZE = 64
"""The size that a symbolic axis of `jax.export` counts as when we compare plans."""


def is_symbolic(aval: AbstractValue) -> bool:
    """Whether the size of an axis is a symbol of `jax.export`, and so unknown."""
    return not all(isinstance(n, int) for n in aval.shape)


def shape_on_a_device(aval: AbstractValue) -> tuple[int, ...]:
    """The shape of a device's shard of a value of this type, as far as the type shows it: only for
    explicit mesh axes. Axes of symbolic size count as `SYMBOLIC_SIZE`."""
    sizes = aval.sharding.mesh.shape

    def shards(axes: Any) -> int:
        names = axes if isinstance(axes, tuple) else (axes,)
        return prod(sizes[name] for name in names if name is not None)

    known = (n if isinstance(n, int) else SYMBOLIC_SIZE for n in aval.shape)
    return tuple(
        -(-n // shards(s)) for n, s in zip(known, aval.sharding.spec.partitions, strict=True)
    )


def bytes_of(avals: Iterable[AbstractValue]) -> int:
    """The bytes of values of these types on a device."""
    return sum(prod(shape_on_a_device(aval)) * aval.dtype.itemsize for aval in avals)


def varying_axes(aval: AbstractValue) -> frozenset[str]:
    """The axes of a mesh over which values of this type may differ, inside `jax.shard_map`."""
    manual = getattr(aval, "manual_axis_type", None)  # references and tokens have none
    return frozenset() if manual is None else manual.varying


def vary(value: Any, axes: frozenset[str]) -> Any:
    """The value, typed as varying over these axes, too."""
    missing = tuple(axes - varying_axes(jax.typeof(value)))
    return lax.pcast(value, missing, to="varying") if missing else value


def explicit_mesh(avals: Iterable[AbstractValue]) -> Any | None:
    """The first mesh of these types that has explicit axes, if any."""
    meshes = [aval.sharding.mesh for aval in avals if not aval.sharding.mesh.empty]
    explicit = jax.sharding.AxisType.Explicit
    return next((mesh for mesh in meshes if explicit in mesh.axis_types), None)


def is_outside_the_mesh(avals: Iterable[AbstractValue]) -> bool:
    """Whether one of these types has a mesh with other kinds of axes than the current mesh."""
    kinds = jax.sharding.get_abstract_mesh().axis_types
    meshes = [aval.sharding.mesh for aval in avals]
    return bool(kinds) and any(mesh.axis_types not in ((), kinds) for mesh in meshes)


def laid_out(value: Any, mesh: Any, spec: Any) -> Any:
    """The value, laid out over a mesh if it belongs to none yet."""
    if not jax.typeof(value).sharding.mesh.empty:
        return value
    return jax.sharding.reshard(value, NamedSharding(mesh, spec))


def laid_out_as(value: Any, aval: AbstractValue) -> Any:
    """The value, laid out as this type is over an explicit mesh."""
    mesh = explicit_mesh([aval])
    if mesh is None:
        return value
    return jax.sharding.reshard(value, NamedSharding(mesh, aval.sharding.spec))


def with_weak_type(value: Any, aval: AbstractValue) -> Any:
    """The value, weakly typed if `aval` is. Loop variables, buffers and sums lose weak types."""
    if not aval.weak_type or jax.typeof(value).weak_type:
        return value
    return convert_element_type_p.bind(value, new_dtype=value.dtype, weak_type=True, sharding=None)


def exactly_of_type(value: Any, aval: AbstractValue) -> Any:
    """The value, weakly typed exactly if `aval` is."""
    if aval.weak_type or not jax.typeof(value).weak_type:
        return with_weak_type(value, aval)
    return convert_element_type_p.bind(value, new_dtype=value.dtype, weak_type=False, sharding=None)


def as_array(value: Any) -> Any:
    """The value itself, or a Python number as an array."""
    if isinstance(value, jax.Array) or not is_array_type(jax.typeof(value)):
        return value
    aval = jax.typeof(value)
    return with_weak_type(jnp.asarray(value, aval.dtype), aval)


# Lists of values, and masks that choose among them


def pick(values: Sequence[T], mask: Sequence[bool]) -> list[T]:
    """The values that the mask marks."""
    return [value for value, chosen in zip(values, mask, strict=True) if chosen]


def substitute(values: Sequence[T], mask: Sequence[bool], chosen: Sequence[T]) -> list[T]:
    """The values, with those that the mask marks replaced in order."""
    replacements = iter(chosen)
    return [next(replacements) if m else v for v, m in zip(values, mask, strict=True)]


def spread(values: Sequence[Any], mask: Sequence[bool]) -> list[Any]:
    """The values where the mask marks, in order, and `None` elsewhere."""
    return substitute([None] * len(mask), mask, values)
