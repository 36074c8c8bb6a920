"""What has to be the same for a run to go on."""

import hashlib
import os
import re
from collections.abc import Iterable
from typing import Any

import jax

from jax_revolve.host.levels import on_host

Fingerprint = dict[str, str]


def of_text(*values: object) -> str:
    """Of values as text, without the addresses of objects."""
    text = re.sub(r" at 0x[0-9a-f]+", "", "\n".join(map(str, values)))
    return hashlib.sha256(text.encode()).hexdigest()


def of_arrays(values: Iterable[Any]) -> str:
    """Of types and bytes; `None` stands for itself."""
    found = hashlib.sha256()
    for value in values:
        found.update(of_text(value is not None and (value.dtype, value.shape)).encode())
        if value is not None:
            (data,) = on_host([value])
            found.update(data.tobytes())
    return found.hexdigest()


def of_platform() -> str:
    """What the bits of a result depend on otherwise."""
    device = jax.devices()[0]
    return of_text(jax.__version__, device.platform, device.device_kind, jax.device_count())


def check(saved: Fingerprint, ours: Fingerprint, directory: str | os.PathLike[str]) -> None:
    """Refuse to go on with a run that is not this one."""
    differ = [f"the {name}" for name, value in ours.items() if saved.get(name) != value]
    if differ:
        raise ValueError(
            f"directory={os.fspath(directory)!r} has another run: {' and '.join(differ)} differ "
            "from those of this call. Nothing was changed. Call host_scan as before to go on with "
            "that run, or pass another directory to begin a new one."
        )
