"""Checkpoints in a storage: in the host's memory, or in files.

The buffers have one entry for each checkpoint: the carry itself in the host's memory, or the ticket
of its file (`files`). Counters in the carry, which are no larger than a ticket, stay in the
buffers, because JAX treats values from a file as different for each example of a batch, and such a
value cannot index an array on an explicit mesh.

`jax.pure_callback` writes and reads files. To the program, a write is a pure function from a carry
to a ticket. XLA may move it, omit it if the ticket is unused, or run it twice. If files were named
by position, sweeps that XLA runs at the same time, or a batch of them, would overwrite each other's
files.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from jax_revolve._compat.memories import typed_as_on_host
from jax_revolve._compat.values import explicit_mesh, laid_out, laid_out_as, vary, varying_axes
from jax_revolve.schedule.storage import Disk, HostMemory, Place
from jax_revolve.storage import files
from jax_revolve.storage.buffers import Buffers, for_all, read, write


def in_storage(storage: Place, carry: list[Any], count: int) -> Buffers:
    """Empty buffers for `count` carries like this one."""
    if isinstance(storage, Disk):
        axes = frozenset[str]().union(*(varying_axes(jax.typeof(x)) for x in carry))
        # A random number, so that XLA does not merge two writes of the same carry: one sweep would
        # remove the file that the other still has to read.
        sweep = lax.rng_uniform(np.float32(1), np.float32(2**24), ()).astype(jnp.uint32)
        unused = jnp.zeros((count, files.TICKET), jnp.uint32).at[:, 0].set(sweep)
        unused = _on_mesh_of(carry, vary(unused, axes))
        counters = [jnp.broadcast_to(x, (count,)) for x in filter(_is_counter, carry)]
        return [unused] * len(_parts(carry, map(jax.typeof, carry))) + counters
    return [typed_as_on_host(jnp.broadcast_to(x, (count, *x.shape))) for x in carry]


def put(storage: Place, buffers: Buffers, carry: list[Any], store: jax.Array) -> Buffers:
    """Write a carry as number `store`."""
    if isinstance(storage, HostMemory):
        return write(buffers, carry, store)
    type_ = jax.ShapeDtypeStruct((files.TICKET,), jnp.uint32)
    write_files = _call(partial(_write_files, storage.directory), [type_])
    parts = _parts(carry, map(jax.typeof, carry))
    unused = read(buffers[: len(parts)], store)
    tickets = [write_files(*map(data_of, [t, *p]))[0] for t, p in zip(unused, parts, strict=True)]
    tickets = [_on_mesh_of(carry, ticket) for ticket in tickets]
    return write(buffers, [*tickets, *filter(_is_counter, carry)], store)


def get(
    storage: Place, buffers: Buffers, types: list[Any], store: jax.Array, is_last: jax.Array
) -> list[Any]:
    """Read carry number `store`, of these types, whose file is removed if this read `is_last`."""
    if isinstance(storage, HostMemory):
        return read(buffers, store)
    parts, stored = _parts(types, types), read(buffers, store)
    tickets, counters = stored[: len(parts)], stored[len(parts) :]
    carry: list[Any] = []
    for ticket, part in zip(tickets, parts, strict=True):
        like = [jax.eval_shape(data_of, jax.ShapeDtypeStruct(t.shape, t.dtype)) for t in part]
        data = _call(partial(_read_files, storage.directory, like), like)(ticket, is_last)
        found = [vary(from_data(d, t), varying_axes(t)) for d, t in zip(data, part, strict=True)]
        carry += map(laid_out_as, found, part)
    rest, counted = iter(carry), iter(counters)
    return [next(counted if _is_counter(t) else rest) for t in types]


def _parts(leaves: list[Any], types: Iterable[Any]) -> list[list[Any]]:
    """The leaves in each file: one file for all leaves except counters; on an explicit mesh, one
    for each. There, jax 0.12 runs a callback with several results on every device, although it asks
    for one, and the first call would remove the file."""
    in_files = [x for x in leaves if not _is_counter(x)]
    return [in_files] if explicit_mesh(types) is None else [[x] for x in in_files]


def _is_counter(value: Any) -> bool:
    return value.ndim == 0 and jnp.issubdtype(value.dtype, jnp.integer)


def _on_mesh_of(carry: list[Any], value: Any) -> Any:
    """The value, on the explicit mesh of a carry: `jax.vmap` over an axis of it needs that."""
    mesh = explicit_mesh(map(jax.typeof, carry))
    return value if mesh is None else laid_out(value, mesh, jax.P())


def _call(function: Callable[..., Any], like: list[Any]) -> Any:
    """`jax.pure_callback`, once for a batch: JAX's own `vmap` of it fails on an explicit mesh."""

    @custom_vmap
    def call(*operands: Any) -> Any:
        return jax.pure_callback(function, like, *operands)

    @call.def_vmap
    def _(axis_size: int, batched: Any, *operands: Any) -> Any:
        all_batched = map(partial(for_all, axis_size), operands, batched)
        of_all = [jax.ShapeDtypeStruct((axis_size, *t.shape), t.dtype) for t in like]
        results = _call(function, of_all)(*all_batched)
        # Lay out the results over the mesh as the batch is.
        batch = jax.typeof(operands[batched.index(True)])
        if (mesh := explicit_mesh([batch])) is not None:
            layout = jax.NamedSharding(mesh, jax.P(batch.sharding.spec[0]))
            results = [jax.sharding.reshard(x, layout) for x in results]
        return results, [True] * len(like)

    return call


