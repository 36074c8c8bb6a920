"""Files of checkpoints and of saved runs, in folders of which each belongs to one process.

The owner of a folder holds a lock on the file `lock` in it, which names its host, its process and
when that started. The operating system releases the lock when the process ends, however it ends. So
a process that begins in a directory knows which folders are a dead one's, and removes their files.
It leaves those that it cannot be sure of: another host's, and any where there are no locks.

A file of a folder, which is whole or not there for everyone who reads it:

    asked for --write--> written (x.part) --rename--> whole (x) --remove--> removed
        |                    |                           |                     ^
        +--- an error -------+---------------------------|---------------------+
                             +--- the owner dies --------+--- the next begins -+

An error of the operating system in any of these becomes an `OSError` with its `errno`, which says
what was to be done with which file. A file whose removal fails stays until the process ends.

Nothing here uses JAX: compiled programs call these functions (`stores`).
"""

import atexit
import errno
import itertools
import logging
import math
import os
import re
import secrets
import shutil
import socket
import time
import weakref
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock, RLock
from typing import Any, TypeAlias

import numpy as np

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

Directory: TypeAlias = str | os.PathLike[str]

LOGGER = logging.getLogger("jax_revolve")

TICKET = 3
"""Numbers in a ticket."""

HOST = socket.gethostname()
_STARTED = time.strftime("%Y-%m-%dT%H:%M:%S")

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)
"""The errors of file systems without locks."""

_guard = RLock()
_held: "weakref.WeakValueDictionary[tuple[int, int], FolderLock]" = weakref.WeakValueDictionary()
"""The locks of this process, by the device and the inode of their files."""


class FolderLock:
    """Keeps other processes out of a folder, as long as this object and its process exist.

    `running` is for threads of this process. A forked process inherits the descriptor and would
    keep the folder locked, so it closes the descriptor.
    """

    def __init__(self, descriptor: int, *, is_locked: bool) -> None:
        self.descriptor, self.is_locked, self.running = descriptor, is_locked, Lock()
        self.owner = os.read(descriptor, 1000).decode().split()
        """Who had it and did not end in order: the host, the process and when that started."""
        self.name = list[str]()
        """This process, once it is named in the file."""
        self.release = weakref.finalize(self, _release, descriptor, self.name)


def lock_folder(path: Path, create: int = os.O_CREAT) -> FolderLock:
    """The lock of a folder, one for this process. `BlockingIOError` if another one has it."""
    with _guard:
        descriptor = os.open(path / "lock", os.O_RDWR | create, 0o666)
        status, is_locked = os.fstat(descriptor), fcntl is not None
        file = status.st_dev, status.st_ino
        if (lock := _held.get(file)) is not None and lock.release.alive:
            os.close(descriptor)
            return lock
        try:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(status, os.stat(path / "lock")):
                raise BlockingIOError(errno.EAGAIN, "another process removes the folder")
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(descriptor)
                raise
            is_locked = False
        lock = _held[file] = FolderLock(descriptor, is_locked=is_locked)
        return lock


def _release(descriptor: int, name: list[str]) -> None:
    with suppress(OSError):
        if name:
            os.ftruncate(descriptor, 0)
        if fcntl is not None:
            # Closing is not enough if C code has forked the process without Python's knowledge.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _leave_all() -> None:
    for lock in list(_held.values()):
        if lock.release.detach():
            os.close(lock.descriptor)
    _held.clear()
    _of_disk.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_leave_all)


