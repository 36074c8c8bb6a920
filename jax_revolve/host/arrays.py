"""Shardings, data in the host's memory, and checkpoints; slices of the xs on their way to the
device, and rows (ys, cotangents of xs) on their way back.

A process has the data of the shards on its own devices. If a sharding spans several processes, each
of them writes and reads its own shards.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jax_revolve._compat.values import AbstractValue, with_weak_type
from jax_revolve.schedule.storage import Disk, Place
from jax_revolve.storage import files
from jax_revolve.storage.stores import data_of, from_data

Values = list[Any]
Placing = Callable[[list[np.ndarray]], Values]


def sharding_of(value: Any) -> Any:
    """The sharding of an array over several devices; `None` for other values, which JAX places."""
    if isinstance(value, jax.Array) and len(value.sharding.device_set) > 1:
        return value.sharding
    return None


def put(value: Any, sharding: Any) -> Any:
    """The value with this sharding. Processes do not check that they put the same value."""
    if sharding is None:
        return jnp.asarray(value)
    if not getattr(value, "is_fully_addressable", True):
        return moved(sharding)(value)
    data = np.asarray(data_of(value))
    array = jax.make_array_from_callback(data.shape, sharding, data.__getitem__)
    return _of_type(array, jax.typeof(value), sharding)


def on_same_devices(values: Values) -> Values:
    """Copy arrays on a single device to all devices of the other arrays. NumPy arrays stay."""
    shardings = filter(None, map(sharding_of, values))
    mesh = next((s.mesh for s in shardings if isinstance(s, NamedSharding)), None)
    if mesh is None:
        return values
    everywhere = NamedSharding(mesh, PartitionSpec())
    is_alone = [isinstance(x, jax.Array) and sharding_of(x) is None for x in values]
    return [put(x, everywhere) if a else x for x, a in zip(values, is_alone, strict=True)]


def replicated(value: Any) -> Any:
    """The value, replicated on the devices of each process."""
    if not isinstance(value, jax.Array) or value.is_fully_addressable or value.is_fully_replicated:
        return value
    assert isinstance(value.sharding, NamedSharding)
    return moved(NamedSharding(value.sharding.mesh, PartitionSpec()))(value)


@lru_cache(maxsize=64)
def moved(sharding: Any) -> Any:
    """A function that gives an array this sharding, which may span processes."""
    return jax.jit(lambda x: x, out_shardings=sharding)


def on_host(values: Iterable[Any]) -> list[np.ndarray]:
    """This process's data, in NumPy's dtypes: each value, or each of its shards."""
    return [np.asarray(data_of(part)) for value in values for part in _parts(value)]


def _parts(value: Any) -> list[Any]:
    """The value, or its shards on the devices of this process, each once."""
    if sharding_of(value) is None:
        return [value]
    shards = {_index(s.index, value.shape): s.data for s in value.addressable_shards}
    return [shards[index] for index in sorted(shards)]


def _index(slices: Any, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Where a shard begins and ends on each axis."""
    return tuple(s.indices(n)[:2] for s, n in zip(slices, shape, strict=False))


def placing(values: Values) -> Placing:
    """A function from data `on_host` to values of these types and shardings."""
    places = [(jax.typeof(x), sharding_of(x)) for x in values]

    def on_device(data: list[np.ndarray]) -> Values:
        left = iter(data)
        return [_joined(left, *place) for place in places]

    return on_device


def _joined(data: Any, type_: AbstractValue, sharding: Any) -> Any:
    if sharding is None:
        return _of_type(jnp.asarray(next(data)), type_, None)
    slices = sharding.addressable_devices_indices_map(type_.shape).values()
    parts = {index: next(data) for index in sorted({_index(s, type_.shape) for s in slices})}
    inner = next(iter(parts.values())).shape[len(type_.shape) :]  # the words of a PRNG key
    value = jax.make_array_from_callback(
        type_.shape + inner, sharding, lambda index: parts[_index(index, type_.shape)]
    )
    return _of_type(value, type_, sharding)


def _of_type(data: Any, type_: AbstractValue, sharding: Any) -> Any:
    """The value with these data, of exactly this type: for another one, JAX would recompile."""
    if not is_key(type_):
        return with_weak_type(data, type_)
    keys = from_data(data, type_)
    return keys if sharding is None else moved(sharding)(keys)


def is_key(value: Any) -> bool:
    return jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


@dataclass(eq=False)
class Checkpoint:
    """The restart set of a carry: where it is, its bytes there, and how to get it on the device and
    in the host's memory. A file lives as long as this object, unless it is the `file` of a saved
    run."""

    level: str
    nbytes: int
    on_device: Callable[[], Values]
    on_host: Callable[[], list[np.ndarray]]
    file: Any = None


