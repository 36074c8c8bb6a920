"""What makes a saved run the same run: the program, its inputs, and the machine.

We identify a program by the text that XLA gets, which has all constants and no source locations,
never by Python objects. The text does not show the Python functions that it calls, so a run that
depends on these has a `version`.
"""

import hashlib
from collections.abc import Hashable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jax_revolve._compat.callbacks import PythonCall
from jax_revolve.host.arrays import on_host, sharding_of
from jax_revolve.storage.files import bytes_of

_KNOWN = ("equinox._errors", "jax_revolve.storage.stores")
"""Modules whose callbacks change no result: they raise an error, or read what they wrote."""


def check_known(calls: Iterable[PythonCall], version: object) -> None:
    """Refuse a program that uses results of Python functions, unless there is a `version`."""
    for call in calls:
        is_partial = isinstance(call.function, partial)
        function: Any = call.function.func if is_partial else call.function
        module = getattr(function, "__globals__", {}).get("__name__")
        if version is None and call.is_used and module not in _KNOWN:
            name = getattr(function, "__qualname__", "a Python function")
            raise needs_version(f"the step calls {name}, for example by jax.pure_callback")


def needs_version(because: str) -> ValueError:
    return ValueError(
        f"version must not be None here, but a str or an int: {because}, and whether a Python "
        "function is the same in two calls of host_scan with one directory cannot be known. Pass a "
        "version, and another one whenever the function or anything it reads changes."
    )


def digest_of_array(value: Any) -> str:
    """The digest of an array's data; of a memory-mapped array, which is not read, the file, its
    modification time, and the place in it. Copy on write does not change the file."""
    if isinstance(value, np.memmap) and value.filename is not None and value.mode != "c":
        return digest(*_place(value))
    return checksum(bytes_of(on_host([value])))


def digest_of_arrays(values: Iterable[Any]) -> str:
    """The digest of types, data and shardings; `None` stands for itself."""
    return digest(*(x if x is None else (_type(x), digest_of_array(x)) for x in values))


def digest_of_devices(processes: int) -> str:
    """The digest of everything else on which the bits of a result depend."""
    devices = tuple((d.id, d.platform, d.device_kind) for d in jax.devices())
    return digest(devices, processes)


def digest(*values: Hashable) -> str:
    return checksum([repr(values).encode()])


def checksum(content: Iterable[Any]) -> str:
    found = hashlib.sha256()
    for chunk in content:
        found.update(chunk)
    return found.hexdigest()


def _type(value: Any) -> tuple[Hashable, ...]:
    """The type of an array and, if it is on several devices, its layout."""
    places = ()
    if (sharding := sharding_of(value)) is not None:
        found = sharding.devices_indices_map(value.shape).items()
        places = tuple((device.id, repr(index)) for device, index in found)
    return str(value.dtype), value.shape, bool(getattr(value, "weak_type", False)), places


def _place(value: Any) -> tuple[Hashable, ...]:
    root: Any = value
    while isinstance(root.base, np.ndarray):
        root = root.base
    path = Path(value.filename)
    status = path.stat()
    at = root.offset + value.ctypes.data - root.ctypes.data
    return str(path), status.st_size, status.st_mtime_ns, status.st_ino, at, value.strides
