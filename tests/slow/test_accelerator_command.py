"""`python -m benchmarks accelerator`: every piece runs, at tiny sizes."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Modules of the benchmarks, by name."""
    monkeypatch.syspath_prepend(ROOT)
    return lambda name: importlib.import_module(f"benchmarks.{name}")


def _quickly(*arguments: str) -> Any:
    """The results of the command."""
    command = [sys.executable, "-m", "benchmarks", "accelerator", "--quick", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    path = Path(done.stdout.rpartition("Written: ")[2].strip())
    assert ROOT not in path.parents
    return json.loads(path.read_text())


@pytest.mark.parametrize("part", [1, 2])
def test_every_piece_of_the_command(part: int, module: Any) -> None:
    found = _quickly("--part", str(part))
    wanted = [piece.name for piece in module("accelerator").PIECES if piece.part == part]
    assert list(found["pieces"]) == wanted
    assert [piece["error"] for piece in found["pieces"].values()] == [None] * len(wanted)
    assert {record["piece"] for record in found["measurements"]} == set(wanted)
