"""Checkpoints in a storage: in the host's memory, or in files.

The buffers have one entry for each checkpoint: the carry itself in the host's memory, or the ticket
of its file (`files`).

Files are written and read by `jax.pure_callback`. To the program, a write is a pure function from a
carry to a ticket. XLA may move it, omit it if the ticket is not needed, or run it twice, without
harm. If files were named by position instead, two sweeps that XLA runs at the same time, or a batch
of them, would overwrite each other's files.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_revolve._compat import typed_as_on_host, vary, varying_axes
from jax_revolve.schedule.storage import Disk, Storage
from jax_revolve.storage import files
from jax_revolve.storage.buffers import Buffers, read, write


def in_storage(storage: Storage, carry: list[Any], count: int) -> Buffers:
    """Empty buffers for `count` carries like this one."""
    if isinstance(storage, Disk):
        axes = frozenset[str]().union(*(varying_axes(jax.typeof(x)) for x in carry))
        return [vary(jnp.zeros((count, files.TICKET), jnp.uint32), axes)]
    return [typed_as_on_host(jnp.broadcast_to(x, (count, *x.shape))) for x in carry]


def put(storage: Storage, stores: Buffers, carry: list[Any], store: jax.Array) -> Buffers:
    """Store a carry as number `store`."""
    if not isinstance(storage, Disk):
        return write(stores, carry, store)
    write_file = partial(_write_file, storage.directory)
    type_ = jax.ShapeDtypeStruct((files.TICKET,), jnp.uint32)
    ticket = jax.pure_callback(write_file, type_, *map(data_of, carry), vmap_method="sequential")
    return write(stores, [ticket], store)


def get(
    storage: Storage, stores: Buffers, types: list[Any], store: jax.Array, is_last: jax.Array
) -> list[Any]:
    """Carry number `store`, which has these types. It may be removed if this read `is_last`."""
    if not isinstance(storage, Disk):
        return read(stores, store)
    (ticket,) = read(stores, store)
    like = [jax.eval_shape(data_of, jax.ShapeDtypeStruct(t.shape, t.dtype)) for t in types]
    read_file = partial(_read_file, storage.directory, like)
    data = jax.pure_callback(read_file, like, ticket, is_last, vmap_method="sequential")
    return [vary(from_data(d, t), varying_axes(t)) for d, t in zip(data, types, strict=True)]


def _write_file(directory: Any, *carry: Any) -> np.ndarray:
    return files.write_file(directory, list(map(np.asarray, carry)))


def _read_file(directory: Any, like: list[Any], ticket: Any, is_last: Any) -> list[np.ndarray]:
    types = [(t.shape, np.dtype(t.dtype)) for t in like]
    return files.read_file(directory, map(int, np.asarray(ticket)), types, is_last=bool(is_last))


def data_of(value: Any) -> Any:
    """The value in a dtype of NumPy: a PRNG key as its bits."""
    is_key = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(value) if is_key else value


def from_data(data: Any, type_: Any) -> Any:
    """The value of this type from its `data_of`."""
    if not jnp.issubdtype(type_.dtype, jax.dtypes.prng_key):
        return data
    implementation: list[Any] = []
    jax.eval_shape(
        lambda key: implementation.append(jax.random.key_impl(key)),
        jax.ShapeDtypeStruct(type_.shape, type_.dtype),
    )
    return jax.random.wrap_key_data(data, impl=implementation[0])
