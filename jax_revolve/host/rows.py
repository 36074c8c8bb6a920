"""One row for each step: slices of the xs on their way to the device, and rows from it."""

from collections import deque
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve._compat.values import AbstractValue
from jax_revolve.host.arrays import Values, is_key, replicated
from jax_revolve.storage.stores import data_of, from_data

IN_FLIGHT = 3
"""The rows that may be on their way from the device while steps go on."""


def slices_of(arrays: Values) -> Callable[[int], Values]:
    """A function from an entry to slices: on the device for its arrays, of NumPy's on the host."""
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
    """Whether xs are a function, rather than a pytree, of which some can be called."""
    return callable(xs) and jax.tree.leaves(xs) == [xs]


class Fetched:
    """Slices that a function returns. NumPy arrays are copied, because it may reuse a buffer."""

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


class Rows:
    """Rows on their way from the device: ys, and cotangents of xs. They arrive in the order in
    which they were put. They are kept as NumPy arrays, and PRNG keys on the device, unless a
    function takes them."""

    def __init__(
        self,
        length: int,
        types: list[AbstractValue],
        take: Callable[[int, Values], None] | None = None,
    ) -> None:
        """Rows of these types."""
        self._coming: deque[tuple[int, Values]] = deque()
        self._take = self._keep if take is None else take
        # Without shardings, which belong to the rows alone.
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
        """All rows that are kept."""
        self.arrive()
        pairs = zip(self.arrays, self._types, strict=True)
        return [from_data(jnp.asarray(x), t) if is_key(t) else x for x, t in pairs]
