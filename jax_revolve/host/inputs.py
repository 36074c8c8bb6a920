"""The slices of the xs: of arrays, or of a function that is called one slice ahead."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import jax
import numpy as np
from jax import lax

from jax_revolve.host.placement import Values


class Inputs(Protocol):
    """What a step takes besides the carry."""

    def begin(self, order: Iterator[int]) -> None:
        """A sweep begins that needs these entries in this order."""

    def at(self, entry: int) -> Values:
        """The next of them."""
        ...

    def end(self) -> None:
        """The sweep is over."""


class Slices:
    """Slices of arrays. Arrays on the device are sliced there; a NumPy array stays in the host's
    memory, and a step gets its slice."""

    def __init__(self, xs: Values) -> None:
        self._xs = [x if isinstance(x, jax.Array) else np.asarray(x) for x in xs]
        self._on_device = [x for x in self._xs if isinstance(x, jax.Array)]

    def begin(self, order: Iterator[int]) -> None:
        """Nothing is fetched ahead."""

    def at(self, entry: int) -> Values:
        on_device = iter(slices_of(self._on_device, entry))
        return [next(on_device) if isinstance(x, jax.Array) else x[entry, ...] for x in self._xs]

    def end(self) -> None:
        """Nothing is left over."""


def slices_of(arrays: Values, entry: int) -> Values:
    """The entry of each array on the device; `None` for `None`."""
    if all(x is None for x in arrays):
        return arrays
    return _slices(arrays, np.int32(entry))


@jax.jit
def _slices(arrays: Values, entry: Any) -> Values:
    return [
        None if x is None else lax.dynamic_index_in_dim(x, entry, keepdims=False) for x in arrays
    ]


class Fetched:
    """Slices that a function returns. It is called in a thread, for the next step while a step
    runs. Its exceptions are raised where the slice is needed."""

    def __init__(self, function: Callable[[int], Any], first: int) -> None:
        """The function is called for entry `first`, as the example of all others."""
        self._function = function
        example = function(first)
        self._known: tuple[int, Any] | None = (first, example)
        leaves, self.tree = jax.tree.flatten(example)
        self.example: Values = [x if isinstance(x, jax.Array) else np.asarray(x) for x in leaves]
        self._types = [(x.shape, jax.dtypes.canonicalize_dtype(x.dtype)) for x in self.example]
        self._thread: ThreadPoolExecutor | None = None
        self._next: tuple[int, Future[Values]] | None = None

    def begin(self, order: Iterator[int]) -> None:
        self._thread, self._order = ThreadPoolExecutor(1, "host_scan"), order
        self._fetch_next()

    def at(self, entry: int) -> Values:
        assert self._next is not None
        assert self._next[0] == entry
        leaves = self._next[1].result()
        self._fetch_next()
        return leaves

    def end(self) -> None:
        assert self._thread is not None
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _fetch_next(self) -> None:
        assert self._thread is not None
        entry = next(self._order, None)
        self._next = None if entry is None else (entry, self._thread.submit(self._fetch, entry))

    def _fetch(self, entry: int) -> Values:
        known, self._known = self._known, None
        result = known[1] if known and known[0] == entry else self._function(entry)
        leaves, tree = jax.tree.flatten(result)
        found = [x if isinstance(x, jax.Array) else np.asarray(x) for x in leaves]
        types = [(x.shape, jax.dtypes.canonicalize_dtype(x.dtype)) for x in found]
        if (tree, types) != (self.tree, self._types):
            raise TypeError(
                f"xs({entry}) must have the structure, the shapes and the dtypes of the first "
                f"slice, {_text(self.tree, self._types)}, but has {_text(tree, types)}."
            )
        return found


def _text(tree: Any, types: list[Any]) -> str:
    named = [f"{dtype}{list(shape)}" for shape, dtype in types]
    return str(jax.tree.unflatten(tree, named))
