"""Checkpoints as files: written whole or not at all, and read only by the process that wrote them.

A file is named by its *ticket*, in a folder of the process: two random 32-bit numbers, and the
checksum of its content. So a process never mistakes another process's files, such as a killed
run's, for its own. A file is written under another name and renamed when complete.

Nothing here uses JAX: compiled programs call these functions (`stores`).
"""

import atexit
import math
import os
import secrets
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

TICKET = 3
"""Numbers in a ticket."""

_PROGRAM = secrets.token_hex(8)

_folders: set[Path] = set()


def check_directory(directory: str | os.PathLike[str]) -> None:
    """Refuse a directory that does not exist, or in which we cannot make a folder. Checking the
    permission is not enough, because the file system may be read-only."""
    path = Path(directory)
    if not path.is_dir():
        raise FileNotFoundError(
            f"storage=Disk({os.fspath(directory)!r}): there is no such directory. Create it, or "
            "pass another one; checkpoints are written to a folder of their own in it."
        )
    try:
        os.rmdir(tempfile.mkdtemp(prefix="jax_revolve-", dir=path))
    except OSError as error:
        raise PermissionError(
            f"storage=Disk({os.fspath(directory)!r}): the directory cannot be written to: "
            f"{error.strerror}. Pass one in which this process may make a folder."
        ) from error


def write_file(directory: str | os.PathLike[str], arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Write the arrays to a new file. Returns its ticket."""
    content, checksum = bytes_of(arrays), 0
    for chunk in content:
        checksum = zlib.crc32(chunk, checksum)
    ticket = np.array([secrets.randbits(32), secrets.randbits(32), checksum], np.uint32)
    path = _path(directory, ticket)
    if not path.parent.exists():
        check_directory(directory)
        path.parent.mkdir(exist_ok=True)
    _folders.add(path.parent)
    write_whole(path, "A checkpoint", content)
    return ticket


def bytes_of(arrays: Iterable[np.ndarray]) -> list[memoryview]:
    return [np.ascontiguousarray(a).reshape(-1).view(np.uint8).data for a in arrays]


def arrays_of(content: bytes, like: Iterable[tuple[Sequence[int], np.dtype]]) -> list[np.ndarray]:
    """The arrays of these shapes and dtypes whose concatenated `bytes_of` are the content."""
    arrays, at = [], 0
    for shape, dtype in like:
        arrays.append(np.ndarray(tuple(shape), dtype, content, at))
        at += math.prod(shape) * dtype.itemsize
    return arrays


def write_whole(path: Path, what: str, content: Sequence[Any], *, sync: bool = False) -> None:
    """Write a file beside its place, and rename it when complete. `sync` makes it durable."""
    unfinished = path.with_suffix(".part")
    try:
        with open(unfinished, "wb") as file:
            file.writelines(content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        free = shutil.disk_usage(path.parent).free if path.parent.exists() else 0
        raise OSError(
            error.errno,
            f"{what} of {sum(map(len, content))} bytes could not be written to {path}: "
            f"{error.strerror or error}. {free} bytes are free there.",
        ) from error


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_file(
    directory: str | os.PathLike[str],
    ticket: Sequence[int],
    like: Sequence[tuple[tuple[int, ...], np.dtype]],
    *,
    is_last: bool,
) -> list[np.ndarray]:
    """The arrays of a ticket, of these shapes and dtypes; the last read removes the file."""
    path = _path(directory, ticket)
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"The checkpoint {path} does not exist. A checkpoint on disk is removed once the "
            "reverse pass has used it, so a function that jax.vjp returned can be called once; "
            "call jax.vjp again, or use jax.vmap of it for several cotangents."
        ) from error
    if zlib.crc32(content) != ticket[-1]:
        raise OSError(f"The checkpoint {path} is damaged: it is not what was written.")
    arrays = arrays_of(content, like)
    if is_last:
        path.unlink(missing_ok=True)
    return arrays


def remove_file(directory: str | os.PathLike[str], ticket: Sequence[int]) -> None:
    _path(directory, ticket).unlink(missing_ok=True)


def _path(directory: str | os.PathLike[str], ticket: Any) -> Path:
    return Path(directory) / _folder() / "{:08x}{:08x}{:08x}.checkpoint".format(*ticket)


def _folder() -> str:
    """The process's own folder. A forked process has another number, and so another folder."""
    return f"jax_revolve-{_PROGRAM}-{os.getpid()}"


@atexit.register
def _remove_folders() -> None:
    """Remove files that were never read, such as an unused gradient's checkpoints."""
    for folder in _folders:
        if folder.name == _folder():  # not a folder of the process that forked this one
            shutil.rmtree(folder, ignore_errors=True)
