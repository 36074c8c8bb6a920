"""Runs of `host_scan` that end, and what they leave in their directory."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import host_scan_program

from jax_revolve import host_scan
from jax_revolve.host.watch import Watch
from jax_revolve.storage import files

Patch = pytest.MonkeyPatch
PROGRAM = Path(host_scan_program.__file__)


def bits(result: Any) -> bytes:
    return b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(result))


def contents(directory: Path) -> dict[Path, bytes]:
    paths = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {path.relative_to(directory): path.read_bytes() for path in paths}


class Ended(BaseException):
    """The end of a process, as far as its files can tell."""


def end() -> None:
    raise Ended


@contextmanager
def acting(
    at: int | None, act: Any, monkeypatch: Patch, *, steps_only: bool = False
) -> Iterator[list[str]]:
    """Acts once before that step, write, sync, rename or removal of a file, and notes them all. Of
    `steps_only`, it acts after the evaluation with that number."""
    events: list[str] = []

    def before(name: str, function: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            events.append(name)
            if len(events) - 1 == at:
                act()
            return function(*args, **kwargs)

        return run

    with monkeypatch.context() as patched:
        patched.setattr(Watch, "between_steps", before("step", Watch.between_steps))
        if not steps_only:
            patched.setattr(files.os, "fsync", before("fsync", lambda _: None))  # it takes its time
            patched.setattr(files.os, "replace", before("replace", os.replace))
            patched.setattr(Path, "unlink", before("unlink", Path.unlink))
        yield events


def ends_at(event: int | None, monkeypatch: Patch) -> Any:
    return acting(event, end, monkeypatch)


def environment() -> dict[str, str]:
    """With which another process finds the package and the tests."""
    paths = [str(PROGRAM.parents[2]), str(PROGRAM.parents[1]), *filter(None, sys.path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def run(
    directory: Path | None,
    weight: Any = 0.5,
    start: Any = 1.0,
    power: int = 2,
    ct: float = 1.0,
    is_value: bool = False,
    checkpoints: int | None = 3,
    **more: Any,
) -> Any:
    options: Any = {"length": 9, "save_every": 0, "checkpoints": checkpoints, **more}

    def loss(weight: Any, start: Any) -> Any:
        step = lambda u, _: (jnp.sin(weight * u**power), u)  # noqa: E731
        return host_scan(step, start, directory=directory, **options)[0] * ct

    return (loss if is_value else jax.value_and_grad(loss))(weight, start)
