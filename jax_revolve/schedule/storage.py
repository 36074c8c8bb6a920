"""Where checkpoints go that the device has no room for."""

import os
from dataclasses import dataclass
from math import isfinite
from numbers import Real
from typing import Literal, TypeAlias

from jax_revolve.schedule.arguments import check_integer

TRANSFER = 5.0
"""What writing or reading one carry costs unless something else is said, in steps."""


@dataclass(frozen=True)
class HostMemory:
    """The memory of the host, for checkpoints beyond those on the device.

    **Arguments:**

    - `checkpoints`: the most carries that may be kept there at once: an int >= 1. `None`, the
        default, keeps as many as are worth their transfer.
    - `transfer`: what writing or reading one carry costs, in steps of the loop: a number >= 0. With
        5, the default, a carry is written or read in the time in which the loop takes five steps.
        Only how many checkpoints there are, and where, depends on it.

    **Raises:**

    `TypeError` or `ValueError` if an argument is not one of the above.

    !!! Example

        ```python
        from jax_revolve import HostMemory, plan

        p = plan(1000, checkpoints=10, storage=HostMemory())
        assert (p.advances, p.writes, p.reads) == (1903, 85, 85)
        assert plan(1000, checkpoints=10).advances == 3636
        ```
    """

    checkpoints: int | None = None
    transfer: float = TRANSFER

    def __post_init__(self) -> None:
        _check(self, self.checkpoints, self.transfer)

    def __str__(self) -> str:
        return "host memory"


@dataclass(frozen=True)
class Disk:
    """A directory on a disk, for checkpoints beyond those on the device.

    **Arguments:**

    - `directory`: where the files go: a `str` or an `os.PathLike`.
    - `checkpoints`, `transfer`: as [`jax_revolve.HostMemory`][].

    **Raises:**

    `TypeError` or `ValueError` if an argument is not one of the above.

    !!! Example

        ```python
        from jax_revolve import Disk, plan

        p = plan(1000, checkpoints=10, storage=Disk("/tmp", transfer=30))
        assert (p.advances, p.writes) == (2790, 11)
        ```
    """

    directory: str | os.PathLike[str]
    checkpoints: int | None = None
    transfer: float = TRANSFER

    def __post_init__(self) -> None:
        if not isinstance(self.directory, str | os.PathLike):
            raise TypeError(
                f"directory must be a str or an os.PathLike, but is {self.directory!r} of type "
                f"{type(self.directory).__name__}."
            )
        _check(self, self.checkpoints, self.transfer)

    def __str__(self) -> str:
        return f"the directory {os.fspath(self.directory)}"


Storage: TypeAlias = HostMemory | Disk
"""A second level of checkpoints, beside the device."""

MemoryKind: TypeAlias = Literal["device", "pinned_host"]

Place: TypeAlias = MemoryKind | Storage | None
"""Where a loop's checkpoints are: all in one memory, or on two levels."""

MEMORY_KINDS = ("device", "pinned_host")

STORAGES = "a jax_revolve.HostMemory or a jax_revolve.Disk"


def check_place(storage: object) -> Place:
    if storage is None or isinstance(storage, HostMemory | Disk):
        return storage
    if isinstance(storage, str) and storage in MEMORY_KINDS:
        return storage  # pyright: ignore[reportReturnType]
    error = ValueError if isinstance(storage, str) else TypeError
    raise error(
        'storage must be None, "device", "pinned_host", a jax_revolve.HostMemory or a '
        f"jax_revolve.Disk, but is {storage!r} of type {type(storage).__name__}."
    )


def check_memory_kind(kind: object) -> None:
    if kind not in MEMORY_KINDS:
        error = ValueError if isinstance(kind, str) else TypeError
        raise error(
            'memory_kind must be "device" or "pinned_host", but is '
            f"{kind!r} of type {type(kind).__name__}."
        )


def check_storage(storage: object, allowed: str = STORAGES) -> Storage:
    if not isinstance(storage, HostMemory | Disk):
        raise TypeError(
            f"storage must be {allowed}, but is {storage!r} of type {type(storage).__name__}."
        )
    return storage


def _check(storage: Storage, checkpoints: object, transfer: object) -> None:
    """Numbers are kept as plain Python ones, which a plan can be looked up by."""
    if checkpoints is not None:
        allowed = "an int >= 1 (carries in the storage) or None"
        checkpoints = check_integer("checkpoints", checkpoints, least=1, allowed=allowed)
    allowed = "a number >= 0 of steps that take as long as writing or reading one carry"
    if isinstance(transfer, bool) or not isinstance(transfer, Real):
        raise TypeError(
            f"transfer must be {allowed}, but is {transfer!r} of type {type(transfer).__name__}."
        )
    if not isfinite(transfer) or transfer < 0:
        raise ValueError(f"transfer must be {allowed}, but is {transfer!r}.")
    object.__setattr__(storage, "checkpoints", checkpoints)
    object.__setattr__(storage, "transfer", float(transfer))
