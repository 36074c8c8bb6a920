"""The slices of the xs: of arrays, or of a function that is called one slice ahead."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax import lax

from jax_revolve.host.placement import Values

Fetch = Callable[[int], Values]
"""An entry of the xs to its slice."""


class Inputs:
    """The slices that a sweep needs, in its order.

    `look_ahead` gets the next one while the device computes a step: in this thread, which has the
    JAX settings of the caller, because Python is ahead of the device.
    """

    def __init__(self, fetch: Fetch, entries: Iterator[int]) -> None:
        self._fetch, self._entries = fetch, entries
        self._ahead: list[Values] = []

    def take(self) -> Values:
        """The next slice."""
        self.look_ahead()
        return self._ahead.pop()

    def look_ahead(self) -> None:
        """Have the next slice ready, if there is one."""
        entry = None if self._ahead else next(self._entries, None)
        if entry is not None:
            self._ahead.append(self._fetch(entry))


def slices(xs: Values) -> Fetch:
    """Slices of arrays. Arrays on the device are sliced there; a NumPy array stays in the host's
    memory, and a step gets its slice."""
    on_device = [x if isinstance(x, jax.Array) else None for x in xs]

    def fetch(entry: int) -> Values:
        pairs = zip(slices_of(on_device, entry), xs, strict=True)
        return [np.asarray(x)[entry, ...] if own is None else own for own, x in pairs]

    return fetch


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
    """Slices that a function returns. NumPy arrays are copied, so that the function may fill and
    return one buffer each time."""

    def __init__(self, function: Callable[[int], Any], first: int) -> None:
        """The function is called for entry `first`, as the example of all others."""
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
    named = [f"{dtype}{list(shape)}" for shape, dtype in types]
    return str(jax.tree.unflatten(tree, named))
