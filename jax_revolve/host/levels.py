"""Checkpoints on the device, in the host's memory, and in files."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from jax_revolve.host.placement import Placed, Values, on_host
from jax_revolve.schedule.storage import HostMemory, Storage
from jax_revolve.storage import files


@dataclass(eq=False)
class Checkpoint:
    """The leaves of a carry that are needed to run steps again: where they are, their bytes there,
    and how to get them on the device and in the host's memory.

    It lives as long as something refers to it. So does its file.
    """

    level: str
    nbytes: int
    _on_device: Callable[[], Values]
    _on_host: Callable[[], list[np.ndarray]]

    @property
    def values(self) -> Values:
        return self._on_device()

    @property
    def data(self) -> list[np.ndarray]:
        return self._on_host()


def on_device(values: Values) -> Checkpoint:
    """The arrays themselves, which no step changes."""
    size = sum(x.nbytes for x in values)
    return Checkpoint("on the device", size, lambda: values, partial(on_host, values))


def elsewhere(
    level: str, size: int, read: Callable[[], list[np.ndarray]], placed: Placed
) -> Checkpoint:
    """What `read` gets into the host's memory."""
    return Checkpoint(level, size, lambda: placed.on_device(read()), read)


def in_memory(data: list[np.ndarray], placed: Placed) -> Checkpoint:
    """In the host's memory."""
    return elsewhere("in host memory", sum(x.nbytes for x in data), lambda: data, placed)


def keep(storage: Storage | None, values: Values) -> Checkpoint:
    """A checkpoint in this storage; on the device without one."""
    if storage is None:
        return on_device(values)
    data, placed = on_host(values), Placed.of(values)
    if isinstance(storage, HostMemory):
        return in_memory(data, placed)
    directory, like = storage.directory, [(x.shape, x.dtype) for x in data]
    first, second, number = files.write_file(directory, data).tolist()
    ticket = first, second, number
    read = partial(files.read_file, directory, ticket, like, is_last=False)
    checkpoint = elsewhere("on disk", sum(x.nbytes for x in data), read, placed)
    weakref.finalize(checkpoint, files.remove_file, directory, ticket)
    return checkpoint
