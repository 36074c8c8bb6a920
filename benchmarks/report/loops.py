"""The tables of scans and while loops."""

from collections.abc import Callable, Iterator

from benchmarks.contenders import names
from benchmarks.report.results import Results, Run, find, quickest
from benchmarks.report.table import Column, Table, field, megabytes, number, over

SCANS = [
    ("stencil, n = 1000, width 20000", 63),
    ("stencil, n = 1000, width 20000", 10),
    ("stencil, n = 100000, width 1000", 63),
    ("rnn, n = 1000, batch 16, width 512", 63),
    ("lstm, n = 1000, batch 16, width 128", 44),
]
WHILE_LOOPS = [
    ("stencil, 1000 steps of 4096, width 20000", 63),
    ("stencil, 1000 steps of 4096, width 20000", 10),
    ("stencil, 10000 steps of 16384, width 1000", 63),
    ("rnn, 1000 steps of 4096, batch 16, width 128", 30),
    ("lstm, 1000 steps of 4096, batch 16, width 128", 28),
]
BOUNDS = "bounds, 8 steps of 16 or 1024 or 1048576, stencil of width 20000"
SECOND_ORDER = "second-order, 200 steps of 256, stencil of width 2000"
BUDGETS = ["lstm, n = 1000, batch 16, width 128", "lstm, n = 1000, batch 32, width 512"]

OF_LAX = {
    names.LAX_SCAN: "`lax.scan(f)`",
    names.REMAT: "`lax.scan(jax.checkpoint(f))`",
    names.NESTED: "the quickest nested scans tried",
}
OF_ALL = OF_LAX | {
    names.EQUINOX: "Equinox's checkpointed loop",
    names.JAX_REVOLVE: "`checkpointed_scan(f)`",
}
OF_WHILE_LOOPS = {
    names.MASKED: "`lax.scan` up to the bound, steps that are done masked",
    names.EQUINOX_BOUNDED: 'Equinox\'s loop, `kind="bounded"`',
    names.EQUINOX: 'Equinox\'s loop, `kind="checkpointed"`',
    names.JAX_REVOLVE: "`bounded_while_loop`",
}
WITHIN_BUDGETS = [
    ("`lax.scan`, stores everything", names.LAX_SCAN, None),
    ("`memory=` 5% of that", names.JAX_REVOLVE, 0.05),
    ("`memory=` 2% of that", names.JAX_REVOLVE, 0.02),
    ("pure Revolve, single steps, 5% of that", names.SINGLE_STEPS, 0.05),
    ("quickest nested `jax.checkpoint` scans, memory of `memory=` 5%", names.NESTED, 0.05),
    ("Equinox's checkpointed loop, memory of `memory=` 5%", names.EQUINOX, 0.05),
]


def _chosen(shown: list[tuple[str, int]]) -> Callable[[Results], list[Run]]:
    """The gradients of jax_revolve for these workloads and numbers of checkpoints."""

    def rows(results: Results) -> list[Run]:
        gradients = find(results.runs, quantity="gradient", contender=names.JAX_REVOLVE)
        return [quickest(gradients, workload=w, checkpoints=s) for w, s in shown]

    return rows


def _memory_of(contender: str, digits: int = 2) -> Callable[[Run], str]:
    return lambda run: megabytes(run.rivals(contender)[0], digits)


def _beside_remat(results: Results) -> Iterator[tuple[str, Run]]:
    """A label and the gradient of each contender."""
    for workload, s in (SCANS[0], SCANS[3], SCANS[4]):
        labels = OF_LAX | {names.JAX_REVOLVE: f"`checkpointed_scan(f, checkpoints={s})`"}
        runs = find(results.runs, workload=workload, quantity="gradient")
        runs = [run for run in runs if run["checkpoints"] in (None, s)]
        yield from ((label, quickest(runs, contender=name)) for name, label in labels.items())


def _second_order_of_scans(results: Results) -> Iterator[tuple[str, Run]]:
    for workload, _ in (SCANS[0], SCANS[3], SCANS[4]):
        runs = find(results.runs, workload=workload, quantity="hvp")
        yield from ((label, quickest(runs, contender=name)) for name, label in OF_ALL.items())


def _labeled(title: str) -> list[Column]:
    return [
        ("loop", lambda row: row[1]["workload"]),
        (title, lambda row: row[0]),
        ("memory", lambda row: megabytes(row[1])),
        ("time", lambda row: over(names.LAX_SCAN)(row[1])),
    ]


def _bounds(results: Results) -> list[Run]:
    runs = find(results.runs, workload=BOUNDS, contender=names.JAX_REVOLVE)
    return [run for run in runs if run["quantity"] != "value"]


