"""`HostMemory` and `Disk`: where to store checkpoints beyond those on the device.

`Compressed` says in which format checkpoints are stored, wherever they are.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from jax_revolve.profiles.profile import Profile
from jax_revolve.schedule.arguments import (
    Memory,
    check_drift_tol,
    check_integer,
    check_number,
    mistyped,
    parse_bytes,
    readable,
)

TRANSFER = 5.0
"""The cost of writing or reading one carry, in steps, where the loop's sizes are unknown."""


@dataclass(frozen=True, kw_only=True, repr=False)
class _Options:
    """The limits of a storage, which must be passed by name."""

    checkpoints: int | None = None
    memory: Memory = None
    transfer: float | None = None
    is_read_once: ClassVar[bool] = False
    """Whether a forward sweep keeps something else in place of a carry, which serves one reverse
    sweep and has no tangents."""

    def costs(self, profile: Profile) -> tuple[float, float]:
        """The nanoseconds of a transfer, and of each of its bytes."""
        return profile.host_transfer, profile.host_byte

    def __repr__(self) -> str:
        """What was passed, bytes with a unit where that is exact."""
        given: dict[str, Any] = {name: getattr(self, name) for name in self.__match_args__}
        given |= {"checkpoints": self.checkpoints, "memory": self.memory, "transfer": self.transfer}
        if isinstance(self.memory, int) and parse_bytes(readable(self.memory)) == self.memory:
            given["memory"] = readable(self.memory)
        shown = ", ".join(f"{name}={x!r}" for name, x in given.items() if x is not None)
        return f"{type(self).__name__}({shown})"

    def __post_init__(self) -> None:
        """Check the fields, and make numbers Python's own, so that plans are hashable."""
        checkpoints, transfer, memory = self.checkpoints, self.transfer, self.memory
        if checkpoints is not None:
            allowed = "an int >= 1 (carries in the storage) or None"
            checkpoints = check_integer("checkpoints", checkpoints, least=1, allowed=allowed)
        if transfer is not None:
            steps = "a number >= 0 of steps that take as long as writing or reading one carry"
            transfer = check_number("transfer", transfer, least=0, allowed=f"None or {steps}")
        memory = None if memory is None else parse_bytes(memory)
        vars(self).update(checkpoints=checkpoints, memory=memory, transfer=transfer)


@dataclass(frozen=True, repr=False)
class HostMemory(_Options):
    """The memory of the host, for checkpoints beyond those on the device.

    With `checkpoints=0` on the device, all checkpoints are in the host's memory, and the schedule
    is that for checkpoints on one level.

    **Arguments:**

    - `checkpoints`: the most carries that are stored there at once: an int >= 1. `None`, the
        default, stores as many as are worth their transfer; with none on the device, the fewest
        with which no step is advanced more than twice.
    - `memory`: the most bytes that they take there: an int or a string such as `"4GB"`.
    - `transfer`: the cost of writing or reading one carry, in steps of the loop: a number >= 0.
        With 5 a transfer takes as long as five steps. `None`, the default, takes it from the
        profile of the device and the sizes of the loop, and is 5 where a plan is made without a
        loop. Only the number of checkpoints and their positions depend on it.

    **Raises:**

    `TypeError` or `ValueError` if an argument is not as above.

    !!! Example

        ```python
        from jax_revolve import HostMemory, plan

        p = plan(1000, checkpoints=10, storage=HostMemory())
        assert (p.advances, p.writes, p.reads) == (1905, 85, 85)
        assert plan(1000, checkpoints=10).advances == 3640
        ```
    """

    def __str__(self) -> str:
        return "host memory"


@dataclass(frozen=True, repr=False)
class Disk(_Options):
    """A directory on a disk, for checkpoints beyond those on the device.

    **Arguments:**

    - `directory`: the directory for the files: a `str` or an `os.PathLike`. It is made, with its
        parents, by the first loop that needs it. What dead processes of this host left there is
        then removed. A relative path is resolved when it is given, not when the loop runs.
    - `checkpoints`, `memory`, `transfer`: as [`jax_revolve.HostMemory`][]. The device must hold at
        least one checkpoint.

    **Raises:**

    `TypeError` or `ValueError` if an argument is not as above.

    !!! Example

        ```python
        from jax_revolve import Disk, plan

        p = plan(1000, checkpoints=10, storage=Disk("/tmp", transfer=30))
        assert (p.advances, p.writes) == (2793, 11)
        ```
    """

    directory: str | os.PathLike[str]
    is_read_once: ClassVar[bool] = True

    def costs(self, profile: Profile) -> tuple[float, float]:
        return profile.disk_transfer, profile.disk_byte

    def __post_init__(self) -> None:
        if not isinstance(self.directory, str | os.PathLike):
            raise mistyped("directory", self.directory, "a str or an os.PathLike")
        vars(self).update(directory=os.fspath(Path(self.directory).absolute()))
        super().__post_init__()

    def __str__(self) -> str:
        return f"the directory {os.fspath(self.directory)}"