def _write_files(directory: Any, unused: Any, *carry: Any) -> list[np.ndarray]:
    """Write a batch of carries. Returns their tickets, in place of as many unused ones."""
    leaves, batch = list(map(np.asarray, carry)), np.shape(unused)[:-1]
    sweep = _sweep(unused)
    examples = ([leaf[at] for leaf in leaves] for at in np.ndindex(batch))
    with files.all_of_sweep(directory, sweep):
        tickets = [files.write_file(directory, example, sweep) for example in examples]
    return [np.array(tickets, np.uint32).reshape(*batch, files.TICKET)]


def _read_files(directory: Any, like: list[Any], tickets: Any, is_last: Any) -> list[np.ndarray]:
    """The carries of a batch of tickets. A ticket without a file is from a branch that was not
    taken: where `jax.vmap` maps the predicate, JAX runs both branches and drops the results of one.
    They are NaN, so that it shows if they are used."""
    types = [(t.shape, np.dtype(t.dtype)) for t in like]
    tickets, is_last = np.asarray(tickets), np.asarray(is_last)
    batch = tickets.shape[:-1]
    with files.all_of_sweep(directory, _sweep(tickets)):
        examples = [
            files.read_file(directory, tickets[at], types, is_last=bool(is_last[at]))
            if np.any(tickets[at][1:])
            else [_missing(shape, dtype) for shape, dtype in types]
            for at in np.ndindex(batch)
        ]
    return [
        np.array([example[i] for example in examples], dtype).reshape((*batch, *shape))
        for i, (shape, dtype) in enumerate(types)
    ]


def _sweep(tickets: Any) -> int:
    return int(np.max(np.asarray(tickets)[..., 0], initial=0))


def _missing(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return np.full(shape, np.nan if jnp.issubdtype(dtype, jnp.inexact) else 0, dtype)


def data_of(value: Any) -> Any:
    """The value in a dtype of NumPy: a PRNG key as its bits."""
    is_key = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(value) if is_key else value


def from_data(data: Any, type_: Any) -> Any:
    """The value of this type from its `data_of`."""
    if not jnp.issubdtype(type_.dtype, jax.dtypes.prng_key):
        return data
    implementation = jax.random.key_impl(lax.full((), 0, type_.dtype))
    return jax.random.wrap_key_data(data, impl=implementation)