def _over_least_bound(run: Run) -> str:
    same = {name: run[name] for name in ("workload", "quantity", "contender")}
    least = min(find(run.others, **same), key=lambda other: other["max_steps"])
    return number(run["median_ms"] / least["median_ms"])


def _within_budgets(results: Results) -> Iterator[tuple[str, dict[str, Run]]]:
    """A label and, for each workload, the gradient of one contender."""
    gradients = find(results.runs, quantity="gradient")
    everything = {
        workload: quickest(gradients, workload=workload, contender=names.LAX_SCAN)
        for workload in BUDGETS
    }
    for label, contender, share in WITHIN_BUDGETS:
        yield (
            label,
            {
                workload: quickest(
                    gradients,
                    workload=workload,
                    contender=contender,
                    budget=None if share is None else int(share * plain["temp_bytes"]),
                )
                for workload, plain in everything.items()
            },
        )


def _columns_of_budget(workload: str) -> list[Column]:
    def memory(run: Run) -> str:
        is_plain = run["contender"] == names.LAX_SCAN
        return megabytes(run, 1) if is_plain else f"{run.memory_over(names.LAX_SCAN):.1%}"

    return [
        (f"memory, {workload}", lambda row: memory(row[1][workload])),
        ("time", lambda row: over(names.LAX_SCAN)(row[1][workload])),
    ]


LOOPS = {
    "scans": Table(
        "scan-cpu",
        "Gradients {where}; times are ratios of medians, `jax_revolve` over the other"
        " (`benchmarks/scan.py`):",
        _chosen(SCANS),
        [
            ("loop", field("workload")),
            ("checkpoints", field("checkpoints")),
            ("memory, `lax.scan`", _memory_of(names.LAX_SCAN, 1)),
            ("memory, `jax_revolve`", megabytes),
            ("time / `lax.scan`", over(names.LAX_SCAN)),
            ("time / Equinox's", over(names.EQUINOX)),
        ],
    ),
    "checkpointed-scans": Table(
        "scan-cpu",
        "Gradients {where}; times are ratios of medians, over `lax.scan`'s (`benchmarks/scan.py`):",
        _beside_remat,
        _labeled("gradient of"),
    ),
    "second-order-of-scans": Table(
        "scan-cpu",
        "Hessian-vector products, forward over reverse, {where}; times are ratios of medians, over"
        " `lax.scan`'s (`benchmarks/scan.py`):",
        _second_order_of_scans,
        _labeled("product through"),
    ),
    "while-loops": Table(
        "while-cpu",
        "Gradients of while loops {where} and Equinox {machine[versions][equinox]}; times are"
        " ratios of medians, `jax_revolve` over the other (`benchmarks/while_loop.py`):",
        _chosen(WHILE_LOOPS),
        [
            ("loop", field("workload")),
            ("checkpoints", field("checkpoints")),
            ("memory, `jax_revolve`", megabytes),
            ("memory, Equinox's checkpointed", _memory_of(names.EQUINOX)),
            ("time / Equinox's checkpointed", over(names.EQUINOX)),
            ("time / Equinox's bounded", over(names.EQUINOX_BOUNDED)),
        ],
    ),
    "bounds": Table(
        "while-cpu",
        "The gradient of a loop that stops after 8 steps, {where}; times are over that with the"
        " least bound (`benchmarks/while_loop.py`):",
        _bounds,
        [
            ("`max_steps`", field("max_steps")),
            (
                "checkpoints",
                lambda run: (
                    f"{run['checkpoints']}, "
                    + ("by default" if "default" in run["quantity"] else "given")
                ),
            ),
            ("memory", megabytes),
            ("time", _over_least_bound),
        ],
    ),
    "second-order": Table(
        "while-cpu",
        "A Hessian-vector product through 200 steps of 256, of a stencil of width 2000, {where};"
        " times are ratios of medians, over Equinox's (`benchmarks/while_loop.py`):",
        lambda results: find(results.runs, workload=SECOND_ORDER, quantity="hvp"),
        [
            ("loop", lambda run: OF_WHILE_LOOPS[run["contender"]]),
            ("memory", megabytes),
            ("time", over(names.EQUINOX_BOUNDED)),
        ],
    ),
    "budgets": Table(
        "budget-cpu",
        "Gradients within a budget {where}, over those that store everything"
        " (`benchmarks/budget.py`):",
        _within_budgets,
        [("", lambda row: row[0]), *(c for w in BUDGETS for c in _columns_of_budget(w))],
    ),
}
