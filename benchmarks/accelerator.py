"""What is to be known of an accelerator, in two parts of less than nine minutes each.

    python -m benchmarks accelerator            # part 1, then part 2
    python -m benchmarks accelerator --part 1   # one of them
    python -m benchmarks accelerator --reduced  # sizes for a CPU with two cores
    python -m benchmarks accelerator --quick    # tiny sizes; nothing is written to `results`

Part 1 calibrates the device, and measures time over memory of large workloads. Part 2 measures
checkpoints in the host's memory and while loops, counts kernels and waits, and runs tests on the
device. Each piece runs in a process of its own. The file of results is written after each piece;
run again, the command goes on with what is missing.
"""

import argparse
import os
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from math import isnan
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from time import time
from typing import Any, cast
from unittest.mock import patch

import jax

from benchmarks.contenders import names, while_loops
from benchmarks.contenders.budgets import Within, equinox_as_lean, given, plan_within
from benchmarks.contenders.nested import BestNested
from benchmarks.contenders.scans import LAX_SCAN, REMAT
from benchmarks.report.results import FOLDER
from benchmarks.runner.comparison import Record
from benchmarks.runner.hlo import ProgramText
from benchmarks.runner.pieces import Piece, Results, Setting, append, run_part, run_piece
from benchmarks.runner.programs import Contender, Program, Workload
from benchmarks.runner.pytests import run_tests
from benchmarks.runner.timing import describe_machine, device_slug
from benchmarks.runner.tolerant import Trials
from benchmarks.runner.trace import counts_while
from benchmarks.workloads.recurrences import (
    Recurrence,
    lstm,
    scanned,
    stencil,
    under_vmap,
    until_limit,
)
from benchmarks.workloads.steps import (
    lorenz,
    neural_ode,
    particles,
    transformer_stack,
    waves_3d,
)
from jax_revolve import HostMemory, checkpointed_scan
from jax_revolve.calibration import transfers
from jax_revolve.calibration.calibrate import calibrate
from jax_revolve.calibration.fit import predictions, rank_correlation
from jax_revolve.profiles.in_force import VARIABLE, profile_in_force
from jax_revolve.profiles.profile import FOLDER as PROFILES
from jax_revolve.profiles.profile import write

ROOT = Path(__file__).parents[1]
SIZES = ("full", "reduced", "quick")
SHARES = (0.3, 0.1, 0.03)
"""Budgets, of what `lax.scan` takes."""

TIMING = 0.7
"""The share of the seconds that is left for compiling and timing, where a profiler runs too."""

CALIBRATING = (150.0, 60.0, 4.0)
"""Seconds for each size. What counts is how many plans are compiled by then."""

TESTING = 0.93
"""The share of the seconds of a piece that its tests may take: what failed by then is told."""

FRONTS: dict[str, tuple[Callable[..., Recurrence], tuple[Any, ...]]] = {
    "LSTM": (lstm, ((1000, 32, 1024), (500, 16, 128), (16, 2, 4))),
    "3-D wave": (waves_3d, ((100, 256), (100, 32), (16, 4))),
    "transformer": (transformer_stack, ((48, 512, 1024), (48, 32, 64), (16, 4, 4))),
    "neural ODE": (neural_ode, ((400, 512, 512), (400, 32, 64), (16, 2, 4))),
    "N-body": (particles, ((300, 1024), (300, 64), (16, 4))),
}
OFFLOADED = ((300, 16_000_000), (300, 200_000), (16, 64))
ON_DEVICE = (10, 10, 2)
LIGHT: tuple[Any, ...] = (
    (stencil, (1000, 20_000), (64, 20_000), 4096),
    (stencil, (500, 4000), (32, 2000), 2048),
    (stencil, (12, 16), (5, 16), 32),
)
HEAVY: tuple[Any, ...] = (
    (lorenz, (500, 1_000_000), (32, 100_000), 2048),
    (lorenz, (200, 20_000), (16, 2000), 512),
    (lorenz, (12, 16), (5, 16), 32),
)
"""A step, a single loop, the lengths of many loops at once, and the bound."""

KERNELS: dict[str, tuple[Callable[..., Recurrence], tuple[Any, ...]]] = {
    "stencil": (stencil, ((1000, 20_000), (1000, 20_000), (16, 16))),
    "lstm": (lstm, ((1000, 32, 1024), (200, 16, 128), (16, 2, 4))),
}


