"""The tables of gradients that were compiled for a GPU or a TPU."""

from collections.abc import Callable, Iterator

from benchmarks.contenders import names
from benchmarks.contenders.nested import TOLERANCE
from benchmarks.report.results import Results, Run, find
from benchmarks.report.table import Cell, Column, Table, of

Row = dict[str, Run]
"""The runs of one workload on one device with one budget, by contender."""

COMPILED = "with jax {machine[versions][jax]} (`benchmarks/gpu_programs.py`)"
LAUNCHED: list[Column] = [
    ("memory", lambda run: f"{run['MB']:{'.3g' if run['MB'] < 1000 else '.0f'}} MB"),
    ("kernels", "{kernels}"),
    ("waits", "{waits}"),
]
PREDICTED = "{predicted_ms:.3g} ms"


BUDGETS = ("default", 0.3, 0.1, 0.05, 0.02)


def _by_budget(results: Results) -> Iterator[Row]:
    """Of scans. `lax.scan` has no budget, and belongs to every row."""
    plain = find(results.runs, contender=names.LAX_SCAN)
    for run in find(results.runs, contender=names.JAX_REVOLVE):
        same = {name: run[name] for name in ("device", "workload")}
        everything = find(plain, **same)
        if run["share"] in BUDGETS and everything:
            others = find(results.runs, share=run["share"], **same)
            yield {names.LAX_SCAN: everything[0]} | {r["contender"]: r for r in others}


def _ours(cell: Cell) -> Cell:
    return of(names.JAX_REVOLVE, cell)


def _budget(run: Run) -> str:
    return f"{run['share']:.0%}" if isinstance(run["share"], float) else run["share"]


def _device(run: Run) -> str:
    return run["device"].removeprefix("NVIDIA ").partition("-")[0].partition(" ")[0]


def _fits(row: Row) -> bool:
    limit = TOLERANCE * row[names.JAX_REVOLVE]["temp_bytes"]
    return names.NESTED in row and row[names.NESTED]["temp_bytes"] <= limit


def _nested(row: Row) -> str:
    """Where none fits, the leanest is shown by its memory alone."""
    return of(names.NESTED, "{MB:.3g} MB" if _fits(row) else "at least {MB:.3g} MB")(row)


def _if_nested_fits(cell: Callable[[Row], str]) -> Callable[[Row], str]:
    return lambda row: cell(row) if _fits(row) else "none"


def _kernels_over_nested(row: Row) -> str:
    return f"{row[names.JAX_REVOLVE]['kernels'] / row[names.NESTED]['kernels']:.2f}"


def _is_vmap(run: Run) -> bool:
    return run["workload"].startswith("vmap")


GPU = {
    "gpu-programs": Table(
        "programs-gpu",
        f"Gradients compiled for a GPU {COMPILED}, with the default budget and with 30 to 2 %"
        " of the memory of `lax.scan`: temporaries, kernels, waits and predicted times. The ratio"
        " is of kernels, over the nested scans with the fewest levels that need no more memory."
        " Where none fits, the memory of the leanest is shown:",
        _by_budget,
        [
            ("device", _ours(_device)),
            ("loop", _ours("{workload}")),
            ("budget", _ours(_budget)),
            ("plan", _ours("{detail}")),
            *((title, _ours(cell)) for title, cell in LAUNCHED),
            ("copies of buffers", _ours("{copies_of_buffers}")),
            ("predicted", _ours(PREDICTED)),
            ("nested scans", _nested),
            ("blocks", _if_nested_fits(of(names.NESTED, "{detail}"))),
            ("kernels / nested", _if_nested_fits(_kernels_over_nested)),
            ("predicted, nested", _if_nested_fits(of(names.NESTED, PREDICTED))),
            ("`lax.scan`", of(names.LAX_SCAN, "{MB:.3g} MB")),
            ("predicted, `lax.scan`", of(names.LAX_SCAN, PREDICTED)),
        ],
    ),
    "gpu-equinox": Table(
        "programs-gpu",
        f"Equinox's loop {COMPILED}, with about as many states as jax_revolve with 10 % of the"
        " memory of `lax.scan`. Its loop of unknown length is taken to run as often as an optimal"
        " schedule evaluates steps, and the longer branch to be taken each time:",
        lambda results: [r for r in find(results.runs, contender=names.EQUINOX) if not _is_vmap(r)],
        [("loop", "{workload}"), *LAUNCHED, ("predicted", PREDICTED)],
    ),
    "gpu-host-memory": Table(
        "programs-gpu",
        f"Checkpoints in the host's memory {COMPILED}:",
        lambda results: [r for r in results.runs if str(r["share"]).startswith("HostMemory")],
        [
            ("device", _device),
            ("loop", "{workload}"),
            ("checkpoints", "{detail}"),
            ("on the device", "{MB:.3g} MB"),
            ("on the host", lambda run: f"{run['host_bytes'] / 1e6:.3g} MB"),
            *LAUNCHED[1:],
            ("transfers in the program", "{transfers}"),
            ("kernels during each", lambda run: ", ".join(map(str, run["beside_transfers"]))),
        ],
    ),
    "gpu-while-loops": Table(
        "programs-gpu",
        f"A while loop under `vmap` {COMPILED}. Its loops of unknown length are taken to run as"
        " often as the plan evaluates steps:",
        lambda results: filter(_is_vmap, results.runs),
        [
            ("device", _device),
            ("gradient of", "{contender}"),
            *LAUNCHED,
            ("loops of unknown length", "{dynamic_loops}"),
            ("predicted", PREDICTED),
        ],
    ),
    "tpu-programs": Table(
        "programs-tpu",
        "Gradients of 1000 steps of a stencil, compiled for a TPU ({machine[compiled_for]}) with"
        " jax {machine[versions][jax]}; temporaries in states of 16 MiB"
        " (`benchmarks/tpu_programs.py`):",
        lambda results: results.runs,
        [
            ("loop", "`{loop}`"),
            ("options", lambda run: run["options"] and f"`{run['options']}`"),
            ("on the device", "{device_states:.1f}"),
            ("on the host", "{host_states:.0f}"),
            ("loops", "{loops}"),
            ("of dynamic length", "{dynamic_loops}"),
            ("copies of slots", "{copies_of_buffers}"),
            ("transfers", "{transfers}"),
        ],
    ),
}