class Folder:
    """The files of a folder, which this process may write as long as it has the lock."""

    def __init__(self, path: Path, lock: FolderLock | None = None) -> None:
        self.path, self.lock = path, lock
        self.removed = 0
        """The bytes of dead processes that were removed here."""

    def obstacle(self) -> str:
        """Why files that are here may be a living process's; empty if none can have them."""
        assert self.lock is not None
        if len(self.lock.owner) != 3:  # whoever wrote them has ended in order
            return ""
        host, process, started = self.lock.owner
        if host == HOST and self.lock.is_locked:
            return ""
        why = "there are no locks here" if host == HOST else "it cannot be seen from here"
        return f"process {process} of host {host}, started {started}, may live: {why}"

    def names(self) -> list[str]:
        return os.listdir(self.path)

    def write(self, name: str, what: str, content: Sequence[Any], *, sync: bool = False) -> None:
        """Write a file beside its place, and rename it when complete. `sync` makes it durable."""
        path = self.path / name
        unfinished = path.with_suffix(".part")
        try:
            self._name_owner()
            with open(unfinished, "wb") as file:
                file.writelines(content)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(unfinished, path)
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink()
            free = shutil.disk_usage(self.path).free if self.path.exists() else 0
            raise OSError(
                error.errno,
                f"{what} of {sum(map(len, content))} bytes could not be written to {path}: "
                f"{error.strerror or error}. {free} bytes are free there; {self.removed} bytes "
                "that dead processes had left were removed before.",
            ) from error

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def remove(self, names: Iterable[str]) -> int:
        """Remove files, if they exist. Returns their bytes."""
        size = 0
        for path in map(self.path.joinpath, names):
            with suppress(FileNotFoundError):
                found = path.stat().st_size
                path.unlink()
                size += found
        return size

    def sync(self) -> None:
        """Make the names of the files durable."""
        if os.name == "posix":
            descriptor = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _name_owner(self) -> None:
        """Name this process in the lock, before its first file."""
        assert self.lock is not None
        if not self.lock.name:
            name = f"{HOST} {os.getpid()} {_STARTED}"
            os.ftruncate(self.lock.descriptor, 0)
            os.lseek(self.lock.descriptor, 0, os.SEEK_SET)
            os.write(self.lock.descriptor, name.encode())
            self.lock.name.append(name)


def make_folder(path: Path) -> Path:
    """Make a folder and its parents, if they do not exist."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            error.errno,
            f"The directory {os.fspath(path)!r} cannot be made: {error.strerror}. Pass the name of "
            "a folder, or of a new one, in which this process may write.",
        ) from error
    return path


# Checkpoints, each in a file that is named by its *ticket*: a number of the sweep, one of its own,
# and the checksum of its content. No other process reads them.


_FOLDER = re.compile(r"jax_revolve-[0-9a-f]{16}")
_CHECKPOINT = re.compile(r"[0-9a-f]{24}\.(checkpoint|part)")

_numbers = itertools.count(1)
_of_disk: dict[Path, Folder] = {}
"""The folder of this process in each directory."""


def folder_in(directory: Directory) -> Folder:
    """This process's folder in a directory. It is made after the ones of dead processes, whose
    checkpoints nobody can read, are removed."""
    path = Path(directory)
    with _guard:
        folder = _of_disk.get(path)
        if folder is None or not folder.path.exists():
            removed = _remove_dead(make_folder(path))
            folder = _of_disk[path] = _new_folder(path)
            folder.removed = removed
    return folder


def _new_folder(directory: Path) -> Folder:
    for _ in range(8):
        path = make_folder(directory / f"jax_revolve-{secrets.token_hex(8)}")
        with suppress(BlockingIOError, FileNotFoundError):  # another process that begins removes it
            return Folder(path, lock_folder(path))
    raise BlockingIOError(errno.EAGAIN, f"No folder can be locked in the directory {directory}")


def _remove_dead(directory: Path) -> int:
    """Remove the folders of dead processes. Returns the bytes of their checkpoints."""
    removed, where = 0, f"storage=Disk({os.fspath(directory)!r})"
    for name in sorted(filter(_FOLDER.fullmatch, Folder(directory).names())):
        folder, obstacle = Folder(directory / name), ""
        try:
            folder.lock = lock_folder(folder.path, create=0)
            if folder.lock not in [own.lock for own in _of_disk.values()]:
                obstacle = folder.obstacle()
                removed += 0 if obstacle else _remove_folder(folder)
        except (BlockingIOError, FileNotFoundError):  # its process lives, or had no lock yet
            with suppress(OSError):  # it is not empty
                folder.path.rmdir()
        except OSError as error:
            obstacle = str(error)
        if obstacle:
            LOGGER.warning(
                "%s: left the folder %s, because %s. Remove it by hand once that has ended.",
                *(where, folder.path, obstacle),
            )
    if removed:
        LOGGER.warning("%s: removed %d bytes that dead processes had left.", where, removed)
    return removed


def _remove_folder(folder: Folder) -> int:
    """Remove the checkpoints of a folder, and then the folder, unless it has other files."""
    size = folder.remove(filter(_CHECKPOINT.fullmatch, folder.names()))
    if folder.lock is not None:
        folder.lock.release()
    folder.remove(["lock"])
    with suppress(OSError):
        folder.path.rmdir()
    return size


@atexit.register
def _remove_own() -> None:
    """Remove files that were never read, such as an unused gradient's checkpoints."""
    for folder in _of_disk.values():
        with suppress(OSError):
            _remove_folder(folder)


