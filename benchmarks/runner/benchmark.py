"""Runs a benchmark and writes its file of results."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import jax

from benchmarks.report.results import FOLDER
from benchmarks.report.table import markdown
from benchmarks.runner.comparison import Comparison, Record
from benchmarks.runner.timing import describe_machine, device_slug

Measure = Callable[[bool], Iterator[Comparison | list[Record]]]


@dataclass(frozen=True)
class Benchmark:
    """`measure(quick)` yields comparisons, or records of what was compared; `results` is the first
    part of the name of the file they are written to, whose last part is the device. `machine` is to
    be added to what the file says about the machine, if programs are compiled for another one."""

    results: str
    measure: Measure
    device: str | None = None
    machine: dict[str, str] = field(default_factory=dict)

    def run(self, quick: bool) -> None:
        if quick:  # nearly all of the time goes into compiling
            jax.config.update("jax_disable_most_optimizations", True)
        found: list[Record] = []
        for each in self.measure(quick):
            records = each.measured(quick) if isinstance(each, Comparison) else each
            print(summary(records), end="\n\n", flush=True)
            found += records
        if not quick:
            path = FOLDER / f"{self.results}-{self.device or device_slug()}.json"
            record = {"machine": describe_machine() | self.machine, "measurements": found}
            path.write_text(json.dumps(record, indent=1) + "\n")
            print(f"Written: {path}")


def summary(records: list[Record]) -> str:
    """Every field that is known of any of them."""
    names = dict.fromkeys(name for record in records for name in record)
    known = [name for name in names if any(r.get(name) not in (None, "") for r in records)]
    return markdown([(name, lambda r, name=name: _shown(r.get(name))) for name in known], records)


def _shown(value: object) -> str:
    if isinstance(value, list):
        return " - ".join(map(_shown, value))
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
