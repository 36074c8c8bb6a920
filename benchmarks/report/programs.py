"""The tables of models, solves, other packages' programs, storage, compilation and progress."""

from collections.abc import Callable, Iterator

from benchmarks.contenders import names
from benchmarks.report.results import Results, Run, find
from benchmarks.report.table import Column, Table, field, megabytes, number, over

COMPILED = [
    ("scan", "stencil", names.LAX_SCAN, "", "`lax.scan(f)`"),
    ("scan", "stencil", names.REMAT, "", "`lax.scan(jax.checkpoint(f))`"),
    ("scan", "stencil", names.NESTED, "", "two nested scans under `jax.checkpoint`"),
    ("scan", "stencil", names.EQUINOX, "", "Equinox's checkpointed loop"),
    ("scan", "stencil", names.JAX_REVOLVE, "by default", "`checkpointed_scan(f)`"),
    (
        *("scan", "stencil", names.JAX_REVOLVE, "memory="),
        "`checkpointed_scan(f, memory=)`, 100 carries",
    ),
    ("while loop", "stencil, while", names.EQUINOX, "", "Equinox's checkpointed loop"),
    ("while loop", "stencil, while", names.JAX_REVOLVE, "", "`bounded_while_loop`"),
]
COMPILED_LENGTHS = (10, 1000, 100_000)
PROGRESS = [
    "stencil, 1000 x 20000",
    "stencil, every carry, 1000 x 20000",
    "stencil, while, 1000 x 20000",
    "scalar, 100000 x 1",
]


def _run_by(run: Run) -> str:
    """How the layers of a model are run."""
    if run["budget"] is not None:
        return f"{run['contender']}, memory={run['budget'] / 1e6:.1f} MB"
    if run["checkpoints"] is not None:
        return f"{run['contender']}, checkpoints={run['checkpoints']}"
    return run["contender"]


def _adjoint(run: Run) -> str:
    name = run["contender"]
    return "`RevolveAdjoint`" if name == names.JAX_REVOLVE else f"`{name}`"


def _over_diffrax(run: Run) -> str:
    rival = {"jvp": names.FORWARD, "gradient": names.RECURSIVE}[run["quantity"]]
    return over(rival)(run)


def _place(run: Run) -> str:
    """Where checkpoints are; the default has no name in the API."""
    place = run["contender"].removeprefix("jax_revolve, ")
    return place if run["contender"] == names.ON_DEVICE else f"`{place}`"


def _compiled(results: Results) -> Iterator[tuple[str, str, dict[int, Run]]]:
    for kind, family, contender, detail, label in COMPILED:
        runs = find(results.runs, family=family, contender=contender)
        yield kind, label, {run["length"]: run for run in runs if detail in run["detail"]}


def _seconds(run: Run) -> str:
    return f"{sum(run[f'{phase}_seconds'] for phase in ('trace', 'lower', 'compile')):.2f} s"


def _by_length(title: str, cell: Callable[[Run], str]) -> list[Column]:
    """A column for each length, the first of which says what they show."""
    return [
        (("" if i else f"{title}, ") + f"n = {n}", lambda row, n=n: cell(row[2][n]))
        for i, n in enumerate(COMPILED_LENGTHS)
    ]


def _progress(results: Results) -> Iterator[dict[str, Run]]:
    for loop in PROGRESS:
        yield {run["program"]: run for run in find(results.runs, loop=loop)}


def _third_party(results: Results) -> list[dict[str, Run]]:
    programs: dict[str, dict[str, Run]] = {}
    for run in results.runs:
        programs.setdefault(run["program"], {})[run["contender"]] = run
    return list(programs.values())


def _title(found: dict[str, Run]) -> str:
    run = found[names.CHECKPOINT_LOOPS]
    versions = ", ".join(f"{name} {number}" for name, number in run["versions"].items())
    return f"{run['program']}: {run['size']} ({versions})"


def _memory_by(contender: str, missing: str = "") -> Column:
    """Programs with a while loop have no gradient by `jax.grad`, and no budget made from it."""
    title = {names.JAX_GRAD: "memory", names.CHECKPOINT_LOOPS: "by default"}
    return (
        title.get(contender, "`memory=`"),
        lambda found: megabytes(found[contender]) if contender in found else missing,
    )


