"""A directory with the states of a run, from the newest of which it can go on.

A state is a JSON file that refers to files of arrays. Files of arrays are written once and shared
by the states that refer to them, so a state costs what is new in it. Each file is written beside
its place, synced and renamed, and has a checksum in what refers to it. The two newest states are
kept, with their files. If the newest is damaged, the one before is used.
"""

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_revolve.storage.files import arrays_of, bytes_of, write_durably

KEPT = 2
"""The states that are kept."""

_STATE = re.compile(r"state-(\d+)\.json")
_OURS = re.compile(r"state-\d+\.(json|part)|[0-9a-f]{16}\.(arrays|part)")

Part = dict[str, Any]
"""What a state holds of a file of arrays: its name, its checksum, shapes and dtypes."""


class DamagedError(OSError):
    """A file is not what was written."""


class States:
    """The states in a directory, which is made if it does not exist."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._folder = Path(directory)
        self._folder.mkdir(exist_ok=True)
        self._kept: list[tuple[int, set[str]]] = []

    def newest(self) -> Any:
        """The newest state that is not damaged; `None` if there are no states."""
        numbers = sorted(self._numbers(), reverse=True)
        for number in numbers:
            try:
                state = self._read(number)
                files = {part["file"] for part in _parts(state)}
                for part in _parts(state):
                    self._content(part)
            except DamagedError:
                continue
            self._kept = [(number, files)]
            return state
        if numbers:
            raise DamagedError(
                f"Every state in the directory {self._folder} is damaged. Nothing was changed. "
                "Remove the directory, or pass another one, to begin again."
            )
        return None

    def write(self, arrays: Sequence[np.ndarray]) -> Part:
        """Write arrays to a file that the next states may refer to."""
        content, name = bytes_of(arrays), f"{secrets.token_hex(8)}.arrays"
        write_durably(self._folder / name, "A part of a state", content, is_last=False)
        types = [[list(a.shape), a.dtype.name] for a in arrays]
        return {"file": name, "sha256": _checksum(content), "types": types}

    def read(self, part: Part) -> list[np.ndarray]:
        """The arrays of a file."""
        like = [(shape, jnp.dtype(name)) for shape, name in part["types"]]
        return arrays_of(self._content(part), like)

    def save(self, state: Any) -> None:
        """Write a state, and remove what neither it nor the one before refers to."""
        text = json.dumps(state)
        number = max(self._numbers(), default=0) + 1
        content = f"{_checksum(text.encode())}\n{text}".encode()
        write_durably(self._folder / f"state-{number}.json", "A state", content, is_last=True)
        files = {part["file"] for part in _parts(state)}
        self._kept = [*self._kept, (number, files)][-KEPT:]
        self._clean()

    def _clean(self) -> None:
        wanted = {f"state-{number}.json" for number, _ in self._kept}
        wanted = wanted.union(*(files for _, files in self._kept))
        for path in list(self._folder.iterdir()):
            if _OURS.fullmatch(path.name) and path.name not in wanted:
                path.unlink(missing_ok=True)

    def _numbers(self) -> Iterable[int]:
        found = (_STATE.fullmatch(path.name) for path in self._folder.iterdir())
        return [int(match[1]) for match in found if match]

    def _read(self, number: int) -> Any:
        stored = (self._folder / f"state-{number}.json").read_bytes()
        checksum, _, text = stored.partition(b"\n")
        if checksum != _checksum(text).encode():
            raise DamagedError(f"state {number} is damaged")
        return json.loads(text)

    def _content(self, part: Part) -> bytes:
        path = self._folder / part["file"]
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise DamagedError(f"The file {path} does not exist.") from error
        if _checksum(content) != part["sha256"]:
            raise DamagedError(f"The file {path} is damaged: it is not what was written.")
        return content


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _parts(state: Any) -> Iterator[Part]:
    """The parts that a state refers to, wherever they are in it."""
    if isinstance(state, dict):
        if "sha256" in state:
            yield state
            return
        state = list(state.values())
    if isinstance(state, list | tuple):
        for value in state:
            yield from _parts(value)
