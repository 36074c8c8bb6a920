"""One row for each step, in the host's memory: ys, and the cotangents of xs."""

from collections import deque
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_revolve.host.placement import Values, replicated
from jax_revolve.storage.stores import data_of

Keys = list[Any]
"""The implementation of each leaf that is a PRNG key; `None` for others."""

IN_FLIGHT = 3
"""The rows that may be on their way from the device while steps go on."""


class Arriving:
    """Rows on their way from the device. They arrive in the order in which they were put."""

    def __init__(self) -> None:
        self._coming: deque[tuple[int, Values]] = deque()

    def put(self, at: int, leaves: Values) -> None:
        """A row, which arrives later."""
        leaves = list(map(replicated, leaves))
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
        self._keys: Keys = []
        self._arrays: list[np.ndarray] = []

    def result(self) -> Values:
        """NumPy arrays, and PRNG keys on the device."""
        self.arrive()
        pairs = zip(self._arrays, self._keys, strict=True)
        return [x if key is None else _keys(x, key) for x, key in pairs]

    def saved(self, at: slice) -> tuple[list[np.ndarray], Keys]:
        """Some of the rows, which have arrived, for a file."""
        return [array[at] for array in self._arrays], self._keys

    def restore(self, at: slice, rows: list[np.ndarray], keys: Keys) -> None:
        """Rows from a file."""
        if not self._arrays:
            self._keys = keys
            self._arrays = [np.empty((self._length, *x.shape[1:]), x.dtype) for x in rows]
        for array, values in zip(self._arrays, rows, strict=True):
            array[at] = values

    def _arrived(self, at: int, leaves: Values) -> None:
        data = [np.asarray(data_of(leaf))[None] for leaf in leaves]
        self.restore(slice(at, at + 1), data, list(map(_implementation, leaves)))


def _keys(data: np.ndarray, implementation: Any) -> jax.Array:
    return jax.random.wrap_key_data(jnp.asarray(data), impl=implementation)


def _implementation(leaf: Any) -> Any:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_impl(leaf) if is_key else None


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