Place: TypeAlias = HostMemory | Disk
"""A second level of checkpoints, besides the device."""

Format: TypeAlias = Literal["bfloat16", "float16", "int8"]
TOLERANCES: dict[Any, float] = {"bfloat16": 2**-7, "float16": 2**-10, "int8": 1 / 127}
"""The formats, and a unit in the last place of each."""


@dataclass(frozen=True)
class Compressed:
    """Checkpoints in fewer bits, on the device and in a storage.

    Values stay exact; gradients do not, because the reverse pass recomputes steps from what it
    decodes. The initial carry and the newest checkpoint are kept as they are, so the first and the
    last step are reversed exactly. So do leaves of integers, booleans and keys, and those that a
    format would not make smaller. Derivatives of any order work: a rounded tangent is stored beside
    a rounded carry. [`jax_revolve.certify`][] shows how far a gradient is off.

    **Arguments:**

    - `format`: `"bfloat16"`, `"float16"`, or `"int8"`: blocks of 64 numbers along the last axis,
        with a scale each, rounded to nearest. Or a pair of functions `(encode, decode)` of a leaf:
        `encode` returns a tree of arrays, from which `decode` returns an array of the leaf's shape
        and dtype. Under `jax.grad` of `jax.vmap`, leaves are those of all examples.
    - `storage`: where further checkpoints are stored: a [`jax_revolve.HostMemory`][], a
        [`jax_revolve.Disk`][], or `None`.
    - `drift_tol`: how far a stored leaf may be from the exact one, relative to its largest entry: a
        number >= 0. Beyond it, as where `"float16"` overflows, its carry is NaN. `None` is a unit
        in the last place of the format; for functions, the square root of the dtype's epsilon.
        `math.inf` turns the check off. [`jax_revolve.drift`][] measures what a loop needs.
    - `throw`: whether to raise an error instead, at run time, which names the leaf.

    **Raises:**

    `TypeError` or `ValueError` if an argument is not as above.

    !!! Example

        ```python
        import jax
        import jax.numpy as jnp
        from jax_revolve import Compressed, checkpointed_scan

        def loss(u):
            step = lambda u, _: (u + 0.1 * jnp.sin(u), None)
            how = {"storage": Compressed("int8"), "checkpoints": 12}
            return jnp.sum(checkpointed_scan(step, u, length=100, **how)[0])

        jax.grad(loss)(jnp.linspace(0.0, 1.0, 128))
        ```
    """

    format: Format | tuple[Callable[[Any], Any], Callable[[Any], Any]]
    storage: Place | None = None
    drift_tol: float | None = None
    throw: bool = False

    def __post_init__(self) -> None:
        pair = self.format
        is_pair = isinstance(pair, tuple) and len(pair) == 2 and all(map(callable, pair))
        if not (is_pair or (isinstance(pair, str) and pair in TOLERANCES)):
            allowed = f"one of {', '.join(map(repr, TOLERANCES))} or a pair (encode, decode)"
            raise mistyped("format", pair, allowed)
        check_drift_tol(self.drift_tol)
        if not isinstance(self.storage, Place | None):
            raise mistyped("storage", self.storage, "None, a HostMemory or a Disk")

    @property
    def tolerance(self) -> float | None:
        return TOLERANCES.get(self.format) if self.drift_tol is None else self.drift_tol

    def __str__(self) -> str:
        return self.format if isinstance(self.format, str) else "the format of a pair of functions"


Storage: TypeAlias = Place | Compressed
"""Where and how checkpoints are stored, besides the device."""

AnyStorage = TypeVar("AnyStorage", bound=Place)


def check_storage(storage: object) -> Place | None:
    """Where checkpoints are stored."""
    if not isinstance(storage, Storage | None):
        allowed = "None, a jax_revolve.HostMemory, a jax_revolve.Disk or a jax_revolve.Compressed"
        raise mistyped("storage", storage, allowed)
    return storage.storage if isinstance(storage, Compressed) else storage


def codec_of(storage: Storage | None) -> Compressed | None:
    """How they are encoded, wherever they are."""
    return replace(storage, storage=None) if isinstance(storage, Compressed) else None


def with_transfer(storage: AnyStorage, steps: float = TRANSFER) -> AnyStorage:
    """The storage with a transfer of so many steps, unless the user set it."""
    return storage if storage.transfer is not None else replace(storage, transfer=steps)


def with_room(storage: AnyStorage, checkpoint: int, extra: int = 0) -> AnyStorage:
    """The storage, with its limit in bytes as a number of checkpoints besides `extra` ones."""
    if storage.memory is None:
        return storage
    memory, least = parse_bytes(storage.memory), checkpoint * (1 + extra)
    if memory < least:
        raise ValueError(
            f"memory of the storage must be at least {least} bytes here, but is {memory}: "
            f"a checkpoint takes {checkpoint}. Pass at least that much, or storage=None."
        )
    if not checkpoint:
        return replace(storage, memory=None)
    most = memory // checkpoint - extra
    return replace(storage, memory=None, checkpoints=min(most, storage.checkpoints or most))
