"""Time over memory of a gradient, for steps of many kinds.

- Of `checkpointed_scan`, with budgets from twice to a hundredth of what `jax.lax.scan` takes.
- Of the best nested scans and of Equinox's loop in as much memory, and of scans whose steps are
  under `jax.checkpoint`, with or without a policy that saves products.

Each record has the bytes of the residuals of a step, too: as JAX keeps them, and as a tape does.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.contenders.scans import (
    EQUINOX,
    JAX_REVOLVE,
    LAX_SCAN,
    NESTED,
    REMAT,
    SAVES_PRODUCTS,
    TAPED_WHOLE,
    nested,
)
from benchmarks.contenders.searches import (
    TOLERANCE,
    Within,
    best_nested,
    equinox_as_lean,
    explained,
    squarest,
)
from benchmarks.report.results import Results, Run, find, grouped, labeled, quickest, within
from benchmarks.report.table import Column, Table, of, ratio, text
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison
from benchmarks.runner.programs import PHASES, Record
from benchmarks.workloads import steps
from benchmarks.workloads.recurrences import lstm, scanned

SHAPES = [
    (steps.sine_stencil, (1000, 20_000)),
    (steps.waves, (1000, 100)),
    (steps.particles, (300, 64)),
    (steps.lorenz, (1000, 4000)),
    (steps.gru, (1000, 16, 128)),
    (lstm, (1000, 16, 128)),
    (steps.transformer, (60, 64, 128)),
    (steps.neural_ode, (400, 32, 64)),
]
LARGE_SHAPES = [
    (steps.waves, (1000, 2000)),
    (steps.particles, (300, 1024)),
    (lstm, (1000, 32, 1024)),
    (steps.transformer, (48, 512, 1024)),
    (steps.neural_ode, (400, 512, 512)),
]
"""For accelerators."""
QUICK_SHAPES = [(steps.sine_stencil, (16, 16)), (steps.gru, (16, 2, 4))]
SHARES = (2, 0.5, 0.2, 0.1, 0.05, 0.02)
LARGE_SHARES = (0.3, 0.1, 0.03)
SEARCHES = (best_nested, equinox_as_lean)


def comparisons(quick: bool) -> Iterator[Comparison]:
    for make, shape in QUICK_SHAPES if quick else SHAPES:
        workload = scanned(make(*shape))
        shares = SHARES[3:4] if quick else SHARES
        plain = (LAX_SCAN, REMAT, SAVES_PRODUCTS, TAPED_WHOLE)
        contenders = [*plain, *(Within(share, SEARCHES) for share in shares)]
        sizes = explained(workload).sizes
        about: Record = {"carry": sizes.carry, "uncut": sizes.uncut, "kept": sizes.residuals}
        yield Comparison(workload, "gradient", contenders, least_rounds=25, about=about)


def large(quick: bool, which: slice) -> Iterator[Comparison]:
    """For accelerators, with few ways to nest scans: to compile many takes longer than to run
    them."""
    for make, shape in (QUICK_SHAPES if quick else LARGE_SHAPES)[which]:
        workload = scanned(make(*shape))
        budgets = (Within(share, (equinox_as_lean,)) for share in LARGE_SHARES)
        few = (nested(squarest(workload.length), taped) for taped in (True, False))
        contenders = [LAX_SCAN, REMAT, *few, *budgets]
        yield Comparison(workload, "gradient", contenders, may_fail=True)


SHOWN = (0.1, 0.05, 0.02)
ON_THE_FIRST_PAGE = ("2-D wave", "gru")
"""The families of the workloads in the README: a field, and a network."""

RIVALS = {
    NESTED: "nested",
    EQUINOX: "Equinox",
    REMAT.name: "checkpoint",
    SAVES_PRODUCTS.name: "checkpoint with a policy",
}
QUARTILES = "{quartiles_ms[0]:.0f} to {quartiles_ms[1]:.0f}"
TRANSFORMER = "transformer block, n = 60, 64 tokens, width 128"
OF_BLOCKS = [
    ("`lax.scan(f)`", LAX_SCAN.name, None),
    ("`lax.scan(jax.checkpoint(f))`", REMAT.name, None),
    ("the same, policy `dots_saveable`", SAVES_PRODUCTS.name, None),
    *((f"`checkpointed_scan`, `memory=` {s:.0%}", JAX_REVOLVE, s) for s in SHOWN),
    ("Equinox's loop, `memory=` 5%", EQUINOX, 0.05),
]


def _workloads(results: Results) -> Iterator[list[Run]]:
    """The gradients of each workload."""
    return grouped(results, "workload")


def _in_carries(name: str) -> Callable[[list[Run]], str]:
    return lambda runs: f"{runs[0][name] / runs[0]['carry']:.1f}"


def _time(contender: str, share: float | None = None) -> Callable[[list[Run]], str]:
    """Over `lax.scan`'s, with a budget of this share of its memory."""

    def time(runs: list[Run]) -> str:
        run = within(runs, contender, share)
        return ratio(run, quickest(runs, contender=LAX_SCAN.name)) if run else ""

    return time


def _and_rival(runs: list[Run], share: float) -> tuple[Run, Run] | None:
    """The run within a share, if any, and the quickest other one in as much memory, or else the
    leanest."""
    ours = within(runs, JAX_REVOLVE, share)
    if ours is None:
        return None
    all_of = [run for name in RIVALS for run in find(runs, contender=name)]
    others = [run for run in all_of if run["budget"] in (None, ours["budget"])]
    fit = [run for run in others if run["temp_bytes"] <= TOLERANCE * ours["temp_bytes"]]
    return ours, quickest(fit) if fit else min(others, key=lambda run: run["temp_bytes"])


