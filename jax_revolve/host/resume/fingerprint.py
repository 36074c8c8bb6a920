"""What has to be the same for a run to go on."""

import hashlib
import re
from collections.abc import Iterable
from typing import Any

import jax

from jax_revolve.host.placement import on_host

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
        for data in () if value is None else on_host([value]):
            found.update(data.tobytes())
    return found.hexdigest()


def of_platform(processes: int) -> str:
    """What the bits of a result depend on otherwise."""
    device, count = jax.devices()[0], jax.device_count()
    return of_text(jax.__version__, device.platform, device.device_kind, count, processes)
