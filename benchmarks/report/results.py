"""Files of results, and how one measurement compares with others in its file."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.contenders.scans import LAX_SCAN

FOLDER = Path(__file__).parents[1] / "results"


@dataclass(frozen=True, eq=False)
class Run:
    """One measurement, among `others`: all of its file. "MB" and "seconds" are its memory and time
    in those units."""

    fields: dict[str, Any]
    others: "Sequence[Run]"

    def __getitem__(self, name: str) -> Any:
        if name == "MB":
            return self["temp_bytes"] and self["temp_bytes"] / 1e6
        return self["median_ms"] / 1e3 if name == "seconds" else self.fields[name]

    def beside(self, contender: str) -> "list[Run]":
        """Its runs for the same result and, if it has any, with as many checkpoints."""
        same = {name: self[name] for name in ("workload", "quantity")}
        runs = find(self.others, contender=contender, **same)
        return [run for run in runs if run["checkpoints"] in (None, self["checkpoints"])]

    def memory_over(self, contender: str) -> float:
        return self["temp_bytes"] / self.beside(contender)[0]["temp_bytes"]


@dataclass(frozen=True)
class Results:
    """A file of results: the machine, and what was measured on it."""

    machine: dict[str, Any]
    runs: Sequence[Run]

    @property
    def where(self) -> str:
        return f"on {self.machine['cores']} CPU cores with jax {self.machine['versions']['jax']}"


@cache
def load(name: str) -> Results:
    """The results of a name such as `scan-cpu`."""
    record = json.loads((FOLDER / f"{name}.json").read_text())
    runs: list[Run] = []
    runs += [Run(fields, runs) for fields in record["measurements"]]
    return Results(record["machine"], runs)


def find(runs: Iterable[Run], **wanted: Any) -> list[Run]:
    return [run for run in runs if wanted.items() <= run.fields.items()]


def quickest(runs: Iterable[Run], **wanted: Any) -> Run:
    """Some contenders, as nested scans, are tried in several ways."""
    return min(find(runs, **wanted), key=lambda run: run["median_ms"])


def within(runs: Sequence[Run], contender: str, share: float | None = None) -> Run | None:
    """The quickest run with a budget of this share of the memory that `lax.scan` takes, if any."""
    found = find(runs, contender=contender)
    if share is not None:
        everything = quickest(runs, contender=LAX_SCAN.name)["temp_bytes"]
        found = find(found, budget=int(share * everything))
    return quickest(found) if found else None


def labeled(
    wanted: Iterable[tuple[str, str, float | None]], **which: Any
) -> Callable[[Results], Iterator[tuple[str, Run]]]:
    """A label and the quickest run of each contender within a share, of runs with these fields."""

    def rows(results: Results) -> Iterator[tuple[str, Run]]:
        runs = find(results.runs, **which)
        for label, contender, share in wanted:
            run = within(runs, contender, share)
            assert run is not None, label
            yield label, run

    return rows


def grouped(results: Results, name: str) -> Iterator[list[Run]]:
    """The runs with the same value of a field."""
    for value in dict.fromkeys(run[name] for run in results.runs):
        yield find(results.runs, **{name: value})


def by_contender(results: Results, name: str) -> Iterator[dict[str, Run]]:
    """The same, by their contenders."""
    return ({run["contender"]: run for run in runs} for runs in grouped(results, name))