def _beside_rival(share: float) -> Callable[[list[Run]], str]:
    def times(runs: list[Run]) -> str:
        if (both := _and_rival(runs, share)) is None:
            return ""
        plain, (ours, rival) = quickest(runs, contender=LAX_SCAN.name), both
        fits = rival["temp_bytes"] <= TOLERANCE * ours["temp_bytes"]
        label = RIVALS[rival["contender"]] + ("" if fits else " in more memory")
        return f"{ratio(ours, plain)}; {ratio(rival, plain)}, {label}"

    return times


def _compiling_over_rival(share: float) -> Callable[[list[Run]], str]:
    def ratio_of_times(runs: list[Run]) -> str:
        if (both := _and_rival(runs, share)) is None:
            return ""
        seconds, others = (sum(run[phase] for phase in PHASES) for run in both)
        return f"{seconds:.1f} s, {seconds / others:.1f}"

    return ratio_of_times


def _memory_when_taped(runs: list[Run]) -> str:
    return f"{quickest(runs, contender=TAPED_WHOLE.name).memory_over(LAX_SCAN.name):.1%}"


def _cost(contender: str) -> Callable[[list[Run]], str]:
    """The memory and the time within the least budget; of several ways, those of the quickest."""

    def cost(runs: list[Run]) -> str:
        least = min(run["budget"] for run in runs if run["budget"] is not None)
        tried = find(runs, contender=contender)
        run = quickest([run for run in tried if run["budget"] in (None, least)])
        return text(f"{{MB:.1f}} MB, {QUARTILES} ms", run)

    return cost


def _trade(results: Results) -> Iterator[tuple[Any, ...]]:
    """A label and the runs of the two workloads in the README."""
    wave, gru = (find(results.runs, family=family) for family in ON_THE_FIRST_PAGE)
    yield "`lax.scan`", within(wave, LAX_SCAN.name), within(gru, LAX_SCAN.name)
    for share in SHOWN:
        both = (within(runs, JAX_REVOLVE, share) for runs in (wave, gru))
        yield f"`memory=` {share:.0%} of that", *both


LOOP: Column = ("loop", lambda runs: runs[0]["workload"])

TABLES = {
    "trade": Table(
        "Memory and median time of one gradient {where} (`benchmarks/fronts.py`):",
        _trade,
        [
            ("gradient of 1000 steps", lambda row: row[0]),
            ("2-D wave, 100 x 100", of(1, "{MB:.1f} MB, {median_ms:.0f} ms")),
            ("GRU, batch 16, width 128", of(2, "{MB:.1f} MB, {median_ms:.0f} ms")),
        ],
    ),
    "results": Table(
        "Memory and time of gradients {where}: `memory=` is 2% of what `lax.scan` takes. Nested"
        " `jax.checkpoint` scans and Equinox's loop are the fastest settings within that, or the"
        " ones nearest to it. The times are the quartiles of nine runs (`benchmarks/fronts.py`):",
        _workloads,
        [
            LOOP,
            ("`lax.scan`", _cost(LAX_SCAN.name)),
            ("jax_revolve", _cost(JAX_REVOLVE)),
            ("nested scans", _cost(NESTED)),
            ("Equinox", _cost(EQUINOX)),
        ],
    ),
    "transformer-blocks": Table(
        f"Gradients of a loop over a {TRANSFORMER}, {{where}}; `memory=` is a share of what"
        " `lax.scan` takes, and times are medians with quartiles (`benchmarks/fronts.py`):",
        labeled(OF_BLOCKS, workload=TRANSFORMER),
        [
            ("gradient of", lambda row: row[0]),
            ("memory", of(1, "{MB:.1f} MB")),
            ("time", of(1, f"{{median_ms:.0f}} ms ({QUARTILES})")),
        ],
    ),
    "residuals": Table(
        "Residuals of a step in carries, as JAX keeps them and as a tape does, and gradients that"
        " tape every step {where}, over `lax.scan`'s (`benchmarks/fronts.py`):",
        _workloads,
        [
            LOOP,
            ("JAX", _in_carries("uncut")),
            ("tape", _in_carries("kept")),
            ("memory", _memory_when_taped),
            ("time", _time(TAPED_WHOLE.name)),
            ("time, `memory=` twice `lax.scan`'s", _time(JAX_REVOLVE, 2)),
        ],
    ),
    "fronts": Table(
        "Times over `lax.scan`'s of gradients with `memory=` a share of what it takes {where}, and"
        " of the quickest of the others in as much memory: nested `jax.checkpoint` scans, Equinox's"
        " loop, `jax.checkpoint` of each step. If none is as lean, it is the leanest"
        " (`benchmarks/fronts.py`):",
        _workloads,
        [LOOP, *((f"{share:.0%}", _beside_rival(share)) for share in SHARES[1:])],
    ),
    "fronts-compiling": Table(
        "The time to trace, lower and compile these gradients {where}, over the"
        " other loop's (`benchmarks/fronts.py`):",
        _workloads,
        [LOOP, *((f"{share:.0%}", _compiling_over_rival(share)) for share in SHARES[1:])],
    ),
}


def _of_both(share: float, results: Results) -> str:
    """The times over `lax.scan`'s of the two workloads in the README."""
    both = (find(results.runs, family=family) for family in ON_THE_FIRST_PAGE)
    return " and ".join(_time(JAX_REVOLVE, share)(runs) for runs in both)


FIGURES = {f"both-{share:.0%}"[:-1]: partial(_of_both, share) for share in (0.1, 0.02)}
BENCHMARK = Benchmark("fronts", comparisons, TABLES, FIGURES)
