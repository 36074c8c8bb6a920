"""The tables of what `python -m benchmarks accelerator` found, of each device it ran on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.contenders import names
from benchmarks.report.results import FOLDER, Results, Run, find
from benchmarks.report.table import Column, Table, number, ratio

SHARES = (0.3, 0.1, 0.03)
BESIDE = {names.JAX_REVOLVE: "jax_revolve", names.NESTED: "nested", names.EQUINOX: "Equinox"}
WHERE = "{machine[device]}, jax {machine[versions][jax]}, {machine[size]} size"


@dataclass(frozen=True)
class TableOfDevices:
    """The same table for each device that there are results of, whose names begin alike."""

    table: Table

    @property
    def files(self) -> list[str]:
        return sorted(path.stem for path in FOLDER.glob(f"{self.table.results}-*.json"))

    def __str__(self) -> str:
        return "\n\n".join(str(replace(self.table, results=name)) for name in self.files)


def _of_piece(beginning: str) -> Callable[[Results], list[Run]]:
    """What was timed in pieces whose names begin like this."""

    def rows(results: Results) -> list[Run]:
        runs = (run for run in results.runs if run["piece"].startswith(beginning))
        return [run for run in runs if "median_ms" in run.fields]

    return rows


def _by_workload(beginning: str) -> Callable[[Results], Iterator[list[Run]]]:
    def rows(results: Results) -> Iterator[list[Run]]:
        runs = _of_piece(beginning)(results)
        for workload in dict.fromkeys(run["workload"] for run in runs):
            yield find(runs, workload=workload)

    return rows


def _quickest(runs: list[Run], contender: str, share: float | None = None) -> Run | None:
    """With a budget of this share of the memory of `lax.scan`."""
    found = find(runs, contender=contender)
    if share is not None:
        everything = find(runs, contender=names.LAX_SCAN)
        if not everything:
            return None
        found = find(found, budget=int(share * everything[0]["temp_bytes"]))
    return min(found, key=lambda run: run["median_ms"], default=None)


def _milliseconds(contender: str) -> Callable[[list[Run]], str]:
    def cell(runs: list[Run]) -> str:
        found = _quickest(runs, contender)
        return "failed" if found is None else f"{found['median_ms']:.3g} ms"

    return cell


def _megabytes(contender: str) -> Callable[[list[Run]], str]:
    def cell(runs: list[Run]) -> str:
        found = _quickest(runs, contender)
        return "" if found is None else f"{found['temp_bytes'] / 1e6:.3g} MB"

    return cell


def _over(contender: str, other: str, share: float | None = None) -> Callable[[list[Run]], str]:
    """The time of a contender over that of another one."""

    def cell(runs: list[Run]) -> str:
        one, two = _quickest(runs, contender, share), _quickest(runs, other)
        if one is None or two is None:
            return ""
        return ratio(one, two)

    return cell


def _workload(runs: list[Run]) -> str:
    return runs[0]["workload"]


def _count(name: str, digits: int = 0) -> Callable[[Run], str]:
    return lambda run: number(run.fields.get(name), digits)


def _result(run: tuple[str, dict[str, Any], list[Run]]) -> str:
    _, piece, records = run
    told = [r for r in records if "summary" in r.fields]
    if piece["error"] is not None:
        return piece["error"]
    if told:
        return told[0]["summary"] or f"{told[0]['passed']} passed when the time was over"
    failed = sum("error" in r.fields for r in records)
    return f"{len(records) - failed} measured" + (f", {failed} failed" if failed else "")


def _pieces(results: Results) -> Iterator[tuple[str, dict[str, Any], list[Run]]]:
    for name, piece in results.pieces.items():
        yield name, piece, find(results.runs, piece=name)


def _front_columns() -> Iterator[Column]:
    for share in SHARES:
        for contender, label in BESIDE.items():
            yield f"{share:.0%}: {label}", _over(contender, names.LAX_SCAN, share)


def _device(caption: str, rows: Any, columns: list[Column]) -> TableOfDevices:
    return TableOfDevices(Table("accelerator", f"{caption} ({WHERE}):", rows, columns))


ACCELERATORS = {
    "accelerator-pieces": _device(
        "What was run",
        _pieces,
        [
            ("piece", lambda row: row[0]),
            ("size", lambda row: row[1]["size"]),
            ("seconds", lambda row: number(row[1]["seconds"], 0)),
            ("result", _result),
        ],
    ),
    "accelerator-fronts": _device(
        "Gradients with `memory=` a share of what `lax.scan` takes, and the quickest nested scans"
        " and Equinox's loop in as much memory: times over `lax.scan`'s",
        _by_workload("front"),
        [
            ("loop", _workload),
            ("`lax.scan`", _megabytes(names.LAX_SCAN)),
            ("time", _milliseconds(names.LAX_SCAN)),
            *_front_columns(),
        ],
    ),
    "accelerator-offload": _device(
        "Gradients with checkpoints in the host's memory",
        _of_piece("host offload"),
        [
            ("loop", lambda run: run["workload"]),
            ("checkpoints", lambda run: run["contender"].removeprefix("jax_revolve, ")),
            ("temporaries", lambda run: f"{run['temp_bytes'] / 1e6:.3g} MB"),
            ("time", lambda run: f"{run['median_ms']:.3g} ms"),
        ],
    ),
    "accelerator-while-loops": _device(
        "Gradients of while loops, and times over those of other loops; the masked `lax.scan` is"
        " told the number of steps",
        _by_workload("while loops"),
        [
            ("loop", _workload),
            ("memory", _megabytes(names.JAX_REVOLVE)),
            ("time", _milliseconds(names.JAX_REVOLVE)),
            ("/ Equinox's", _over(names.JAX_REVOLVE, names.EQUINOX)),
            ("/ masked `lax.scan`", _over(names.JAX_REVOLVE, names.MASKED)),
        ],
    ),
    "accelerator-kernels": _device(
        "Loops and fusions in compiled gradients; kernels and waits of the host for each step of"
        " the loop, where the profiler tells them",
        _of_piece("kernels"),
        [
            ("loop", lambda run: run["workload"]),
            ("gradient of", lambda run: f"`{run['contender']}`"),
            ("time", lambda run: f"{run['median_ms']:.3g} ms"),
            ("loops", _count("loops")),
            ("of dynamic length", _count("dynamic_loops")),
            ("fusions in loops", _count("fusions_in_loops")),
            ("copies of buffers", _count("copies_of_buffers")),
            ("kernels", _count("kernels_per_step", 1)),
            ("waits", _count("waits_per_step", 2)),
        ],
    ),
}
