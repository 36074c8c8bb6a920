"""The command line that the benchmarks share: measure, print tables and goals, write JSON."""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Generic, TypeVar

import jax
from goals import Goal
from measurements import Measurement
from report import MemoryRatio, TimeRatios, goal_table, measurement_table
from timing import describe_machine, device_slug
from workloads import Workload

AnyWorkload = TypeVar("AnyWorkload", bound=Workload)


def compile_quickly() -> None:
    """For smoke runs, nearly all of whose time goes into compiling."""
    jax.config.update("jax_disable_most_optimizations", True)


@dataclass(frozen=True)
class Benchmark(Generic[AnyWorkload]):
    """What is measured, and how it is compared. `name` is the first part of the file of results;
    `reference` says what the results are compared with, `memory_title` what the ratio of memories
    is called, `note` what else there is to know; `draw` makes a picture of a file of results, and
    returns its path, or `None` if there is nothing to be drawn."""

    name: str
    description: str
    reference: str
    workloads: Callable[[], list[AnyWorkload]]
    smoke_workloads: Callable[[], list[AnyWorkload]]
    measure: Callable[[AnyWorkload, float, int], list[Measurement]]
    goals: Callable[[list[Measurement]], Iterator[Goal]]
    time_ratios: TimeRatios
    memory_ratio: MemoryRatio
    memory_title: str = "less memory"
    note: str = ""
    draw: Callable[[Path], Path | None] | None = None

    def run(self) -> None:
        """Does what the command line asks for."""
        options = self._options()
        if options.draw:
            self._draw(self._output(options))
            return
        budget, least_rounds = (0.0, 2) if options.smoke else (options.budget, options.rounds)
        if options.smoke:
            compile_quickly()
        workloads = self.smoke_workloads() if options.smoke else self.workloads()
        measurements: list[Measurement] = []
        for workload in workloads:
            if options.only in (None, workload.family):
                found = self.measure(workload, budget, least_rounds)
                hooks = (self.time_ratios, self.memory_ratio, self.memory_title)
                print(measurement_table(found, *hooks), end="\n\n", flush=True)
                measurements += found
        reached = list(self.goals(measurements))
        print(goal_table(reached))
        worst = max((m.difference for m in measurements), default=0.0)
        print(f"\nGreatest relative difference to {self.reference}: {worst:.1e}")
        if self.note:
            print(self.note)
        if output := self._output(options):
            self._write(output, measurements, reached)
            print(f"Written: {output}")
            self._draw(output)

    def _options(self) -> argparse.Namespace:
        families = list(dict.fromkeys(workload.family for workload in self.workloads()))
        parser = argparse.ArgumentParser(
            description=self.description.partition("\n")[0],
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        add = parser.add_argument
        add("--smoke", action="store_true", help="tiny loops, to see that all runs")
        add("--output", type=Path, help="JSON to write")
        add("--only", choices=families, help="one family of workloads")
        add("--budget", type=float, default=25.0, help="seconds to time each workload")
        add("--rounds", type=int, default=5, help="least rounds, whatever the budget")
        parser.set_defaults(draw=False)
        if self.draw:
            add("--draw", action="store_true", help="only draw earlier results")
        return parser.parse_args()

    def _output(self, options: argparse.Namespace) -> Path | None:
        """By default a smoke run writes nothing, and a part of the workloads not over the whole."""
        if options.output or options.smoke:
            return options.output
        part = f"-{options.only}" if options.only else ""
        return Path(__file__).parent / "results" / f"{self.name}{part}-{device_slug()}.json"

    def _write(self, path: Path, measurements: list[Measurement], reached: list[Goal]) -> None:
        record = {
            "machine": describe_machine(),
            "measurements": [
                asdict(m)
                | {"time_ratios": self.time_ratios(m, measurements)}
                | {"memory_ratio": self.memory_ratio(m, measurements)}
                for m in measurements
            ],
            "goals": [asdict(goal) | {"verdict": goal.verdict} for goal in reached],
        }
        if self.note:
            record["note"] = self.note
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1) + "\n")

    def _draw(self, results: Path | None) -> None:
        if self.draw and results and (picture := self.draw(results)):
            print(f"Drawn: {picture}")
