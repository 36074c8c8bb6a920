"""What gradients do: their loops and kernels, counted in their texts and while they run."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import jax

from benchmarks.contenders.scans import LAX_SCAN
from benchmarks.runner.comparison import Record
from benchmarks.runner.hlo import ProgramText
from benchmarks.runner.pieces import Setting
from benchmarks.runner.programs import Contender, Program, Workload
from benchmarks.runner.tolerant import Trials
from benchmarks.runner.trace import counts_while
from benchmarks.workloads.recurrences import Recurrence, lstm, scanned, stencil
from jax_revolve import checkpointed_scan

TIMING = 0.7
"""The share of the seconds that is left for compiling and timing, where a profiler runs too."""

KERNELS: dict[str, tuple[Callable[..., Recurrence], tuple[Any, ...]]] = {
    "stencil": (stencil, ((1000, 20_000), (1000, 20_000), (16, 16))),
    "lstm": (lstm, ((1000, 32, 1024), (200, 16, 128), (16, 2, 4))),
}


def measure_kernels(setting: Setting) -> Iterator[Record]:
    """What is counted in the text of the programs, and while they run."""
    for left, (make, shapes) in zip((2, 1), KERNELS.values(), strict=True):
        recurrence = make(*setting.of(shapes))
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
