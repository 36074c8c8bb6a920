"""Folders whose operations are counted, fail or kill, and small disks."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from jax_revolve.storage import files

OPERATIONS: dict[Any, tuple[str, ...]] = {
    os: ("open", "replace", "fsync", "ftruncate", "listdir", "write"),
    Path: ("mkdir", "unlink", "rmdir", "read_bytes"),
}


@contextmanager
def before_each_operation(within: Path, act: Callable[[str], None]) -> Iterator[None]:
    """Calls a function with the name of each operation on the files of a folder before that
    happens, and within each write, half of which is done."""

    def concerns(file: Any) -> bool:
        path = os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else os.fspath(file)
        return path.startswith(os.fspath(within))

    def wrapped(owner: Any, name: str) -> Any:
        function = getattr(owner, name)

        def run(file: Any, *args: Any, **kwargs: Any) -> Any:
            if concerns(file):
                act(name)
            return function(file, *args, **kwargs)

        return mock.patch.object(owner, name, run)

    class Writing:
        def __init__(self, path: Path, mode: str) -> None:
            act("open to write")
            self.file = open(path, mode)  # noqa: SIM115
            self.flush, self.fileno = self.file.flush, self.file.fileno

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def writelines(self, content: Any) -> None:
            data = b"".join(content)
            self.file.write(data[: len(data) // 2])
            self.file.flush()
            act("write")
            self.file.write(data[len(data) // 2 :])

    with ExitStack() as stack:
        for owner, names in OPERATIONS.items():
            for name in names:
                stack.enter_context(wrapped(owner, name))
        stack.enter_context(mock.patch.object(files, "open", Writing, create=True))
        yield


def size_of(folder: Path) -> int:
    """The bytes of all files, some of which may be removed meanwhile."""
    found = 0
    for at, _, names in os.walk(folder):
        for name in names:
            try:
                found += os.stat(os.path.join(at, name)).st_size
            except FileNotFoundError:
                continue
    return found


@contextmanager
def small_disk(at: Path, size: int) -> Iterator[Callable[[int], None]]:
    """A file system of so many bytes, with a function that changes them. `PermissionError` where
    this process may mount none."""
    at.mkdir()

    def mount(*options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", os.fspath(at)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PermissionError(f"no file system can be mounted here: {done.stderr}")

    mount(f"size={size}")
    try:
        yield lambda size: mount("remount", f"size={size}")
    finally:
        subprocess.run(["umount", "-l", os.fspath(at)], check=True)
