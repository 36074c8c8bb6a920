"""Runs pieces of a measurement, each in a process of its own, and goes on where it ended before.

A piece that fails, is killed for its memory or takes too long is recorded with its error, and the
next one runs. The file of results is written after each piece.
"""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, time
from typing import Any, NamedTuple

from benchmarks.runner.comparison import Record

SIZES = ("full", "reduced", "quick")

LAST_START = 480.0
"""Seconds after which a part starts no further piece."""

END = 515.0
"""Seconds after which no piece of a part runs on."""

LEAST = 1.0
LONGEST_ERROR = 500


class Setting(NamedTuple):
    """What a piece is told: `size` is "full", "reduced" or "quick", `until` when it is killed, in
    seconds of `time.time`, and `folder` where it may write files."""

    size: str
    until: float
    folder: Path

    def of(self, choices: Sequence[Any]) -> Any:
        """The one of three choices for this size."""
        return choices[SIZES.index(self.size)]

    @property
    def seconds(self) -> float:
        """What is left."""
        return max(self.until - time(), LEAST)


@dataclass(frozen=True)
class Piece:
    """A piece that takes at most so many seconds, and yields records. `None` among them says that
    the next ones replace those before."""

    name: str
    part: int
    seconds: float
    measure: Callable[[Setting], Iterator[Record | None]]


Command = Callable[[Piece, float, Path], Sequence[str]]
"""The command that runs a piece with a limit of seconds, and writes its records to a file."""


@dataclass(eq=False)
class Results:
    """The file of results. Pieces are `done` if they ran without an error under these `conditions`,
    such as versions and sizes; others run, or run again."""

    path: Path
    machine: dict[str, Any]
    conditions: dict[str, Any]

    def __post_init__(self) -> None:
        known = json.loads(self.path.read_text()) if self.path.exists() else {}
        self._pieces: dict[str, Record] = known.get("pieces", {})
        self._records: list[Record] = known.get("measurements", [])

    def is_done(self, piece: Piece) -> bool:
        return self.is_tried(piece) and self._pieces[piece.name]["error"] is None

    def is_tried(self, piece: Piece) -> bool:
        known = self._pieces.get(piece.name)
        return known is not None and known.items() >= self.conditions.items()

    def add(self, piece: Piece, ran: "Ran") -> None:
        """Write what a piece found, in place of what it found before."""
        about = {"part": piece.part, "seconds": round(ran.seconds, 1), "error": ran.error}
        self._pieces[piece.name] = about | self.conditions
        others = [record for record in self._records if record["piece"] != piece.name]
        self._records = others + [{"piece": piece.name} | record for record in ran.records]
        everything = {
            "machine": self.machine,
            "pieces": self._pieces,
            "measurements": self._records,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(self.path.name + ".new")
        beside.write_text(json.dumps(everything, indent=1) + "\n")
        beside.replace(self.path)


class Ran(NamedTuple):
    """What a piece found, and its error."""

    records: list[Record]
    seconds: float
    error: str | None


def run_part(pieces: Sequence[Piece], results: Results, command: Command) -> None:
    """Run what is not done, first what was never tried, as far as there is time."""
    start = monotonic()
    todo = [piece for piece in pieces if not results.is_done(piece)]
    for piece in sorted(todo, key=results.is_tried):
        spent = monotonic() - start
        if spent >= LAST_START:
            print(f"== {piece.name}: no time left; run the command again", flush=True)
            continue
        limit = min(piece.seconds, END - spent)
        print(f"== {piece.name}, at most {limit:.0f} s", flush=True)
        ran = run_piece(lambda into, piece=piece, limit=limit: command(piece, limit, into), limit)
        results.add(piece, ran)
        print(f"{len(ran.records)} records in {ran.seconds:.0f} s; {ran.error or 'no error'}")


def run_piece(command: Callable[[Path], Sequence[str]], limit: float) -> Ran:
    """Run a command that writes records to a file, a line each, and kill it and what it started
    after so many seconds. Records that were written by then count."""
    start = monotonic()
    with TemporaryDirectory() as folder:
        into, errors = Path(folder) / "records", Path(folder) / "errors"
        into.touch()
        with errors.open("w") as stderr:
            process = subprocess.Popen(command(into), stderr=stderr, start_new_session=True)
            try:
                status: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                _kill(process)
        error = None if status == 0 else _error(status, limit, errors.read_text())
        return Ran(_lines(into), monotonic() - start, error)


def append(record: Record | None, into: Path) -> None:
    """Write a record for the process that waits for it."""
    with into.open("a") as file:
        file.write(json.dumps(record) + "\n")


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """The process, if it runs, and those that it left."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _lines(file: Path) -> list[Record]:
    """The last line may be cut off."""
    found: list[Record] = []
    for line in file.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            record = json.loads(line)
            found = [] if record is None else [*found, record]
    return found


def _error(status: int | None, limit: float, stderr: str) -> str:
    if status is None:
        return f"killed after {limit:.0f} s"
    lines = [line for line in stderr.splitlines() if line.strip()]
    last = lines[-1].strip()[:LONGEST_ERROR] if lines else "no message"
    how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
    return f"{how}: {last}"
