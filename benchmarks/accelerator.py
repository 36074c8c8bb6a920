"""What is to be known of an accelerator, in two parts of less than nine minutes each.

    python -m benchmarks accelerator            # part 1, then part 2
    python -m benchmarks accelerator --part 1   # one of them
    python -m benchmarks accelerator --reduced  # sizes for a CPU with two cores
    python -m benchmarks accelerator --quick    # tiny sizes; nothing is written to `results`

Part 1 measures time over memory of large workloads. Part 2 measures checkpoints in the host's
memory and while loops, counts kernels and waits, and runs tests on the device. Each piece runs in a
process of its own. The file of results is written after each piece; run again, the command goes on
with what is missing.
"""

import argparse
import sys
import tomllib
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import mkdtemp
from time import time

from benchmarks.pieces.gradients import (
    FRONTS,
    HEAVY,
    LIGHT,
    measure_front,
    measure_host_offload,
    measure_while_loop,
)
from benchmarks.pieces.programs import measure_kernels
from benchmarks.pieces.tested import measure_tests
from benchmarks.report.results import FOLDER
from benchmarks.runner.pieces import Piece, Results, Setting, append, run_part, run_piece
from benchmarks.runner.timing import describe_machine, device_slug

PIECES = [
    *(Piece(f"front: {name}", 1, 66, partial(measure_front, name)) for name in FRONTS),
    Piece("host offload", 2, 75, measure_host_offload),
    Piece("while loops: light", 2, 65, partial(measure_while_loop, LIGHT)),
    Piece("while loops: heavy", 2, 65, partial(measure_while_loop, HEAVY)),
    Piece("kernels", 2, 75, measure_kernels),
    Piece("tests: memory", 2, 60, partial(measure_tests, "memory")),
    Piece("tests: parity", 2, 180, partial(measure_tests, "parity")),
]

MACHINE = 120.0
"""Seconds that it may take to start JAX and find the device."""


def main(arguments: list[str]) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m benchmarks accelerator", description=__doc__, formatter_class=raw
    )
    parser.add_argument("--part", type=int, choices=(1, 2), help="one of the parts")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--reduced", action="store_true", help="sizes for a CPU with two cores")
    size.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--only", choices=[piece.name for piece in PIECES], help="one piece")
    # A piece is run by this command, in a process of its own.
    own = {"--into": Path, "--folder": Path, "--until": float}
    for name, kind in own.items():
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    size = "quick" if asked.quick else "reduced" if asked.reduced else "full"
    if asked.into is not None:
        _run_here(asked.only, Setting(size, asked.until, asked.folder), asked.into)
        return
    _run_all([asked.part] if asked.part else [1, 2], size, asked.only)


def _run_here(name: str | None, setting: Setting, into: Path) -> None:
    """Run a piece in this process; without a name, tell the machine."""
    if name is None:
        append(describe_machine() | {"slug": device_slug()}, into)
        return
    (piece,) = (piece for piece in PIECES if piece.name == name)
    for record in piece.measure(setting):
        append(record, into)


def _run_all(parts: list[int], size: str, only: str | None) -> None:
    folder = Path(mkdtemp()) if size == "quick" else FOLDER
    start = [sys.executable, "-m", "benchmarks", "accelerator", "--folder", str(folder)]
    start += [f"--{size}"] * (size != "full")

    def command(limit: float, into: Path, *more: str) -> list[str]:
        return [*start, "--until", str(time() + limit), "--into", str(into), *more]

    # This process does not touch the device, whose memory it would take from the pieces.
    told = run_piece(partial(command, MACHINE), MACHINE)
    if told.error:
        sys.exit(f"The device could not be used: {told.error}")
    (machine,) = told.records
    slug = machine.pop("slug")
    path = folder / f"accelerator-{slug}.json"
    results = Results(path, machine | {"size": size}, _conditions(size))

    def command_of(piece: Piece, limit: float, into: Path) -> list[str]:
        return command(limit, into, "--only", piece.name)

    for part in parts:
        pieces = [p for p in PIECES if p.part == part and only in (None, p.name)]
        run_part(pieces, results, command_of)
    print(f"Written: {results.path}")


def _conditions(size: str) -> dict[str, str]:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    return {"size": size, "jax": version("jax"), "jax_revolve": project["version"]}
