"""Checkpoints on the device, in the host's memory, and in files.

A checkpoint lives as long as something refers to it. So does its file.
"""

import math
import weakref
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from jax_revolve.host.placement import Placed, Values, on_host
from jax_revolve.schedule.storage import Disk, HostMemory, Storage
from jax_revolve.storage import files


class Checkpoint(Protocol):
    """The leaves of a carry that are needed to run steps again."""

    level: ClassVar[str]
    """Where it is."""

    @property
    def nbytes(self) -> int: ...

    @property
    def values(self) -> Values:
        """On the device."""
        ...

    @property
    def data(self) -> list[np.ndarray]:
        """In the host's memory."""
        ...


@dataclass(eq=False)
class OnDevice:
    """The arrays themselves, which no step changes."""

    values: Values
    level: ClassVar[str] = "on the device"

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in self.values)

    @property
    def data(self) -> list[np.ndarray]:
        return on_host(self.values)


@dataclass(eq=False)
class OnHost:
    data: list[np.ndarray]
    placed: Placed
    level: ClassVar[str] = "in host memory"

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in self.data)

    @property
    def values(self) -> Values:
        return self.placed.on_device(self.data)


@dataclass(eq=False)
class InFile:
    """A file of `storage.files`, of this process."""

    directory: Any
    ticket: tuple[int, int, int]
    like: list[tuple[tuple[int, ...], np.dtype]]
    placed: Placed
    level: ClassVar[str] = "on disk"
    _end: Any = field(init=False)

    def __post_init__(self) -> None:
        self._end = weakref.finalize(self, files.remove_file, self.directory, self.ticket)

    @property
    def nbytes(self) -> int:
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.like)

    @property
    def data(self) -> list[np.ndarray]:
        return files.read_file(self.directory, self.ticket, self.like, is_last=False)

    @property
    def values(self) -> Values:
        return self.placed.on_device(self.data)


def keep(storage: Storage | None, values: Values) -> Checkpoint:
    """A checkpoint in this storage; on the device without one."""
    if storage is None:
        return OnDevice(values)
    data, placed = on_host(values), Placed.of(values)
    if isinstance(storage, HostMemory):
        return OnHost(data, placed)
    assert isinstance(storage, Disk)
    first, second, number = files.write_file(storage.directory, data).tolist()
    like = [(x.shape, x.dtype) for x in data]
    return InFile(storage.directory, (first, second, number), like, placed)
