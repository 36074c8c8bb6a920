"""The tables of gradients that were compiled for a GPU."""

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.contenders import names
from benchmarks.report.results import Results, Run, find
from benchmarks.report.table import Table, field, number

Row = dict[str, Run]
"""The runs of one workload on one device with one budget, by contender."""

COMPILED = "with jax {machine[versions][jax]} (`benchmarks/gpu_programs.py`)"


def _by_budget(results: Results) -> Iterator[Row]:
    """Of scans. `lax.scan` has no budget, and belongs to every row."""
    plain = find(results.runs, contender=names.LAX_SCAN)
    for run in find(results.runs, contender=names.JAX_REVOLVE):
        same = {name: run[name] for name in ("device", "workload")}
        everything = find(plain, **same)
        if run["share"] not in ("default", 0.1) or not everything:
            continue
        row = {names.LAX_SCAN: everything[0]}
        row |= {
            other["contender"]: other for other in find(results.runs, share=run["share"], **same)
        }
        yield row


def _ours(cell: Callable[[Run], str]) -> Callable[[Row], str]:
    return lambda row: cell(row[names.JAX_REVOLVE])


def _of(contender: str, cell: Callable[[Run], str]) -> Callable[[Row], str]:
    return lambda row: cell(row[contender]) if contender in row else ""


def _budget(run: Run) -> str:
    return f"{run['share']:.0%}" if isinstance(run["share"], float) else run["share"]


def _device(run: Run) -> str:
    return run["device"].removeprefix("NVIDIA ").partition("-")[0].partition(" ")[0]


def _megabytes(run: Run) -> str:
    return f"{run['temp_bytes'] / 1e6:.3g} MB"


def _milliseconds(run: Run) -> str:
    return f"{run['predicted_ms']:.3g} ms"


def _kernels_over_nested(row: Row) -> str:
    if names.NESTED not in row:
        return ""
    return number(row[names.JAX_REVOLVE]["kernels"] / row[names.NESTED]["kernels"])


def _with_budget(budget: Any) -> Callable[[Results], list[Run]]:
    return lambda results: [run for run in results.runs if run["share"] == budget]


def _while_loops(results: Results) -> list[Run]:
    return [run for run in results.runs if run["workload"].startswith("vmap")]


LAUNCHED = [
    ("memory", _megabytes),
    ("kernels", field("kernels")),
    ("waits", field("waits")),
]

GPU = {
    "gpu-programs": Table(
        "programs-gpu",
        f"Gradients compiled for a GPU {COMPILED}, with the default budget and with a tenth of the"
        " memory of `lax.scan`: temporaries, kernels, waits and predicted times. The ratio is of"
        " kernels, over the nested scans with the fewest levels that need no more memory:",
        _by_budget,
        [
            ("device", _ours(_device)),
            ("loop", _ours(field("workload"))),
            ("budget", _ours(_budget)),
            ("plan", _ours(field("detail"))),
            *((title, _ours(cell)) for title, cell in LAUNCHED),
            ("copies of buffers", _ours(field("copies_of_buffers"))),
            ("predicted", _ours(_milliseconds)),
            ("nested scans", _of(names.NESTED, _megabytes)),
            ("kernels / nested", _kernels_over_nested),
            ("predicted, nested", _of(names.NESTED, _milliseconds)),
            ("`lax.scan`", _of(names.LAX_SCAN, _megabytes)),
            ("predicted, `lax.scan`", _of(names.LAX_SCAN, _milliseconds)),
        ],
    ),
    "gpu-equinox": Table(
        "programs-gpu",
        f"Equinox's loop {COMPILED}, with about as many states as jax_revolve with 10 % of the"
        " memory of `lax.scan`. Its loop of unknown length is taken to run as often as an optimal"
        " schedule evaluates steps, and the longer branch to be taken each time:",
        lambda results: [
            run
            for run in find(results.runs, contender=names.EQUINOX)
            if not run["workload"].startswith("vmap")
        ],
        [
            ("loop", field("workload")),
            *LAUNCHED,
            ("predicted", _milliseconds),
        ],
    ),
    "gpu-host-memory": Table(
        "programs-gpu",
        f"Checkpoints in the host's memory {COMPILED}:",
        _with_budget("host"),
        [
            ("device", _device),
            ("loop", field("workload")),
            ("checkpoints", field("detail")),
            ("on the device", _megabytes),
            ("on the host", lambda run: f"{run['host_bytes'] / 1e6:.3g} MB"),
            ("kernels", field("kernels")),
            ("waits", field("waits")),
            ("transfers in the program", field("transfers")),
        ],
    ),
    "gpu-while-loops": Table(
        "programs-gpu",
        f"A while loop under `vmap` {COMPILED}. Its loops of unknown length are taken to run as"
        " often as the plan evaluates steps:",
        _while_loops,
        [
            ("device", _device),
            ("gradient of", field("contender")),
            *LAUNCHED,
            ("loops of unknown length", field("dynamic_loops")),
            ("predicted", _milliseconds),
        ],
    ),
}