def keep(storage: Place | None, values: Values) -> Checkpoint:
    """A checkpoint in this storage; without a storage, the arrays, which no step changes."""
    if storage is None:
        nbytes = sum(x.nbytes for x in values)
        return Checkpoint("on the device", nbytes, lambda: values, partial(on_host, values))
    data, place = on_host(values), placing(values)
    nbytes = sum(x.nbytes for x in data)
    if not isinstance(storage, Disk):
        return Checkpoint("in host memory", nbytes, lambda: place(data), lambda: data)
    directory, like = storage.directory, [(x.shape, x.dtype) for x in data]
    first, second, checksum = files.write_file(directory, data).tolist()
    ticket = first, second, checksum
    read = partial(files.read_file, directory, ticket, like, is_last=False)
    checkpoint = Checkpoint("on disk", nbytes, lambda: place(read()), read)
    weakref.finalize(checkpoint, files.remove_file, directory, ticket)
    return checkpoint


# Rows


IN_FLIGHT = 3
"""The most rows on their way from the device while steps go on."""


def slices_of(arrays: Values) -> Callable[[int], Values]:
    """A function from an index to slices: on the device, or on the host for NumPy arrays."""
    on_device = [x if isinstance(x, jax.Array) else None for x in arrays]
    is_any = any(x is not None for x in on_device)

    def slices(entry: int) -> Values:
        rows = _slices(on_device, np.int32(entry)) if is_any else on_device
        return [
            row if x is None or isinstance(x, jax.Array) else np.asarray(x)[entry, ...]
            for row, x in zip(rows, arrays, strict=True)
        ]

    return slices


@jax.jit
def _slices(arrays: Values, entry: Any) -> Values:
    return [
        None if x is None else lax.dynamic_index_in_dim(x, entry, keepdims=False) for x in arrays
    ]


def is_function(xs: Any) -> bool:
    """Whether xs are a function, rather than a pytree that happens to be callable."""
    return callable(xs) and jax.tree.leaves(xs) == [xs]


class Fetched:
    """Slices that a function returns. NumPy arrays are copied, because it may reuse a buffer."""

    def __init__(self, function: Callable[[int], Any], first: int) -> None:
        """Calls the function for entry `first`, as an example of the others."""
        self.function = function
        self.example, *self._type = _flat(function(first))
        self.tree = self._type[0]
        self._known = {first: self.example}

    def __call__(self, entry: int) -> Values:
        if entry in self._known:  # the first of the forward sweep
            return self._known.pop(entry)
        leaves, *type_ = _flat(self.function(entry))
        if type_ != self._type:
            raise TypeError(
                f"xs({entry}) must have the structure, the shapes and the dtypes of the first "
                f"slice, {_text(*self._type)}, but has {_text(*type_)}."
            )
        return leaves


def _flat(value: Any) -> tuple[Values, Any, list[Any]]:
    """Leaves as arrays, their structure, and their types."""
    leaves, tree = jax.tree.flatten(value)
    leaves = [x if isinstance(x, jax.Array) else np.array(x) for x in leaves]
    return leaves, tree, [(x.shape, jax.dtypes.canonicalize_dtype(x.dtype)) for x in leaves]


def _text(tree: Any, types: list[Any]) -> str:
    """Not as a pytree of texts, of which a user's class may not be made."""
    return f"{', '.join(f'{dtype}{list(shape)}' for shape, dtype in types)} in {tree}"


class Rows:
    """Rows on their way from the device: ys, and cotangents of xs. They arrive in the order of
    `put`, and are stored in NumPy arrays unless a function takes them."""

    def __init__(
        self,
        length: int,
        types: list[AbstractValue],
        take: Callable[[int, Values], None] | None = None,
    ) -> None:
        self._coming: deque[tuple[int, Values]] = deque()
        self._take = self._keep if take is None else take
        # Without the rows' shardings, which do not apply to the stacked arrays.
        like = [jax.ShapeDtypeStruct((length, *t.shape), t.dtype) for t in types if take is None]
        self._types, data = like, [jax.eval_shape(data_of, t) for t in like]
        self.arrays = [np.empty(t.shape, t.dtype) for t in data]
        """The data of the rows that have arrived."""
        self.new: tuple[int, int] | None = None
        """The least and the greatest entry that arrived since this was reset."""

    def put(self, at: int, leaves: Values) -> None:
        """A row, which arrives later."""
        leaves = list(map(replicated, leaves))
        for leaf in map(data_of, leaves):
            leaf.copy_to_host_async()
        self._coming.append((at, leaves))
        self.arrive(but=IN_FLIGHT)

    def arrive(self, *, but: int = 0) -> None:
        """Wait for all rows but the last few."""
        while len(self._coming) > but:
            at, leaves = self._coming.popleft()
            self._take(at, [x if is_key(x) else np.asarray(x) for x in leaves])

    def _keep(self, at: int, leaves: Values) -> None:
        for array, leaf in zip(self.arrays, leaves, strict=True):
            array[at] = data_of(leaf)
        first, last = self.new or (at, at)
        self.new = min(first, at), max(last, at)

    def result(self) -> Values:
        self.arrive()
        pairs = zip(self.arrays, self._types, strict=True)
        return [from_data(jnp.asarray(x), t) if is_key(t) else x for x, t in pairs]
