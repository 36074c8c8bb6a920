"""`python -m benchmarks accelerator`: every piece runs, at tiny sizes."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("part", [1, 2])
def test_every_piece_of_the_command(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    pieces = importlib.import_module("benchmarks.accelerator").PIECES
    command = [sys.executable, "-m", "benchmarks", "accelerator", "--quick", "--part", str(part)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    path = Path(done.stdout.rpartition("Written: ")[2].strip())
    assert ROOT not in path.parents
    records = json.loads(path.read_text())["measurements"]
    wanted = {name for name, piece in pieces.items() if piece.part == part}
    assert {record["piece"] for record in records} == wanted
    assert not [record for record in records if "error" in record]
