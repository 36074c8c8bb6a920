"""One row for each step, in the host's memory: ys, and the cotangents of xs."""

from collections import deque
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_revolve._compat import AbstractValue
from jax_revolve.host.placement import Values, replicated
from jax_revolve.storage.stores import data_of, from_data

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
        self.arrive()
        return self._kept()

    def _kept(self) -> Values:
        raise NotImplementedError

    def _arrived(self, at: int, leaves: Values) -> None:
        raise NotImplementedError


class Rows(Arriving):
    """Rows of these types that are kept, as NumPy arrays, and PRNG keys on the device."""

    def __init__(self, length: int, types: list[AbstractValue]) -> None:
        super().__init__()
        self._types = [t.update(shape=(length, *t.shape)) for t in types]
        like = [jax.eval_shape(data_of, jax.ShapeDtypeStruct(t.shape, t.dtype)) for t in types]
        self.arrays = [np.empty((length, *t.shape), t.dtype) for t in like]
        """The data of the rows that have arrived."""

    def _kept(self) -> Values:
        pairs = zip(self.arrays, self._types, strict=True)
        return [from_data(jnp.asarray(x), t) if _is_key(t) else x for x, t in pairs]

    def _arrived(self, at: int, leaves: Values) -> None:
        for array, leaf in zip(self.arrays, leaves, strict=True):
            array[at] = np.asarray(data_of(leaf))


class Consumed(Arriving):
    """Rows that a function takes."""

    def __init__(self, consume: Callable[[int, Values], None]) -> None:
        super().__init__()
        self._consume = consume

    def _kept(self) -> Values:
        return []

    def _arrived(self, at: int, leaves: Values) -> None:
        self._consume(at, [x if _is_key(x) else np.asarray(x) for x in leaves])


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
