"""Times and bytes of gradients: over memory, with checkpoints in the host's memory, and of while
loops."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.contenders import names, while_loops
from benchmarks.contenders.budgets import Within, equinox_as_lean
from benchmarks.contenders.nested import BestNested
from benchmarks.contenders.scans import LAX_SCAN, REMAT
from benchmarks.runner.comparison import Record
from benchmarks.runner.pieces import Setting
from benchmarks.runner.programs import Contender, Program
from benchmarks.runner.tolerant import Trials
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

SHARES = (0.3, 0.1, 0.03)
"""Budgets, of what `lax.scan` takes."""

FIRST_TIMES = 0.1
"""The share of the time that is left for timing what there must be."""

FRONTS: dict[str, tuple[Callable[..., Recurrence], tuple[Any, ...]]] = {
    "LSTM": (lstm, ((1000, 32, 1024), (300, 16, 64), (16, 2, 4))),
    "3-D wave": (waves_3d, ((100, 256), (100, 24), (16, 4))),
    "transformer": (transformer_stack, ((48, 512, 1024), (24, 32, 64), (16, 4, 4))),
    "neural ODE": (neural_ode, ((400, 512, 512), (100, 32, 64), (16, 2, 4))),
    "N-body": (particles, ((300, 1024), (100, 64), (16, 4))),
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


def measure_front(name: str, setting: Setting) -> Iterator[Record | None]:
    """What there must be is timed first: there may be no time for all of the searches."""
    make, shapes = FRONTS[name]
    workload = scanned(make(*setting.of(shapes)))
    trials = Trials(workload, setting.seconds)
    everything = trials.compile(LAX_SCAN)  # its bytes are needed, even if it does not run
    trials.attempt_all([LAX_SCAN, REMAT])
    lean: list[Program] = []
    for share in SHARES:
        lean += trials.search(names.JAX_REVOLVE, Within(share), everything)
    yield from trials.records(FIRST_TIMES)
    for program in lean:
        trials.search(names.EQUINOX, equinox_as_lean, everything, program)
        trials.search(names.NESTED, BestNested(levels_tried=1), everything, program)
    yield None
    yield from trials.records()


def measure_host_offload(setting: Setting) -> Iterator[Record]:
    """Gradients with checkpoints in the host's memory."""
    count = setting.of(ON_DEVICE)
    options: dict[str, dict[str, Any]] = {
        names.ON_DEVICE: {"checkpoints": count},
        "jax_revolve, checkpoints=0, HostMemory": {
            "checkpoints": 0,
            "storage": HostMemory(checkpoints=count),
        },
        "jax_revolve, HostMemory": {"checkpoints": count, "storage": HostMemory()},
    }
    trials = Trials(scanned(stencil(*setting.of(OFFLOADED))), setting.seconds)
    trials.attempt_all(
        [
            Contender(name, partial(checkpointed_scan, **each), count)
            for name, each in options.items()
        ]
    )
    yield from trials.records()


def measure_while_loop(loops: tuple[Any, ...], setting: Setting) -> Iterator[Record]:
    """One loop, and many at once."""
    make, single, batch, bound = setting.of(loops)
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