def _time_by(contender: str) -> Column:
    """A ratio where there is something to compare with."""

    def time(found: dict[str, Run]) -> str:
        if contender not in found:
            return ""
        milliseconds = found[contender]["median_ms"]
        if contender == names.JAX_GRAD or names.JAX_GRAD not in found:
            return f"{milliseconds:.0f} ms"
        return number(milliseconds / found[names.JAX_GRAD]["median_ms"])

    return "time", time


def _relative(name: str) -> Column:
    """A relative difference of numbers in single precision."""

    def difference(found: dict[str, Run]) -> str:
        value = found[names.CHECKPOINT_LOOPS][name]
        if value is None:
            return ""
        return "< 1e-07" if value < 1e-7 else f"{value:.0e}"

    return name, difference


PROGRAMS = {
    "compiling": Table(
        "compiling-cpu",
        "Gradients of a stencil of width 1000 {where}: instructions of the compiled program, and"
        " seconds of tracing, lowering and compiling it (`benchmarks/compiling.py`):",
        _compiled,
        [
            ("", lambda row: row[0]),
            ("gradient of", lambda row: row[1]),
            *_by_length("instructions", field("instructions")),
            *_by_length("time", _seconds),
        ],
    ),
    "layers": Table(
        "layers-cpu",
        "Gradients of models {where}; memory and time over the plain model's"
        " (`benchmarks/layers.py`):",
        lambda results: results.runs,
        [
            ("model", field("workload")),
            ("layers run by", _run_by),
            ("memory", megabytes),
            ("share", lambda run: number(run.memory_over(names.PLAIN_LAYERS), 3)),
            ("time", over(names.PLAIN_LAYERS)),
        ],
    ),
    "diffrax": Table(
        "diffrax-cpu",
        "Solves {where}; the last column is the time over `ForwardMode`'s or, for gradients, over"
        " that of `RecursiveCheckpointAdjoint` with as many checkpoints"
        " (`benchmarks/diffrax_adjoints.py`):",
        lambda results: [run for run in results.runs if run["quantity"] != "value"],
        [
            ("problem", field("workload")),
            ("derivative", field("quantity")),
            ("adjoint", _adjoint),
            ("checkpoints", field("checkpoints")),
            ("memory", megabytes),
            ("time", lambda run: f"{run['median_ms']:.1f} ms"),
            ("ratio", _over_diffrax),
        ],
    ),
    "third-party": Table(
        "third-party-cpu",
        "Gradients of programs of other packages {where}: alone, with `checkpoint_loops` by"
        " default, and with `memory=` a tenth of the first column (`benchmarks/third_party.py`):",
        _third_party,
        [
            ("program", _title),
            ("loops", lambda found: str(found[names.CHECKPOINT_LOOPS]["loops"])),
            _memory_by(names.JAX_GRAD, missing="no gradient"),
            _time_by(names.JAX_GRAD),
            _memory_by(names.CHECKPOINT_LOOPS),
            _time_by(names.CHECKPOINT_LOOPS),
            _memory_by(names.WITHIN_BUDGET),
            _time_by(names.WITHIN_BUDGET),
            _relative("difference"),
            _relative("rounding"),
        ],
    ),
    "tpu-programs": Table(
        "programs-tpu",
        "Gradients of 1000 steps of a stencil, compiled for a TPU ({machine[compiled_for]}) with"
        " jax {machine[versions][jax]}; temporaries in states of 16 MiB"
        " (`benchmarks/tpu_programs.py`):",
        lambda results: results.runs,
        [
            ("loop", lambda run: f"`{run['loop']}`"),
            ("options", lambda run: run["options"] and f"`{run['options']}`"),
            ("on the device", lambda run: number(run["device_states"], 1)),
            ("on the host", lambda run: number(run["host_states"], 0)),
        ],
    ),
    "progress": Table(
        "progress-cpu",
        "Time with bars over time without, {where} (`benchmarks/progress.py`):",
        _progress,
        [
            ("loop, steps x width", lambda found: found["value"]["loop"]),
            ("value", lambda found: number(found["value"]["ratio"])),
            ("gradient", lambda found: number(found["gradient"]["ratio"])),
        ],
    ),
    "storage": Table(
        "storage-cpu",
        "Gradients with 10 checkpoints {where}; times are ratios of medians, over that with all of"
        " them on the device (`benchmarks/storage.py`):",
        lambda results: results.runs,
        [
            ("loop", field("workload")),
            ("checkpoints", _place),
            ("memory", megabytes),
            ("time", over(names.ON_DEVICE)),
        ],
    ),
}
