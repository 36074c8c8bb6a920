"""One row for each step, in the host's memory: ys, and the cotangents of xs."""

from collections import deque
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_revolve._compat import AbstractValue
from jax_revolve.host.placement import Values, readable
from jax_revolve.storage.stores import data_of, from_data

IN_FLIGHT = 3
"""The rows that may be on their way from the device while steps go on."""


class Arriving:
    """Rows on their way from the device. They arrive in the order in which they were put."""

    def __init__(self) -> None:
        self._coming: deque[tuple[int, Values]] = deque()

    def put(self, at: int, leaves: Values) -> None:
        """A row, which arrives later."""
        leaves = list(map(readable, leaves))
        for leaf in map(data_of, leaves):
            if isinstance(leaf, jax.Array):  # a step of NumPy may give its own arrays
                leaf.copy_to_host_async()
        self._coming.append((at, leaves))
        while len(self._coming) > IN_FLIGHT:
            self._arrived(*self._coming.popleft())

    def arrive(self) -> None:
        """Wait for all rows."""
        while self._coming:
            self._arrived(*self._coming.popleft())

    def result(self) -> Values:
        """What is kept of all rows."""
        raise NotImplementedError

    def _arrived(self, at: int, leaves: Values) -> None:
        raise NotImplementedError


class Rows(Arriving):
    """Rows that are kept in arrays."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length = length
        self._types: list[AbstractValue] = []
        self._arrays: list[np.ndarray] | None = None

    def result(self) -> Values:
        """NumPy arrays, and PRNG keys on the device."""
        self.arrive()
        return list(map(_value, self._arrays or [], self._types))

    def saved(self, at: slice) -> list[np.ndarray]:
        """Some of the rows, which have arrived, for a file."""
        return [array[at] for array in self._arrays or []]

    def restore(self, at: slice, rows: list[np.ndarray], types: list[AbstractValue]) -> None:
        """Rows of these types, from a file."""
        self._types = types
        for array, values in zip(self._like(rows, 1), rows, strict=True):
            array[at] = values

    def _arrived(self, at: int, leaves: Values) -> None:
        self._types = list(map(jax.typeof, leaves))
        data = [np.asarray(data_of(leaf)) for leaf in leaves]
        for array, row in zip(self._like(data, 0), data, strict=True):
            array[at] = row

    def _like(self, rows: list[np.ndarray], first: int) -> list[np.ndarray]:
        if self._arrays is None:
            self._arrays = [np.empty((self._length, *x.shape[first:]), x.dtype) for x in rows]
        return self._arrays


def _value(array: np.ndarray, type_: AbstractValue) -> Any:
    if not jnp.issubdtype(type_.dtype, jax.dtypes.prng_key):
        return array
    keys = jax.ShapeDtypeStruct((len(array), *type_.shape), type_.dtype)
    return from_data(jnp.asarray(array), keys)


class Consumed(Arriving):
    """Rows that a function takes."""

    def __init__(self, consume: Callable[[int, Values], None]) -> None:
        super().__init__()
        self._consume = consume

    def result(self) -> Values:
        """Nothing."""
        self.arrive()
        return []

    def _arrived(self, at: int, leaves: Values) -> None:
        self._consume(at, list(map(_on_host, leaves)))


def _on_host(leaf: Any) -> Any:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return leaf if is_key else np.asarray(leaf)
