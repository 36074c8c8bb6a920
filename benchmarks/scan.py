"""Times `jax_revolve.checkpointed_scan` against other ways to differentiate a long loop.

    python benchmarks/scan.py

prints a table per workload and the goals, and writes `benchmarks/results/scan-DEVICE.json`. It
needs `jax_revolve[bench]`. All contenders of a workload take turns in one process; run it on a
machine that does nothing else.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from goals import Goal, goals, time_ratios
from measurements import Measurement, measure
from report import goal_table, measurement_table
from timing import describe_machine, device_slug
from workloads import all_workloads, smoke_workloads

FAMILIES = ("stencil", "rnn", "lstm")


def main() -> None:
    options = _options()
    budget, least_rounds = (0.0, 2) if options.smoke else (options.budget, options.rounds)
    workloads = smoke_workloads() if options.smoke else all_workloads()
    measurements: list[Measurement] = []
    for workload in workloads:
        if options.only in (None, workload.family):
            found = measure(workload, budget, least_rounds)
            print(measurement_table(found), end="\n\n", flush=True)
            measurements += found
    reached = list(goals(measurements))
    print(goal_table(reached))
    worst = max(m.difference for m in measurements)
    print(f"\nGreatest relative difference to the result of lax.scan: {worst:.1e}")
    if output := _output(options):
        _write(output, measurements, reached)
        print(f"Written: {output}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--smoke", action="store_true", help="tiny loops, to see that all runs")
    parser.add_argument("--output", type=Path, help="JSON to write")
    parser.add_argument("--only", choices=FAMILIES, help="one family of workloads")
    parser.add_argument("--budget", type=float, default=25.0, help="seconds to time each workload")
    parser.add_argument("--rounds", type=int, default=5, help="least rounds, whatever the budget")
    return parser.parse_args()


def _output(options: argparse.Namespace) -> Path | None:
    """By default a smoke run writes nothing, and a part of the workloads not over the whole."""
    if options.output or options.smoke:
        return options.output
    part = f"-{options.only}" if options.only else ""
    return Path(__file__).parent / "results" / f"scan{part}-{device_slug()}.json"


def _write(path: Path, measurements: list[Measurement], reached: list[Goal]) -> None:
    record = {
        "machine": describe_machine(),
        "measurements": [
            asdict(m) | {"time_ratios": time_ratios(m, measurements)} for m in measurements
        ],
        "goals": [asdict(goal) | {"verdict": goal.verdict} for goal in reached],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
