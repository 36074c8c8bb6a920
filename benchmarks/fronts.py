"""Time over memory of a gradient, for steps of many kinds.

- Of `checkpointed_scan`, with budgets from twice to a hundredth of what `jax.lax.scan` takes.
- Of the best nested scans and of Equinox's loop in as much memory, and of scans whose steps are
  under `jax.checkpoint`, with or without a policy that saves products.

Each record has the bytes of the residuals of a step, too: as JAX keeps them, and as a tape does.
"""

from collections.abc import Iterator
from typing import Any

import jax
from jax import lax

from benchmarks.contenders import names
from benchmarks.contenders.budgets import Within, equinox_as_lean, explained
from benchmarks.contenders.nested import BestNested
from benchmarks.contenders.scans import LAX_SCAN, REMAT
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison, Record
from benchmarks.runner.programs import Contender
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
from jax_revolve import checkpointed_scan

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
        comparison = Comparison(workload, "gradient", contenders, share=1 / 3, least_rounds=9)
        sizes = explained(workload).sizes
        about = {"carry": sizes.carry, "uncut": sizes.uncut, "kept": sizes.residuals}
        yield [record | about for record in comparison.measured(quick)]


BENCHMARK = Benchmark("fronts", measure)