def measure_calibration(setting: Setting) -> Iterator[Record]:
    """Write the profile, then tell measured and predicted times."""
    found = calibrate(_of(CALIBRATING, setting))
    write(found.profile, setting.folder / f"profile-{device_slug()}.json")
    samples = found.samples
    yield {
        "kind": "profile",
        **asdict(found.profile),
        "rank_correlation": _known(rank_correlation(samples, found.profile)),
        "rank_correlation_before": _known(rank_correlation(samples, found.before)),
    }
    predicted = (predictions(samples, profile) for profile in (found.profile, found.before))
    for sample, now, before in zip(samples, *predicted, strict=True):
        yield {
            "kind": "sample",
            "loop": sample.loop,
            "plan": sample.plan,
            "measured_ms": sample.taken / 1e6,
            "predicted_ms": now / 1e6,
            "predicted_before_ms": before / 1e6,
        }


def _known(value: float) -> float | None:
    """There is no correlation if there was time for one plan only."""
    return None if isnan(value) else value


def measure_front(name: str, setting: Setting) -> Iterator[Record]:
    """What there must be comes first: there may be no time for all of the searches."""
    make, shapes = FRONTS[name]
    workload = scanned(make(*_of(shapes, setting)))
    trials = Trials(workload, setting.seconds)
    everything = trials.compile(LAX_SCAN)  # its bytes are needed, even if it does not run
    trials.attempt_all([LAX_SCAN, REMAT])
    lean: list[Program] = []
    for share in SHARES:
        lean += trials.search(names.JAX_REVOLVE, Within(share), everything)
        trials.search(names.BY_PLATFORM, partial(_by_platform, share), everything)
    for program in lean:
        trials.search(names.EQUINOX, equinox_as_lean, everything, program)
        trials.search(names.NESTED, BestNested(levels_tried=1), everything, program)
    profile = str(profile_in_force())
    yield from ({**record, "profile": profile} for record in trials.records())


def _by_platform(share: float, compile: Any, earlier: list[Program]) -> list[Program]:
    """The plan that is chosen without a calibration, if it is another one."""
    budget = int(share * earlier[0].temp_bytes)
    chosen = plan_within(compile.workload, budget)
    platform = PROFILES / f"{jax.devices()[0].platform}.json"
    with patch.dict(os.environ, {VARIABLE: str(platform)} if platform.exists() else {}):
        plan = plan_within(compile.workload, budget)
    if plan is None or plan == chosen:
        return []
    return [compile(given(names.BY_PLATFORM, budget, plan))]


def measure_host_offload(setting: Setting) -> Iterator[Record]:
    """The transfers alone, and gradients with checkpoints in the host's memory."""
    with TemporaryDirectory() as folder:
        found = transfers.constants(folder, has_host_memory=True)
    byte = found["host_byte"]
    yield {"kind": "transfers", **found, "gigabytes_per_second": 1 / byte if byte else None}
    count = _of(ON_DEVICE, setting)
    options: dict[str, dict[str, Any]] = {
        names.ON_DEVICE: {"checkpoints": count},
        "jax_revolve, checkpoints=0, HostMemory": {"checkpoints": 0, "storage": HostMemory(count)},
        "jax_revolve, HostMemory": {"checkpoints": count, "storage": HostMemory()},
    }
    trials = Trials(scanned(stencil(*_of(OFFLOADED, setting))), setting.seconds)
    trials.attempt_all(
        [
            Contender(name, partial(checkpointed_scan, **each), count)
            for name, each in options.items()
        ]
    )
    yield from trials.records()


def measure_while_loop(loops: tuple[Any, ...], setting: Setting) -> Iterator[Record]:
    """One loop, and many at once."""
    make, single, batch, bound = _of(loops, setting)
    checkpoints = while_loops.default_checkpoints(bound)
    workloads = (until_limit(make(*single), bound), under_vmap(make(*batch), bound))
    for left, workload in zip((2, 1), workloads, strict=True):
        trials = Trials(workload, setting.seconds / left)
        trials.attempt_all(
            [
                while_loops.jax_revolve(bound),
                while_loops.equinox(bound, checkpoints),
                while_loops.masked(workload.length),
            ]
        )
        yield from trials.records()