def write_file(directory: Directory, arrays: Sequence[np.ndarray], sweep: int = 0) -> np.ndarray:
    """Write the arrays to a new file. Returns its ticket."""
    content, checksum = bytes_of(arrays), 0
    for chunk in content:
        checksum = zlib.crc32(chunk, checksum)
    ticket = np.array([sweep, next(_numbers) % 2**32, checksum], np.uint32)
    folder_in(directory).write(_name(ticket), "A checkpoint", content)
    return ticket


def read_file(
    directory: Directory,
    ticket: Sequence[int] | np.ndarray,
    like: Sequence[tuple[tuple[int, ...], np.dtype]],
    *,
    is_last: bool,
) -> list[np.ndarray]:
    """The arrays of a ticket, of these shapes and dtypes; the last read removes the file."""
    folder, name = folder_in(directory), _name(ticket)
    try:
        content = folder.read(name)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"The checkpoint {folder.path / name} does not exist. A checkpoint on disk is removed "
            "once the reverse pass has used it, so a function that jax.vjp returned can be called "
            "once; call jax.vjp again, or use jax.vmap of it for several cotangents."
        ) from error
    if zlib.crc32(content) != ticket[-1]:
        raise OSError(
            f"The checkpoint {folder.path / name} is damaged: it is not what was written."
        )
    if is_last:
        folder.remove([name])
    return arrays_of(content, like)


def remove_file(directory: Directory, ticket: Sequence[int]) -> None:
    with suppress(OSError):  # at the latest, it goes when the process ends
        folder_in(directory).remove([_name(ticket)])


@contextmanager
def all_of_sweep(directory: Directory, sweep: int) -> Iterator[None]:
    """Remove all files of a sweep that fails, if the disk is still there: nothing reads them."""
    try:
        yield
    except OSError:
        with suppress(OSError):
            folder = folder_in(directory)
            folder.remove(name for name in folder.names() if name.startswith(f"{sweep:08x}"))
        raise


def _name(ticket: Any) -> str:
    return "{:08x}{:08x}{:08x}.checkpoint".format(*ticket)


# Arrays as bytes


def bytes_of(arrays: Iterable[np.ndarray]) -> list[memoryview]:
    return [np.ascontiguousarray(a).reshape(-1).view(np.uint8).data for a in arrays]


def arrays_of(content: bytes, like: Iterable[tuple[Sequence[int], np.dtype]]) -> list[np.ndarray]:
    """The arrays of these shapes and dtypes whose concatenated `bytes_of` are the content."""
    arrays, at = [], 0
    for shape, dtype in like:
        arrays.append(np.ndarray(tuple(shape), dtype, content, at))
        at += math.prod(shape) * dtype.itemsize
    return arrays
