"""What is to be known of an accelerator: time over memory of large workloads, checkpoints in the
host's memory, and while loops.

    python -m benchmarks accelerator            # part 1, then part 2, of four to six minutes
    python -m benchmarks accelerator --part 1   # one of them
    python -m benchmarks accelerator --reduced  # sizes for a CPU with two cores
    python -m benchmarks accelerator --quick    # tiny sizes; nothing is written to `results`

Each piece runs in a process of its own, which adds what it finds to the file of results. Run again,
the command goes on with what is missing.
"""

import argparse
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

from benchmarks.contenders import while_loops
from benchmarks.contenders.budgets import Within, equinox_as_lean
from benchmarks.contenders.nested import BestNested
from benchmarks.contenders.scans import LAX_SCAN, REMAT
from benchmarks.report.results import FOLDER
from benchmarks.runner.benchmark import summary
from benchmarks.runner.comparison import Comparison
from benchmarks.runner.timing import VARYING, describe_machine, device_slug
from benchmarks.storage import on_a_device
from benchmarks.workloads.recurrences import lstm, scanned, stencil, under_vmap, until_limit
from benchmarks.workloads.steps import lorenz, neural_ode, particles, transformer_stack, waves_3d

SIZES = ("full", "reduced", "quick")
SHARES = (0.3, 0.1, 0.03)
"""Budgets, of what `lax.scan` takes."""

FRONTS: dict[str, tuple[Any, ...]] = {
    "LSTM": (lstm, (1000, 32, 1024), (300, 16, 64), (16, 2, 4)),
    "3-D wave": (waves_3d, (100, 256), (100, 24), (16, 4)),
    "transformer": (transformer_stack, (48, 512, 1024), (24, 32, 64), (16, 4, 4)),
    "neural ODE": (neural_ode, (400, 512, 512), (100, 32, 64), (16, 2, 4)),
    "N-body": (particles, (300, 1024), (100, 64), (16, 4)),
}
WHILE_LOOPS: dict[str, tuple[Any, ...]] = {
    "light": (
        stencil,
        ((1000, 20_000), (64, 20_000), 4096),
        ((500, 4000), (32, 2000), 2048),
        ((12, 16), (5, 16), 32),
    ),
    "heavy": (
        lorenz,
        ((500, 1_000_000), (32, 100_000), 2048),
        ((200, 20_000), (16, 2000), 512),
        ((12, 16), (5, 16), 32),
    ),
}
"""A step, and for each size a single loop, the lengths of many loops at once, and the bound."""


class Piece(NamedTuple):
    """What `comparisons(size, seconds)` measures, `size` as an index of `SIZES`."""

    part: int
    seconds: float
    comparisons: Callable[[int, float], Iterator[Comparison]]


def front(name: str, size: int, seconds: float) -> Iterator[Comparison]:
    make, *shapes = FRONTS[name]
    searches = (equinox_as_lean, BestNested(levels_tried=1))
    contenders = [LAX_SCAN, REMAT, *(Within(share, searches) for share in SHARES)]
    yield Comparison(scanned(make(*shapes[size])), "gradient", contenders, limit=seconds)


def offloaded(size: int, seconds: float) -> Iterator[Comparison]:
    shape, count = [((300, 16_000_000), 10), ((300, 200_000), 10), ((16, 64), 2)][size]
    yield Comparison(scanned(stencil(*shape)), "gradient", on_a_device(count), limit=seconds)


def while_loop(name: str, size: int, seconds: float) -> Iterator[Comparison]:
    """One loop, and many at once."""
    make, *shapes = WHILE_LOOPS[name]
    single, batch, bound = shapes[size]
    for workload in (until_limit(make(*single), bound), under_vmap(make(*batch), bound)):
        contenders = [
            while_loops.jax_revolve(bound),
            while_loops.equinox(bound, while_loops.default_checkpoints(bound)),
            while_loops.masked(workload.length),
        ]
        yield Comparison(workload, "gradient", contenders, limit=seconds / 2)


PIECES = {
    **{f"front: {name}": Piece(1, 66, partial(front, name)) for name in FRONTS},
    "host offload": Piece(2, 75, offloaded),
    **{f"while loops: {name}": Piece(2, 65, partial(while_loop, name)) for name in WHILE_LOOPS},
}
STARTING = 30.0
"""Seconds that a piece may take beside measuring."""


def main(arguments: list[str]) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m benchmarks accelerator", description=__doc__, formatter_class=raw
    )
    parser.add_argument("--part", type=int, choices=(1, 2), help="one of the parts")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--reduced", action="store_true", help="sizes for a CPU with two cores")
    size.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--only", choices=list(PIECES), help="one piece")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    size = "quick" if asked.quick else "reduced" if asked.reduced else "full"
    if asked.folder:
        _run_here(asked.only, size, asked.folder)
        return
    folder = Path(mkdtemp()) if size == "quick" else FOLDER
    start = [sys.executable, "-m", "benchmarks", "accelerator", "--folder", str(folder)]
    # This process does not touch the device, whose memory it would take from the pieces.
    for name, piece in PIECES.items():
        if asked.part in (None, piece.part) and asked.only in (None, name):
            print(f"== {name}, at most {piece.seconds:.0f} s", flush=True)
            command = [*start, *([f"--{size}"] * (size != "full")), "--only", name]
            try:
                subprocess.run(command, check=True, timeout=piece.seconds + STARTING)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                print(f"{name} was not measured: {error}")


def _run_here(name: str, size: str, folder: Path) -> None:
    """Measure a piece, unless the file of results has it for this size and these versions."""
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    machine = describe_machine() | {"size": size, "jax_revolve": project["version"]}
    path = folder / f"accelerator-{device_slug()}.json"
    known = json.loads(path.read_text()) if path.exists() else {"machine": {}, "measurements": []}
    varying = {name: machine[name] for name in VARYING}
    same = {**known["machine"], **varying} == machine
    records: list[Any] = known["measurements"] if same else []
    if name not in {record["piece"] for record in records}:
        piece = PIECES[name]
        for comparison in piece.comparisons(SIZES.index(size), piece.seconds):
            found = comparison.measured(size == "quick")
            print(summary(found), end="\n\n", flush=True)
            records += [{"piece": name} | record for record in found]
        everything = {"machine": machine, "measurements": records}
        path.write_text(json.dumps(everything, indent=1) + "\n")
    print(f"Written: {path}", flush=True)
