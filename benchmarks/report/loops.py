"""The tables of scans and while loops."""

from collections.abc import Callable, Iterator

from benchmarks.contenders import names
from benchmarks.report.results import Results, Run, find, labeled, quickest
from benchmarks.report.table import Column, Table, of, over, ratio

STENCIL = ("stencil, n = 1000, width 20000", 63)
RNN = ("rnn, n = 1000, batch 16, width 512", 63)
LSTM = "lstm, n = 1000, batch 16, width 128"
WHILE_LOOPS = [
    ("stencil, 1000 steps of 4096, width 20000", 63),
    ("stencil, 1000 steps of 4096, width 20000", 10),
    ("stencil, 10000 steps of 16384, width 1000", 63),
    ("rnn, 1000 steps of 4096, batch 16, width 128", 30),
    ("lstm, 1000 steps of 4096, batch 16, width 128", 28),
]
OF_LAX = {
    names.LAX_SCAN: "`lax.scan(f)`",
    names.REMAT: "`lax.scan(jax.checkpoint(f))`",
    names.NESTED: "the fastest nested scans",
}
OF_CHECKPOINTS = {names.JAX_REVOLVE: "`checkpointed_scan(f, checkpoints={})`"}
BY_DEFAULT = {
    names.EQUINOX: "Equinox's checkpointed loop",
    names.JAX_REVOLVE: "`checkpointed_scan(f)`",
}
OF_WHILE_LOOPS = {
    names.MASKED: "`lax.scan` up to the bound, steps that are done masked",
    names.EQUINOX_BOUNDED: 'Equinox\'s loop, `kind="bounded"`',
    names.JAX_REVOLVE: "`bounded_while_loop`",
}
WITHIN_BUDGETS = [
    ("`lax.scan`, stores everything", names.LAX_SCAN, None),
    ("`memory=` 5% of that", names.JAX_REVOLVE, 0.05),
    ("`memory=` 2% of that", names.JAX_REVOLVE, 0.02),
    ("pure Revolve, single steps, 5% of that", names.SINGLE_STEPS, 0.05),
    ("the fastest nested scans in as much memory as `memory=` 5%", names.NESTED, 0.05),
    ("Equinox's checkpointed loop, as much memory as `memory=` 5%", names.EQUINOX, 0.05),
]


def _of_jax_revolve(results: Results) -> Iterator[Run]:
    runs = find(results.runs, quantity="gradient", contender=names.JAX_REVOLVE)
    yield from (quickest(runs, workload=w, checkpoints=s) for w, s in WHILE_LOOPS)


def _by_contender(
    quantity: str, shown: list[tuple[str, int]], labels: dict[str, str]
) -> Callable[[Results], Iterator[tuple[str, Run]]]:
    """A label and the best run of each contender, with so many checkpoints where it takes them."""

    def rows(results: Results) -> Iterator[tuple[str, Run]]:
        for workload, s in shown:
            runs = find(results.runs, workload=workload, quantity=quantity)
            runs = [run for run in runs if run["checkpoints"] in (None, s)]
            for contender, label in labels.items():
                yield label.format(s), quickest(runs, contender=contender)

    return rows


def _labeled(title: str) -> list[Column]:
    return [
        ("loop", of(1, "{workload}")),
        (title, lambda row: row[0]),
        ("memory", of(1, "{MB:.2f} MB")),
        ("time", of(1, over(names.LAX_SCAN))),
    ]


def _bounds(results: Results) -> list[Run]:
    runs = find(results.runs, family="bounds", contender=names.JAX_REVOLVE)
    return [run for run in runs if run["quantity"] != "value"]


def _checkpoints(run: Run) -> str:
    by_default = "default" in run["quantity"]
    return f"{run['checkpoints']}, {'by default' if by_default else 'given'}"


def _over_least_bound(run: Run) -> str:
    same = {name: run[name] for name in ("workload", "quantity", "contender")}
    least = min(find(run.others, **same), key=lambda other: other["max_steps"])
    return ratio(run, least)


LOOPS = {
    "checkpointed-scans": Table(
        "scan-cpu",
        "Gradients {where}; times are ratios of medians, over `lax.scan`'s (`benchmarks/scan.py`):",
        _by_contender("gradient", [STENCIL, RNN, (LSTM, 44)], OF_LAX | OF_CHECKPOINTS),
        _labeled("gradient of"),
    ),
    "second-order-of-scans": Table(
        "scan-cpu",
        "Hessian-vector products, forward over reverse, {where}; times are ratios of medians, over"
        " `lax.scan`'s (`benchmarks/scan.py`):",
        _by_contender("hvp", [STENCIL, RNN, (LSTM, 63)], OF_LAX | BY_DEFAULT),
        _labeled("product through"),
    ),
    "while-loops": Table(
        "while-cpu",
        "Gradients of while loops {where} and Equinox {machine[versions][equinox]}; times are"
        " ratios of medians, `jax_revolve` over the other (`benchmarks/while_loop.py`):",
        _of_jax_revolve,
        [
            ("loop", "{workload}"),
            ("checkpoints", "{checkpoints}"),
            ("memory, `jax_revolve`", "{MB:.2f} MB"),
            (
                "memory, Equinox's checkpointed",
                lambda r: f"{r.beside(names.EQUINOX)[0]['MB']:.2f} MB",
            ),
            ("time / Equinox's checkpointed", over(names.EQUINOX)),
            ("time / Equinox's bounded", over(names.EQUINOX_BOUNDED)),
        ],
    ),
    "bounds": Table(
        "while-cpu",
        "The gradient of a loop that stops after 8 steps, {where}; times are ratios of medians,"
        " over that with the least bound (`benchmarks/while_loop.py`):",
        _bounds,
        [
            ("`max_steps`", "{max_steps}"),
            ("checkpoints", _checkpoints),
            ("memory", "{MB:.2f} MB"),
            ("time", _over_least_bound),
        ],
    ),
    "second-order": Table(
        "while-cpu",
        "A Hessian-vector product through 200 steps of 256, of a stencil of width 2000, {where};"
        " times are ratios of medians, over Equinox's (`benchmarks/while_loop.py`):",
        lambda results: find(results.runs, family="second-order", quantity="hvp"),
        [
            ("loop", lambda run: OF_WHILE_LOOPS[run["contender"]]),
            ("memory", "{MB:.2f} MB"),
            ("time", over(names.EQUINOX_BOUNDED)),
        ],
    ),
    "budgets": Table(
        "budget-cpu",
        "Gradients of a heavy step, an LSTM with batch 32 and width 512 over 1000 steps, {where}"
        " (`benchmarks/budget.py`):",
        labeled(WITHIN_BUDGETS),
        [
            ("gradient of", lambda row: row[0]),
            ("memory", of(1, "{MB:.1f} MB")),
            ("time", of(1, "{seconds:.1f} s")),
            ("time / `lax.scan`", of(1, over(names.LAX_SCAN))),
        ],
    ),
}
