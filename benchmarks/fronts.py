"""Time over memory of a gradient, for steps of many kinds.

- Of `checkpointed_scan`, with budgets from twice to a hundredth of what `jax.lax.scan` takes.
- Of the best nested scans and of Equinox's loop in as much memory, and of scans whose steps are
  under `jax.checkpoint`, with or without a policy that saves products.

Each record has the bytes of the residuals of a step, too: as JAX keeps them, and as a tape does.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
from jax import lax

from benchmarks.contenders import names
from benchmarks.contenders.budgets import Within, equinox_as_lean
from benchmarks.contenders.nested import BestNested
from benchmarks.contenders.scans import LAX_SCAN, REMAT
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison, Record
from benchmarks.runner.programs import Contender, Workload
from benchmarks.workloads.recurrences import lstm, scanned
from benchmarks.workloads.steps import (
    gru,
    lorenz,
    neural_ode,
    particles,
    sine_stencil,
    transformer,
    waves,
)
from jax_revolve import checkpointed_scan, explain

SHAPES = [
    (sine_stencil, (1000, 20_000)),
    (waves, (1000, 100)),
    (particles, (300, 64)),
    (lorenz, (1000, 4000)),
    (gru, (1000, 16, 128)),
    (lstm, (1000, 16, 128)),
    (transformer, (60, 64, 128)),
    (neural_ode, (400, 32, 64)),
]
QUICK_SHAPES = [(sine_stencil, (16, 16)), (gru, (16, 2, 4))]
SHARES = (2, 0.3, 0.1, 0.05, 0.02)


def _scan_that_saves_products(body: Any, init: Any, xs: Any, length: int) -> tuple[Any, Any]:
    policy = jax.checkpoint_policies.dots_saveable
    return lax.scan(jax.checkpoint(body, prevent_cse=False, policy=policy), init, xs, length)


def _taped_whole(body: Any, init: Any, xs: Any, length: int) -> tuple[Any, Any]:
    return checkpointed_scan(body, init, xs, length, checkpoints=1, block_size=length)


PLAIN = [
    LAX_SCAN,
    REMAT,
    Contender(names.SAVES_PRODUCTS, _scan_that_saves_products),
    Contender(names.TAPED_WHOLE, _taped_whole),
]


def measure(quick: bool) -> Iterator[list[Record]]:
    for make, shape in QUICK_SHAPES if quick else SHAPES:
        workload = scanned(make(*shape))
        searches = (BestNested(levels_tried=1), equinox_as_lean)
        shares = SHARES[2:3] if quick else SHARES
        contenders = [*PLAIN, *(Within(share, searches) for share in shares)]
        records = Comparison(
            workload, "gradient", contenders, least_rounds=9, share=1 / 3
        ).measured(quick)
        yield [record | residuals(workload) for record in records]


def residuals(workload: Workload) -> Record:
    """The bytes of a carry, and of the residuals of a step: as JAX keeps them, and on a tape."""
    loss = partial(workload.loss, checkpointed_scan)
    sizes = explain(loss)(workload.active, workload.passive).loops[0].sizes
    return {"carry": sizes.carry, "uncut": sizes.uncut, "kept": sizes.residuals}


BENCHMARK = Benchmark("fronts", measure)