def measure_kernels(setting: Setting) -> Iterator[Record]:
    """What is counted in the text of the programs, and while they run."""
    for left, (make, shapes) in zip((2, 1), KERNELS.values(), strict=True):
        recurrence = make(*_of(shapes, setting))
        workload = scanned(recurrence)
        trials = Trials(workload, TIMING * setting.seconds / left)
        ran = trials.attempt_all(_plans(workload))
        programs = {program.contender.name: program for program in ran}
        carries = {leaf.shape for leaf in jax.tree.leaves(_init(recurrence))}
        for record in trials.records():
            program = programs.get(record["contender"])
            yield record | (_counts(program, carries, workload.length) if program else {})


def _counts(program: Program, carries: set[tuple[int, ...]], length: int) -> Record:
    seen, compiled = counts_while(program.run), cast(Any, program.compiled)
    per_step = {
        f"{name}_per_step": None if count is None else count / length
        for name, count in seen.items()
    }
    return ProgramText(compiled.as_text()).facts(carries) | per_step


def _init(recurrence: Recurrence) -> Any:
    return (recurrence.active | recurrence.passive)["init"]


def _plans(workload: Workload) -> list[Contender]:
    root = round(workload.length**0.5)
    blocks = -(-workload.length // root)
    every_block = partial(checkpointed_scan, checkpoints=blocks, block_size=root)
    everything = partial(checkpointed_scan, checkpoints="all")
    return [
        LAX_SCAN,
        Contender("jax_revolve, by default", checkpointed_scan),
        Contender('jax_revolve, checkpoints="all"', everything),
        Contender("jax_revolve, a checkpoint for every block", every_block, blocks, block=root),
    ]


_MEMORY, _PARITY = "tests/test_memory.py", "tests/parity"
TESTS: dict[str, tuple[list[str], ...]] = {
    "memory": (
        [_MEMORY],
        [_MEMORY],
        [f"{_MEMORY}::test_a_store_of_the_online_schedule_is_small"],
    ),
    "parity": (
        [_PARITY, "-m", "core"],
        [_PARITY, "-m", "core and not slow", "-k", "grad"],
        [f"{_PARITY}/test_parity.py::test_scan[recurrent-grad]"],
    ),
}


def measure_tests(name: str, setting: Setting) -> Iterator[Record]:
    yield run_tests(_of(TESTS[name], setting), ROOT, TESTING * setting.seconds)


def _of(sizes: Any, setting: Setting) -> Any:
    return sizes[SIZES.index(setting.size)]


PIECES = [
    Piece("calibration", 1, 190, measure_calibration),
    *(Piece(f"front: {name}", 1, 66, partial(measure_front, name)) for name in FRONTS),
    Piece("host offload", 2, 75, measure_host_offload),
    Piece("while loops: light", 2, 65, partial(measure_while_loop, LIGHT)),
    Piece("while loops: heavy", 2, 65, partial(measure_while_loop, HEAVY)),
    Piece("kernels", 2, 75, measure_kernels),
    Piece("tests: memory", 2, 60, partial(measure_tests, "memory")),
    Piece("tests: parity", 2, 180, partial(measure_tests, "parity")),
]


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
    own = {"--into": Path, "--folder": Path, "--until": float, "--profile": str}
    for name, kind in own.items():
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    size = "quick" if asked.quick else "reduced" if asked.reduced else "full"
    if asked.into is not None:
        if asked.profile:
            os.environ.setdefault(VARIABLE, asked.profile)
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
    profile = folder / f"profile-{slug}.json"

    def command_of(piece: Piece, limit: float, into: Path) -> list[str]:
        """What is calibrated is in force from then on."""
        measured = ["--profile", str(profile)] * profile.exists()
        return command(limit, into, "--only", piece.name, *measured)

    for part in parts:
        pieces = [p for p in PIECES if p.part == part and only in (None, p.name)]
        run_part(pieces, results, command_of)
    print(f"Written: {results.path}")


MACHINE = 120.0
"""Seconds that it may take to start JAX and find the device."""


def _conditions(size: str) -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {"size": size, "jax": version("jax"), "jax_revolve": project["version"]}
