"""The slices of the xs: of arrays, or of a function that is called one slice ahead."""

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import Any

import jax
import numpy as np
from jax import lax

from jax_revolve.host.placement import Values

Slices = Generator[Values, None, None]

Inputs = Callable[[Iterator[int]], Slices]
"""Entries of the xs, in the order in which a sweep needs them, to their slices."""


def slices(xs: Values, entries: Iterator[int]) -> Slices:
    """Slices of arrays. Arrays on the device are sliced there; a NumPy array stays in the host's
    memory, and a step gets its slice."""
    on_device = [x if isinstance(x, jax.Array) else None for x in xs]
    for entry in entries:
        pairs = zip(slices_of(on_device, entry), xs, strict=True)
        yield [np.asarray(x)[entry, ...] if own is None else own for own, x in pairs]


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
        self._known: dict[int, Any] = {first: function(first)}
        self.example, *self._type = _flat(self._known[first])
        self.tree = self._type[0]

    def __call__(self, entries: Iterator[int]) -> Slices:
        """As `Inputs`."""
        thread = ThreadPoolExecutor(1, "host_scan")
        ahead: Future[Values] | None = None
        try:
            for entry in chain(entries, [None]):
                due = ahead
                ahead = None if entry is None else thread.submit(self._fetch, entry)
                if due is not None:
                    yield due.result()
        finally:
            thread.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, entry: int) -> Values:
        known = self._known  # of the first entry of the forward sweep
        leaves, *type_ = _flat(known.pop(entry) if entry in known else self._function(entry))
        if type_ != self._type:
            raise TypeError(
                f"xs({entry}) must have the structure, the shapes and the dtypes of the first "
                f"slice, {_text(*self._type)}, but has {_text(*type_)}."
            )
        return leaves


def _flat(value: Any) -> tuple[Values, Any, list[Any]]:
    """Leaves as arrays, their structure, and their types."""
    leaves, tree = jax.tree.flatten(value)
    leaves = [x if isinstance(x, jax.Array) else np.asarray(x) for x in leaves]
    return leaves, tree, [(x.shape, jax.dtypes.canonicalize_dtype(x.dtype)) for x in leaves]


def _text(tree: Any, types: list[Any]) -> str:
    named = [f"{dtype}{list(shape)}" for shape, dtype in types]
    return str(jax.tree.unflatten(tree, named))
