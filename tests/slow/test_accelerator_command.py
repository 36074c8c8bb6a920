"""`python -m benchmarks accelerator`: pieces in processes, and what is read of programs."""

import importlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
WRITES = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text({text!r}); {then}"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Modules of the benchmarks, by name."""
    monkeypatch.syspath_prepend(ROOT)
    return lambda name: importlib.import_module(f"benchmarks.{name}")


def _piece(pieces: Any, name: str, seconds: float = 60) -> Any:
    return pieces.Piece(name, 1, seconds, lambda _: iter(()))


def _program(text: str, then: str = "") -> Any:
    """The command of a piece that writes some text and does something else."""

    def command(piece: Any, limit: float, into: Path) -> Sequence[str]:
        del piece, limit
        return [sys.executable, "-c", WRITES.format(text=text, then=then), str(into)]

    return command


def _run(pieces: Any, path: Path, command: Any, *names: str, version: str = "1", **how: Any) -> Any:
    """What is in the file after a run."""
    results = pieces.Results(path, {"device": "none"}, {"version": version})
    pieces.run_part([_piece(pieces, name, **how) for name in names], results, command)
    return json.loads(path.read_text())


RECORD = '{"found": 1}\n'


def test_a_finished_piece_does_not_run_again(module: Any, tmp_path: Path) -> None:
    pieces, path = module("runner.pieces"), tmp_path / "results.json"
    first = _run(pieces, path, _program(RECORD), "a")
    assert first["measurements"] == [{"piece": "a", "found": 1}]
    again = _run(pieces, path, _program('{"found": 2}\n'), "a", "b")
    assert again["measurements"] == [{"piece": "a", "found": 1}, {"piece": "b", "found": 2}]
    other = _run(pieces, path, _program('{"found": 3}\n'), "a", version="2")
    assert {"piece": "a", "found": 3} in other["measurements"]
    assert len(other["measurements"]) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


def test_a_failing_piece_is_recorded_and_runs_again_after_the_others(
    module: Any, tmp_path: Path
) -> None:
    pieces, path = module("runner.pieces"), tmp_path / "results.json"
    order: list[str] = []

    def command(piece: Any, limit: float, into: Path) -> Sequence[str]:
        order.append(piece.name)
        fails = "raise MemoryError('no room')" if piece.name == "a" else ""
        return _program(RECORD, fails)(piece, limit, into)

    found = _run(pieces, path, command, "a", "b")
    assert found["pieces"]["a"]["error"] == "exit status 1: MemoryError: no room"
    assert found["pieces"]["b"]["error"] is None
    assert [record["piece"] for record in found["measurements"]] == ["a", "b"]
    _run(pieces, path, command, "a", "b", "c")
    assert order == ["a", "b", "c", "a"]


@pytest.mark.parametrize(
    ("then", "error"),
    [
        ("import time; time.sleep(60)", "killed after 2 s"),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL: no message"),
    ],
)
def test_a_killed_piece_keeps_its_records(
    module: Any, tmp_path: Path, then: str, error: str
) -> None:
    pieces, path = module("runner.pieces"), tmp_path / "results.json"
    found = _run(pieces, path, _program(RECORD + '{"cut of', then), "a", seconds=2)
    assert found["pieces"]["a"]["error"] == error
    assert found["measurements"] == [{"piece": "a", "found": 1}]


def test_a_part_starts_nothing_when_its_time_is_over(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pieces, path = module("runner.pieces"), tmp_path / "results.json"
    monkeypatch.setattr(pieces, "LAST_START", 0.0)
    results = pieces.Results(path, {}, {})
    pieces.run_part([_piece(pieces, "a")], results, _program(RECORD))
    assert not path.exists()
    assert "run the command again" in capsys.readouterr().out


@pytest.mark.usefixtures("compile_quickly")
def test_a_contender_that_fails_is_left_out(module: Any) -> None:
    scans, recurrences = module("contenders.scans"), module("workloads.recurrences")
    programs = module("runner.programs")

    def fails(*_: Any) -> Any:
        raise MemoryError("RESOURCE_EXHAUSTED: out of memory")

    workload = recurrences.scanned(recurrences.stencil(4, 8))
    trials = module("runner.tolerant").Trials(workload, 60.0)
    wanted = [programs.Contender("too large", fails), scans.LAX_SCAN, scans.REMAT]
    ran = trials.attempt_all(wanted)
    assert [program.contender.name for program in ran] == ["lax.scan", "lax.scan(checkpoint)"]
    *timed, failed = trials.records()
    assert [record["difference"] < 1e-6 for record in timed] == [True, True]
    assert failed["contender"] == "too large"
    assert failed["error"] == "MemoryError: RESOURCE_EXHAUSTED: out of memory"


def _quickly(*arguments: str) -> Any:
    """The results of the command."""
    command = [sys.executable, "-m", "benchmarks", "accelerator", "--quick", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    path = Path(done.stdout.rpartition("Written: ")[2].strip())
    assert ROOT not in path.parents
    return json.loads(path.read_text())


def test_the_command_runs_a_piece() -> None:
    found = _quickly("--only", "host offload")
    assert found["pieces"]["host offload"]["error"] is None
    assert [r.get("error") for r in found["measurements"]] == [None] * 4


@pytest.mark.parametrize("part", [1, 2])
def test_every_piece_of_the_command(part: int, module: Any) -> None:
    found = _quickly("--part", str(part))
    wanted = [piece.name for piece in module("accelerator").PIECES if piece.part == part]
    assert list(found["pieces"]) == wanted
    assert [piece["error"] for piece in found["pieces"].values()] == [None] * len(wanted)
    assert {record["piece"] for record in found["measurements"]} == set(wanted)
