"""Checkpoints on the device, in the host's memory, and in files."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from jax_revolve.host.placement import Placed, Values, on_host
from jax_revolve.schedule.storage import Disk, Storage
from jax_revolve.storage import files


@dataclass(eq=False)
class Checkpoint:
    """The leaves of a carry that are needed to run steps again: where they are, their bytes there,
    and how to get them on the device and in the host's memory.

    It lives as long as something refers to it. So does its file.
    """

    level: str
    nbytes: int
    on_device: Callable[[], Values]
    on_host: Callable[[], list[np.ndarray]]


def on_disk(nbytes: int, read: Callable[[], list[np.ndarray]], placed: Placed) -> Checkpoint:
    """In a file that `read` reads."""
    return Checkpoint("on disk", nbytes, lambda: placed.on_device(read()), read)


def keep(storage: Storage | None, values: Values) -> Checkpoint:
    """A checkpoint in this storage; on the device without one, as the arrays themselves, which no
    step changes."""
    if storage is None:
        nbytes = sum(x.nbytes for x in values)
        return Checkpoint("on the device", nbytes, lambda: values, partial(on_host, values))
    data, placed = on_host(values), Placed.of(values)
    nbytes = sum(x.nbytes for x in data)
    if not isinstance(storage, Disk):
        return Checkpoint("in host memory", nbytes, lambda: placed.on_device(data), lambda: data)
    directory, like = storage.directory, [(x.shape, x.dtype) for x in data]
    first, second, number = files.write_file(directory, data).tolist()
    ticket = first, second, number
    read = partial(files.read_file, directory, ticket, like, is_last=False)
    checkpoint = on_disk(nbytes, read, placed)
    weakref.finalize(checkpoint, files.remove_file, directory, ticket)
    return checkpoint
