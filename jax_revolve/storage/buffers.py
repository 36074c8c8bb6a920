"""Buffers: arrays with a leading axis of slots or steps, read and written one entry at a time.

All computation is on the device: a buffer in the host's memory is written from there and read back
to there.
"""

from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap
from jax.dtypes import float0

from jax_revolve._compat.memories import is_on_host, to_device, to_host, typed_as_on_host
from jax_revolve._compat.values import AbstractValue, explicit_mesh, tangent_type, zeros

Buffers: TypeAlias = list[Any]
"""One buffer for each leaf."""


def read(buffers: list[Any], index: Any) -> list[Any]:
    """The entry of each buffer; `None` for a buffer that is `None`."""
    return [None if b is None else _read(b, index) for b in buffers]


def first_of(buffers: list[Any]) -> list[AbstractValue]:
    """The types of the entries of buffers."""
    return list(jax.make_jaxpr(lambda: read(buffers, 0))().out_avals)


def write(buffers: list[Any], values: list[Any], index: Any) -> list[Any]:
    """The buffers with these entries."""
    return [_write(b, v, index) for b, v in zip(buffers, values, strict=True)]


def _read(buffer: Any, index: Any) -> Any:
    if _stays_a_slice(buffer):
        entry = _at(partial(lax.dynamic_index_in_dim, keepdims=False))
        found = entry(jnp.asarray(index), buffer)
        return to_device(found) if is_on_host(buffer) else found
    sizes = (1, *buffer.shape[1:])
    entry = lax.dynamic_slice(buffer, _first(buffer, index), sizes, allow_negative_indices=False)
    return lax.squeeze(entry, (0,))


def _write(buffer: Any, value: Any, index: Any) -> Any:
    if _stays_a_slice(buffer):
        value = to_host(value) if is_on_host(buffer) else value
        return _at(lax.dynamic_update_index_in_dim)(jnp.asarray(index), buffer, value)
    value = lax.expand_dims(value, (0,))
    first = _first(buffer, index)
    return lax.dynamic_update_slice(buffer, value, first, allow_negative_indices=False)


def _stays_a_slice(buffer: Any) -> bool:
    """Whether `jax.vmap` must not make a gather or a scatter of a slice: see `_at`."""
    spec = jax.typeof(buffer).sharding.spec
    return is_on_host(buffer) or bool(spec.reduced or spec.unreduced)


def _first(buffer: Any, index: Any) -> list[Any]:
    """Where an entry begins. No index is negative, so JAX need not check and add the length."""
    zero = 0 if isinstance(index, int) else index.dtype.type(0)
    return [index, *[zero] * (buffer.ndim - 1)]


def _at(function: Any, axis: int = 0) -> Any:
    """`function(buffer, *value, index, axis)`, to be called with the index first.

    JAX batches a slice at an index as a gather, and its update as a scatter, which both need the
    index in the memory of the buffer, which may be the host's, and a type that is not reduced over
    a mesh. Here all examples have the same index, so a slice of a batched buffer remains a slice,
    one axis further to the right.

    It is linear in the arrays. JAX's own derivative of a `custom_vmap` function calls its rule for
    what is batched in both values and tangents, without end if only one of them is.
    """

    @custom_vmap
    def call(index: Any, *arrays: Any) -> Any:
        return function(*arrays, index, axis)

    @call.def_vmap
    def _(axis_size: int, batched: Any, index: Any, *arrays: Any) -> Any:
        assert not batched[0]
        buffer, *value = map(partial(for_all, axis_size), arrays, batched[1:])
        if value:  # that is to be written
            buffer = _sharded_as(value[0], buffer, axis + 1)
        return _at(function, axis + 1)(index, buffer, *value), True

    @jax.custom_jvp
    def linear(index: Any, *arrays: Any) -> Any:
        return call(index, *arrays)

    @linear.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        index, result = primals[0], linear(*primals)
        if tangent_type(result).dtype == float0:
            return result, np.zeros(result.shape, float0)
        return result, linear(index, *map(_beside, tangents[1:], primals[1:]))

    return linear


def _beside(tangent: Any, value: Any) -> Any:
    """The tangent in the memory of its value. With `jax_custom_jvp3`, JAX makes zeros on the
    device."""
    is_beside = is_on_host(tangent) or not is_on_host(value)
    return tangent if is_beside else typed_as_on_host(tangent)


def _sharded_as(value: Any, buffer: Any, axis: int) -> Any:
    """The buffer, laid out over an explicit mesh like its entries along this axis."""
    mesh, spec = explicit_mesh([jax.typeof(value)]), jax.typeof(value).sharding.spec
    parts = spec.partitions
    wanted = spec.update(partitions=(*parts[:axis], None, *parts[axis:]))
    if mesh is None or jax.typeof(buffer).sharding.spec == wanted:
        return buffer
    return jax.sharding.reshard(buffer, jax.NamedSharding(mesh, wanted))


def for_all(axis_size: int, value: Any, is_batched: bool) -> Any:
    """The value with a leading axis of examples."""
    return value if is_batched else jnp.broadcast_to(value, (axis_size, *value.shape))


def zeros_among(others: list[Any], aval: AbstractValue) -> Any:
    """Zeros of the type `aval`. Where `jax.vmap` maps any of the others, each example has its own,
    because JAX cannot broadcast a type that is reduced over a mesh once a loop needs that."""
    spec = aval.sharding.spec
    if not (spec.reduced or spec.unreduced):
        return zeros(aval)

    @custom_vmap
    def make(others: list[Any]) -> Any:
        del others
        return zeros(aval)

    @make.def_vmap
    def _(axis_size: int, batched: Any, others: list[Any]) -> Any:
        examples = jax.typeof(others[batched[0].index(True)]).sharding.spec.partitions[0]
        sharding = aval.sharding.update(spec=spec.update(partitions=(examples, *spec.partitions)))
        of_all = aval.update(shape=(axis_size, *aval.shape), sharding=sharding)
        return zeros_among(others, of_all), True

    @jax.custom_jvp
    def made(others: list[Any]) -> Any:
        return make(lax.stop_gradient(others))

    @made.defjvp
    def _(primals: tuple[list[Any]], _: Any) -> Any:  # in a loop's carry, zeros have tangents
        (others,) = primals
        return made(others), zeros_among(others, aval.to_tangent_aval())

    return made(others)
