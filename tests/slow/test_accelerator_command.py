"""`python -m benchmarks accelerator`: pieces in processes, and what is read of programs."""

import importlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jax_revolve import checkpointed_scan

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


def _step(u: Any, _: Any) -> Any:
    return jnp.sin(u), None


def _text(loss: Any) -> str:
    text = jax.jit(jax.grad(loss)).lower(jnp.ones(8)).compile().as_text()
    assert text is not None
    return text


@pytest.mark.parametrize(
    ("options", "are_static"),
    [
        ({"checkpoints": "all"}, True),
        ({"checkpoints": 7, "block_size": 8}, True),
        ({"checkpoints": 6, "block_size": 8}, False),
        ({"checkpoints": 3}, False),
    ],
    ids=str,
)
def test_loops_of_dynamic_length(module: Any, options: dict[str, Any], are_static: bool) -> None:
    loss = lambda u: jnp.sum(checkpointed_scan(_step, u, length=64, **options)[0])  # noqa: E731
    text = _text(loss)
    facts = module("runner.hlo").ProgramText(text).facts([(8,)])
    assert facts["loops"] == text.count(" while(")
    assert (facts["dynamic_loops"] == 0) == are_static
    assert facts["fusions_in_loops"] > 0


TEXT = """
%condition (s: (s32[], f32[4,8]{1,0})) -> pred[] {
  %s = (s32[], f32[4,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %end = s32[] constant(5)
  ROOT %less = pred[] compare(%i, %end), direction=LT
}

%body (s.1: (s32[], f32[4,8]{1,0})) -> (s32[], f32[4,8]{1,0}) {
  %s.1 = (s32[], f32[4,8]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%s.1), index=0
  %slots = f32[4,8]{1,0} get-tuple-element(%s.1), index=1
  %copied = f32[4,8]{1,0} copy(%slots)
  %moved = (f32[4,8]{1,0:S(5)}, f32[4,8]{1,0}, u32[]) copy-start(%copied)
  %next = s32[] fusion(%i.1), kind=kLoop, calls=%plus
  ROOT %out = (s32[], f32[4,8]{1,0}) tuple(%next, %copied)
}

ENTRY %main (slots.1: f32[4,8]) -> f32[4,8] {
  %slots.1 = f32[4,8]{1,0} parameter(0)
  %zero = s32[] START
  %start = (s32[], f32[4,8]{1,0}) tuple(%zero, %slots.1)
  %loop = (s32[], f32[4,8]{1,0}) while(%start), condition=%condition, body=%body
  ROOT %result = f32[4,8]{1,0} get-tuple-element(%loop), index=1
}
"""


@pytest.mark.parametrize(("start", "dynamic"), [("constant(0)", 0), ("parameter(1)", 1)])
def test_a_program_that_does_not_tell_its_trip_counts(
    module: Any, start: str, dynamic: int
) -> None:
    """As those for a TPU."""
    facts = module("runner.hlo").ProgramText(TEXT.replace("START", start)).facts([(8,)])
    assert facts == {
        "loops": 1,
        "dynamic_loops": dynamic,
        "fusions_in_loops": 1,
        "custom_calls_in_loops": 0,
        "copies_of_buffers": 2,
        "transfers": 1,
    }


def _event(pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "X", "pid": pid, "tid": tid, "name": name}


def test_kernels_and_waits_are_counted_in_a_trace(module: Any) -> None:
    told = {"process_name": [(1, 0, "/device:GPU:0 gpu"), (2, 0, "/host:CPU")]}
    told["thread_name"] = [(1, 5, "Stream #13(Compute)"), (1, 6, "XLA Ops"), (1, 7, "Steps")]
    named = [
        {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": {"name": name}}
        for kind, names in told.items()
        for pid, tid, name in names
    ]
    happened = [
        *(_event(1, 5, name) for name in ("fusion_1", "gemm", "MemcpyD2H", "MemcpyD2D")),
        *(_event(1, 7, name) for name in ("0", "1")),
        *(_event(2, 9, name) for name in ("cuStreamSynchronize", "cuLaunchKernel")),
        {},
    ]
    counts = module("runner.trace").counts
    assert counts([*named, *happened]) == {"kernels": 2, "waits": 2}
    assert counts(_event(2, 9, "cuStreamSynchronize") for _ in "ab") == {
        "kernels": None,
        "waits": None,
    }


@pytest.mark.parametrize(
    "output",
    [
        "tests/test_a.py::test_b[1 + 2] PASSED   [ 50%]\ntests/test_a.py::test_c FAILED [100%]\n",
        "[gw0] [ 50%] PASSED tests/test_a.py::test_b[1 + 2] \n"
        "tests/test_a.py::test_c \n[gw1] [100%] FAILED tests/test_a.py::test_c \n",
    ],
)
def test_outcomes_of_tests(module: Any, output: str) -> None:
    outcomes = module("runner.pytests").outcomes
    known = {"passed": 1, "failed": ["tests/test_a.py::test_c"]}
    assert outcomes(output) == {"summary": None, **known}
    summary = "1 failed, 1 passed in 3.21s"
    assert outcomes(f"{output}==== {summary} ====\n") == {"summary": summary, **known}


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
