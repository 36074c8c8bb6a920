"""The tables of time over memory."""

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.contenders import names
from benchmarks.report.results import Results, Run, find, grouped, labeled, quickest, within
from benchmarks.report.table import Column, Table, of, ratio, text

SHARES = (0.1, 0.05, 0.02)
ON_THE_FIRST_PAGE = ("2-D wave", "gru")
"""The families of the workloads in the README: a field, and a network."""

BESIDE = {names.JAX_REVOLVE: "jax_revolve", names.NESTED: "nested", names.EQUINOX: "Equinox"}
QUARTILES = "{quartiles_ms[0]:.0f} to {quartiles_ms[1]:.0f}"
TRANSFORMER = "transformer block, n = 60, 64 tokens, width 128"
OF_BLOCKS = [
    ("`lax.scan(f)`", names.LAX_SCAN, None),
    ("`lax.scan(jax.checkpoint(f))`", names.REMAT, None),
    ("the same, policy `dots_saveable`", names.SAVES_PRODUCTS, None),
    *((f"`checkpointed_scan`, `memory=` {s:.0%}", names.JAX_REVOLVE, s) for s in SHARES),
    ("Equinox's loop, `memory=` 5%", names.EQUINOX, 0.05),
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
        return ratio(run, quickest(runs, contender=names.LAX_SCAN)) if run else ""

    return time


def _memory_when_taped(runs: list[Run]) -> str:
    return f"{quickest(runs, contender=names.TAPED_WHOLE).memory_over(names.LAX_SCAN):.1%}"


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
    yield "`lax.scan`", within(wave, names.LAX_SCAN), within(gru, names.LAX_SCAN)
    for share in SHARES:
        both = (within(runs, names.JAX_REVOLVE, share) for runs in (wave, gru))
        yield f"`memory=` {share:.0%} of that", *both


LOOP: Column = ("loop", lambda runs: runs[0]["workload"])

FRONTS = {
    "trade": Table(
        "fronts-cpu",
        "Memory and median time of one gradient {where} (`benchmarks/fronts.py`):",
        _trade,
        [
            ("gradient of 1000 steps", lambda row: row[0]),
            ("2-D wave, 100 x 100", of(1, "{MB:.1f} MB, {median_ms:.0f} ms")),
            ("GRU, batch 16, width 128", of(2, "{MB:.1f} MB, {median_ms:.0f} ms")),
        ],
    ),
    "results": Table(
        "fronts-cpu",
        "Memory and time of gradients {where}: `memory=` is 2% of what `lax.scan` takes. Nested"
        " `jax.checkpoint` scans and Equinox's loop are the fastest settings within that, or the"
        " ones nearest to it. The times are the quartiles of nine runs (`benchmarks/fronts.py`):",
        _workloads,
        [
            LOOP,
            ("`lax.scan`", _cost(names.LAX_SCAN)),
            ("jax_revolve", _cost(names.JAX_REVOLVE)),
            ("nested scans", _cost(names.NESTED)),
            ("Equinox", _cost(names.EQUINOX)),
        ],
    ),
    "plans": Table(
        "plans-cpu",
        "Gradients with `memory=` a share of what `lax.scan` takes {where}: the"
        " fastest of the plans that fit, and how much longer others take: the one"
        " predicted to be fastest, and the one that `measure=True` finds (`benchmarks/plans.py`):",
        lambda results: results.runs,
        [
            ("loop", "{workload}"),
            ("share", "{share:.0%}"),
            ("fastest", "{best}"),
            ("time", "{best_ms:.0f} ms"),
            ("predicted", "{predicted_loss:+.0%}"),
            ("`measure=True`", "{measured_loss:+.0%}"),
        ],
    ),
    "transformer-blocks": Table(
        "fronts-cpu",
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
        "fronts-cpu",
        "Residuals of a step in carries, as JAX keeps them and as a tape does, and gradients that"
        " tape every step {where}, over `lax.scan`'s (`benchmarks/fronts.py`):",
        _workloads,
        [
            LOOP,
            ("JAX", _in_carries("uncut")),
            ("tape", _in_carries("kept")),
            ("memory", _memory_when_taped),
            ("time", _time(names.TAPED_WHOLE)),
            ("time, `memory=` twice `lax.scan`'s", _time(names.JAX_REVOLVE, 2)),
        ],
    ),
    "fronts": Table(
        "fronts-cpu",
        "Gradients with `memory=` a share of what `lax.scan` takes {where}, and the fastest"
        " nested scans and Equinox's loop in as much memory, or the least that they take:"
        " times over `lax.scan`'s (`benchmarks/fronts.py`):",
        _workloads,
        [
            LOOP,
            *(
                (f"{share:.0%}: {label}", _time(contender, share))
                for share in SHARES
                for contender, label in BESIDE.items()
            ),
        ],
    ),
}
