"""Runs a benchmark piece by piece, and writes its file of results: the only writer.

A file has what `machine.py` says of the machine and the sources, the "measurements", and for each
piece its date, its seconds, and the load before and after it. Until all pieces are measured it is a
`.part`, from which the next run goes on if the sources and the machine are the same.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic
from typing import Any, Protocol

import jax

from benchmarks.report.results import FOLDER, Results
from benchmarks.report.table import Table, markdown
from benchmarks.runner.machine import VARYING, describe_machine, device_slug, load, today
from benchmarks.runner.programs import Record


class Piece(Protocol):
    """A `Comparison`, or a `Measurement`: nothing is measured before it is asked to."""

    @property
    def name(self) -> str: ...

    def measured(self, quick: bool, /) -> list[Record]: ...


@dataclass(frozen=True)
class Measurement:
    """A piece that compares no programs by their results."""

    name: str
    measured: Callable[[bool], list[Record]]


@dataclass(frozen=True)
class Benchmark:
    """`results` is the first part of the name of its file, whose last part is the device, perhaps
    one that is only described. The pages show `tables` of what was measured on a CPU or for that
    device, and `figures` in their text."""

    results: str
    pieces: Callable[[bool], Iterator[Piece]]
    tables: Mapping[str, Table] = field(default_factory=dict)
    figures: Mapping[str, Callable[[Results], str]] = field(default_factory=dict)
    described: str | None = None

    @property
    def shown(self) -> str:
        """The file of results that the tables are made of."""
        return f"{self.results}-{self.described or 'cpu'}"

    def run(self, quick: bool, folder: Path | None = None) -> None:
        """A quick run writes to a temporary folder."""
        if quick:  # nearly all of the time goes into compiling
            jax.config.update("jax_disable_most_optimizations", True)
        folder = folder or (Path(mkdtemp()) if quick else FOLDER)
        path = folder / f"{self.results}-{self.described or device_slug()}.json"
        part = path.with_suffix(".part")
        machine = describe_machine()
        results: dict[str, Any] = {"machine": machine, "pieces": {}, "measurements": []}
        results = _going_on(part, machine) or _going_on(path, machine) or results
        taken = _seconds_of_pieces(path)
        left = sum(taken.values()) - sum(taken.get(name, 0) for name in results["pieces"])
        print(f"{path.stem}: {_in_minutes(left if taken else None)}", flush=True)
        for piece in self.pieces(quick):
            if piece.name not in results["pieces"]:
                print(f"{piece.name}: {_in_minutes(taken.get(piece.name))}", flush=True)
                before, start = load(), monotonic()
                found = piece.measured(quick)
                print(summary(found), end="\n\n", flush=True)
                results["measurements"] += found
                results["pieces"][piece.name] = {
                    "date": today(),
                    "seconds": round(monotonic() - start, 1),
                    "load": [before, load()],
                }
                part.write_text(json.dumps(results, indent=1) + "\n")
        path.write_text(json.dumps(results, indent=1) + "\n")
        part.unlink(missing_ok=True)
        print(f"Written: {path}", flush=True)


def _seconds_of_pieces(path: Path) -> dict[str, float]:
    """Of the last run, whatever its sources were."""
    known = json.loads(path.read_text()).get("pieces", {}) if path.exists() else {}
    return {name: piece["seconds"] for name, piece in known.items()}


def _in_minutes(seconds: float | None) -> str:
    if seconds is None:
        return "it is not known how long it takes"
    return f"about {seconds / 60:.1f} minutes, by its last run"


def _going_on(path: Path, machine: dict[str, Any]) -> dict[str, Any] | None:
    """The results that are known of this machine with these sources."""
    known = json.loads(path.read_text()) if path.exists() else None
    varying = {name: machine[name] for name in VARYING}
    return known if known and {**known["machine"], **varying} == machine else None


def summary(records: list[Record]) -> str:
    """Every field that is known of any of them."""
    names = dict.fromkeys(name for record in records for name in record)
    known = [name for name in names if any(r.get(name) not in (None, "") for r in records)]
    return markdown([(name, lambda r, name=name: _shown(r.get(name))) for name in known], records)


def _shown(value: object) -> str:
    if isinstance(value, list):
        return " - ".join(map(_shown, value))
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
