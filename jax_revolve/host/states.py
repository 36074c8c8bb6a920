"""The saved states of a run in a directory, from the newest of which it can resume, and its lock.

A state is a JSON file that refers to array files. States share array files, which are written once,
so a state only costs its new arrays. Each file is written beside its place, synced and renamed, and
every reference has its checksum. We keep the two newest states, with their files. If the newest is
damaged, the run resumes from the one before.
"""

import json
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_revolve.host.identity import checksum
from jax_revolve.storage.files import (
    LOGGER,
    Folder,
    FolderLock,
    arrays_of,
    bytes_of,
    lock_folder,
    make_folder,
)

KEPT = 2
"""The states that are kept."""

_STATE = re.compile(r"state-(\d+)\.json")
_OURS = re.compile(r"state-\d+\.(json|part)|[0-9a-f]{16}\.(arrays|part)")

ArrayFile = dict[str, Any]
"""A state's reference to an array file: its name, checksum and size, shapes and dtypes."""


class DamagedError(OSError):
    """A file of a saved run is missing or damaged."""


class States:
    """The states in a folder, which is made if needed. One process uses it at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = Folder(make_folder(folder))
        self._kept: list[tuple[int, set[str]]] = []
        self._own = set[str]()
        """The files that the kept states refer to, and those of the next one."""

    def lock(self) -> FolderLock:
        """Keep other processes out. `BlockingIOError` if one is there."""
        self._folder.lock = lock_folder(self._folder.path)
        return self._folder.lock

    def unlock(self) -> None:
        """Nothing is written from now on."""
        self._folder.lock = None

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

    def go_on(self, number: int) -> None:
        """Write the next states after this one. Newer ones are removed, and what an unfinished save
        left, because there may be no room for the next one."""
        folder, kept = self._folder, list[tuple[int, set[str]]]()
        for found in sorted(self._numbers()):
            if found > number:
                folder.remove([_state(found)])
            else:
                with suppress(DamagedError):
                    kept.append((found, _files(self.read_state(found))))
        self._kept = kept[-KEPT:]
        self._own = self._wanted()
        orphans = set(filter(_OURS.fullmatch, folder.names())) - self._own
        if orphans and (obstacle := folder.obstacle()):
            LOGGER.warning(
                "host_scan: left %d files of an unfinished save in %s, because %s. Remove the file "
                "'lock' there once that has ended; the next run then removes them.",
                *(len(orphans), folder.path, obstacle),
            )
        elif orphans:
            folder.removed = folder.remove(orphans)
            text = "host_scan: removed %d bytes of an unfinished save in %s."
            LOGGER.warning(text, folder.removed, folder.path)

    def undo(self) -> None:
        """Remove what an unfinished save has written, if the disk is still there."""
        with suppress(OSError):
            self._folder.remove(self._own - self._wanted())

    def write(self, arrays: Sequence[np.ndarray]) -> ArrayFile:
        """Write arrays to a file that the next states may refer to."""
        name = f"{secrets.token_hex(8)}.arrays"
        content = bytes_of(arrays)
        self._folder.write(name, "A file of arrays", content, sync=True)
        self._own.add(name)
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
        self._folder.write(_state(number), "A state", [content], sync=True)
        self._kept = [*self._kept, (number, _files(state))][-KEPT:]
        self._folder.sync()
        unwanted, self._own = self._own - self._wanted(), self._wanted()
        self._folder.remove(unwanted)

    def _wanted(self) -> set[str]:
        """The kept states, and their files."""
        return {_state(number) for number, _ in self._kept}.union(*(f for _, f in self._kept))

    def _numbers(self) -> list[int]:
        return [int(match[1]) for match in map(_STATE.fullmatch, self._folder.names()) if match]

    def read_state(self, number: int) -> Any:
        """A state. `DamagedError` if it is damaged or missing."""
        found, _, text = self._read(_state(number)).partition(b"\n")
        if found != checksum([text]).encode():
            raise DamagedError(f"state {number} is damaged or missing")
        return json.loads(text)

    def _content(self, file: ArrayFile) -> bytes:
        content = self._read(file["file"])
        if checksum([content]) != file["sha256"]:
            path = self._folder.path / file["file"]
            raise DamagedError(f"The file {path} is missing, or is not what was written.")
        return content

    def _read(self, name: str) -> bytes:
        with suppress(FileNotFoundError):
            return self._folder.read(name)
        return b""


def _state(number: int) -> str:
    return f"state-{number}.json"


def _files(state: Any) -> set[str]:
    return {file["file"] for file in _array_files(state)}


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
