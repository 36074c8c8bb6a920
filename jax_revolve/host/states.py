"""The saved states of a run in a directory, from the newest of which it can resume, and its lock.

A state is a JSON file that refers to array files. States share array files, which are written once,
so a state only costs its new arrays. Each file is written beside its place, synced and renamed, and
every reference has its checksum. We keep the two newest states, with their files. If the newest is
damaged, the run resumes from the one before.
"""

import errno
import json
import os
import re
import secrets
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_revolve.host.identity import checksum
from jax_revolve.storage.files import arrays_of, bytes_of, sync_folder, write_whole

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

KEPT = 2
"""The states that are kept."""

_STATE = re.compile(r"state-(\d+)\.json")
_OURS = re.compile(r"state-\d+\.(json|part)|[0-9a-f]{16}\.(arrays|part)")

ArrayFile = dict[str, Any]
"""A state's reference to an array file: its name, checksum and size, shapes and dtypes."""


# One process at a time in a folder


_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)
"""The errors of file systems without locks."""

_guard = Lock()
_held: "weakref.WeakValueDictionary[tuple[int, int], FolderLock]" = weakref.WeakValueDictionary()


class FolderLock:
    """Keeps other processes out of a folder, as long as this object and its process exist.

    The operating system unlocks the file when the process ends, however it ends. On a file system
    without locks, this does nothing. `running` is for threads of this process. A forked process
    inherits the descriptor and would keep the folder locked, so it closes the descriptor.
    """

    def __init__(self, descriptor: int) -> None:
        self.running = Lock()
        self.descriptor = descriptor
        self.unlock = weakref.finalize(self, _unlock, descriptor)


def _unlock(descriptor: int) -> None:
    if fcntl is not None:
        # Closing is not enough if C code has forked the process without Python's knowledge. Where
        # there are no locks, this does nothing.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _leave_all() -> None:
    for lock in list(_held.values()):
        if lock.unlock.detach():
            os.close(lock.descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_leave_all)


def lock_folder(folder: Path) -> FolderLock:
    """The folder's lock, one for this process. `BlockingIOError` if another process has it."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    with _guard:
        status = os.fstat(descriptor)
        file = status.st_dev, status.st_ino
        lock = _held.get(file)
        if lock is not None:
            os.close(descriptor)
            return lock
        lock = _held[file] = FolderLock(descriptor)
        try:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                del _held[file]
                raise
        return lock


# States


class DamagedError(OSError):
    """A file of a saved run is missing or damaged."""


class States:
    """The states in a folder, which is made if needed. One process uses it at a time."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._kept: list[tuple[int, set[str]]] = []
        self._lock: FolderLock | None = None

    def lock(self) -> FolderLock:
        """Keep other processes out. `BlockingIOError` if one is there."""
        self._lock = lock_folder(self._folder)
        return self._lock

    def unlock(self) -> None:
        """Nothing is written from now on."""
        self._lock = None

    def newest(self) -> int:
        """The number of the newest undamaged state; 0 without states, -1 if all are damaged."""
        numbers = sorted(self._numbers(), reverse=True)
        return next(filter(self.is_whole, numbers), -1 if numbers else 0)

    def is_newest(self) -> bool:
        """Whether the newest state is the last one that this object wrote or resumed from."""
        return max(self._numbers(), default=0) == (self._kept[-1][0] if self._kept else 0)

    def is_whole(self, number: int) -> bool:
        """Whether a state exists and is not damaged."""
        try:
            for file in _array_files(self.read_state(number)):
                self._content(file)
        except DamagedError:
            return False
        return True

    def go_on(self, number: int, state: Any) -> None:
        """Write the next states after this one, and remove newer ones."""
        self._kept = [(number, {file["file"] for file in _array_files(state)})]
        for newer in filter(lambda other: other > number, self._numbers()):
            self._path(newer).unlink()
        sync_folder(self._folder)

    def write(self, arrays: Sequence[np.ndarray]) -> ArrayFile:
        """Write arrays to a file that the next states may refer to."""
        name = f"{secrets.token_hex(8)}.arrays"
        content = bytes_of(arrays)
        write_whole(self._folder / name, "A file of arrays", content, sync=True)
        return {
            "file": name,
            "sha256": checksum(content),
            "bytes": sum(a.nbytes for a in arrays),
            "types": [[list(a.shape), a.dtype.name] for a in arrays],
        }

    def read(self, file: ArrayFile) -> list[np.ndarray]:
        like = [(shape, jnp.dtype(name)) for shape, name in file["types"]]
        return arrays_of(self._content(file), like)

    def save(self, state: Any) -> None:
        """Write a state, and remove files to which neither it nor the one before refers."""
        text = json.dumps(state)
        number = self._kept[-1][0] + 1 if self._kept else 1
        content = f"{checksum([text.encode()])}\n{text}".encode()
        write_whole(self._path(number), "A state", [content], sync=True)
        sync_folder(self._folder)
        files = {file["file"] for file in _array_files(state)}
        self._kept = [*self._kept, (number, files)][-KEPT:]
        self._clean()

    def _path(self, number: int) -> Path:
        return self._folder / f"state-{number}.json"

    def _clean(self) -> None:
        wanted = {self._path(number).name for number, _ in self._kept}
        wanted = wanted.union(*(files for _, files in self._kept))
        for path in list(self._folder.iterdir()):
            if _OURS.fullmatch(path.name) and path.name not in wanted:
                path.unlink(missing_ok=True)

    def _numbers(self) -> Iterable[int]:
        found = (_STATE.fullmatch(path.name) for path in self._folder.iterdir())
        return [int(match[1]) for match in found if match]

    def read_state(self, number: int) -> Any:
        """A state. `DamagedError` if it is damaged or missing."""
        path = self._path(number)
        found, _, text = (path.read_bytes() if path.exists() else b"").partition(b"\n")
        if found != checksum([text]).encode():
            raise DamagedError(f"state {number} is damaged")
        return json.loads(text)

    def _content(self, file: ArrayFile) -> bytes:
        path = self._folder / file["file"]
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise DamagedError(f"The file {path} does not exist.") from error
        if checksum([content]) != file["sha256"]:
            raise DamagedError(f"The file {path} is damaged: it is not what was written.")
        return content


def _array_files(state: Any) -> Iterator[ArrayFile]:
    """The array files to which a state refers, anywhere in it."""
    if isinstance(state, dict):
        if "sha256" in state:
            yield state
            return
        state = list(state.values())
    if isinstance(state, list | tuple):
        for value in state:
            yield from _array_files(value)
