"""The tables of models, solves, other packages' programs, storage, compilation, progress and
loops in Python."""

from collections.abc import Callable, Iterator

from benchmarks.contenders import names
from benchmarks.report.results import Results, Run, find
from benchmarks.report.table import ENOUGH, Column, Table, field, megabytes, number, over, ratio

COMPILED = [
    ("scan", "stencil", names.LAX_SCAN, "", "`lax.scan(f)`"),
    ("scan", "stencil", names.REMAT, "", "`lax.scan(jax.checkpoint(f))`"),
    ("scan", "stencil", names.NESTED, "", "two nested scans under `jax.checkpoint`"),
    ("scan", "stencil", names.EQUINOX, "", "Equinox's checkpointed loop"),
    ("scan", "stencil", names.JAX_REVOLVE, "by default", "`checkpointed_scan(f)`"),
    (
        "scan",
        "stencil",
        names.JAX_REVOLVE,
        "memory=",
        "`checkpointed_scan(f, memory=)`, 100 carries",
    ),
    ("while loop", "stencil, while", names.EQUINOX, "", "Equinox's checkpointed loop"),
    ("while loop", "stencil, while", names.JAX_REVOLVE, "", "`bounded_while_loop`"),
]
LENGTHS = (10, 1000, 100_000)
PROGRESS = [
    "stencil, 1000 x 20000",
    "stencil, every carry, 1000 x 20000",
    "stencil, while, 1000 x 20000",
    "scalar, 100000 x 1",
]


def _all(results: Results) -> Iterator[Run]:
    return iter(results.runs)


def _layers_run_by(run: Run) -> str:
    if run["budget"] is not None:
        return f"{run['contender']}, memory={run['budget'] / 1e6:.1f} MB"
    if run["checkpoints"] is not None:
        return f"{run['contender']}, checkpoints={run['checkpoints']}"
    return run["contender"]


def _adjoint(run: Run) -> str:
    return f"`{run['contender'].replace(names.JAX_REVOLVE, 'RevolveAdjoint')}`"


def _over_diffrax(run: Run) -> str:
    other = {"jvp": names.FORWARD, "gradient": names.RECURSIVE}[run["quantity"]]
    return over(other)(run)


def _storage(run: Run) -> str:
    """The default has no name in the API."""
    storage = run["contender"].removeprefix("jax_revolve, ")
    return storage if run["contender"] == names.ON_DEVICE else f"`{storage}`"


def _compiled(results: Results) -> Iterator[tuple[str, str, dict[int, Run]]]:
    for kind, family, contender, detail, label in COMPILED:
        runs = find(results.runs, family=family, contender=contender)
        yield kind, label, {run["length"]: run for run in runs if detail in run["detail"]}


def _seconds(run: Run) -> str:
    return f"{sum(run[f'{phase}_seconds'] for phase in ('trace', 'lower', 'compile')):.1f} s"


def _over_length(title: str, cell: Callable[[Run], str]) -> list[Column]:
    """The first of the columns says what they show."""
    titles = [f"n = {n}" for n in LENGTHS]
    titles[0] = f"{title}, {titles[0]}"
    return [(t, lambda row, n=n: cell(row[2][n])) for t, n in zip(titles, LENGTHS, strict=True)]


def _progress(results: Results) -> Iterator[dict[str, Run]]:
    for loop in PROGRESS:
        yield {run["program"]: run for run in find(results.runs, loop=loop)}


def _slower(program: str) -> Callable[[dict[str, Run]], str]:
    def cell(runs: dict[str, Run]) -> str:
        run = runs[program]
        return number(run["ratio"], 2 if run["rounds"] >= ENOUGH else 1)

    return cell


def _by_evaluations(results: Results) -> Iterator[dict[str, Run]]:
    for evaluations in dict.fromkeys(run["evaluations"] for run in results.runs):
        yield {run["contender"]: run for run in find(results.runs, evaluations=evaluations)}


def _of_host_scan(name: str) -> Callable[[dict[str, Run]], str]:
    return lambda runs: field(name)(runs[names.HOST_SCAN])


def _microseconds(runs: dict[str, Run], contender: str) -> float:
    """Of one evaluation."""
    return 1e3 * runs[contender]["median_ms"] / runs[contender]["evaluations"]


def _by_program(results: Results) -> Iterator[dict[str, Run]]:
    """The runs of each contender; a while loop has no gradient by `jax.grad`."""
    for program in dict.fromkeys(run["program"] for run in results.runs):
        yield {run["contender"]: run for run in find(results.runs, program=program)}


def _of_program(cell: Callable[[Run], str]) -> Callable[[dict[str, Run]], str]:
    return lambda runs: cell(runs[names.CHECKPOINT_LOOPS])


def _title(run: Run) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in run["versions"].items())
    return f"{run['program']}: {run['size']} ({versions})"


def _memory_and_time(title: str, contender: str, missing: str = "") -> list[Column]:
    """The time is a ratio where there is something to compare with."""

    def memory(runs: dict[str, Run]) -> str:
        return megabytes(runs[contender]) if contender in runs else missing

    def time(runs: dict[str, Run]) -> str:
        if contender not in runs:
            return ""
        if contender == names.JAX_GRAD or names.JAX_GRAD not in runs:
            return f"{runs[contender]['median_ms']:.0f} ms"
        return ratio(runs[contender], runs[names.JAX_GRAD])

    return [(title, memory), ("time", time)]


def _relative(name: str) -> Callable[[Run], str]:
    """A relative difference of numbers in single precision."""

    def cell(run: Run) -> str:
        value = run[name]
        return "" if value is None else "< 1e-07" if value < 1e-7 else f"{value:.0e}"

    return cell


def _limit(run: Run) -> str:
    return f"{run['share']:.0%}" if run["share"] else f"{run['limit']} bytes"


def _share_used(run: Run) -> str:
    """Of the limit; where none is small enough, the least limit as the error states it."""
    if run["bytes"] is None:
        least = int(run["error"].split()[5])
        return f"at least {least / 1e6:.1f} MB, {least / run['plain_bytes']:.0%}"
    return number(run["bytes"] / run["limit"])


def _budget(run: Run) -> str:
    if run["memory"] is None:
        return ""
    is_unlimited = run["compilations"] == 1
    return "unlimited" if is_unlimited else f"{run['memory'] / 1e6:.1f} MB"


def _in_millions(name: str) -> Callable[[Run], str]:
    return lambda run: "" if run[name] is None else f"{run[name] / 1e6:.1f} MB"


def _over_plain(run: Run) -> str:
    return "" if run["median_ms"] is None else number(run["median_ms"] / run["plain_ms"], 1)


PROGRAMS = {
    "fit": Table(
        "fit-cpu",
        "Whole programs {where}, with limits as shares of what plain JAX takes: the budget that"
        " `fit` finds, the share of the limit that the program takes, the compilations, and the"
        " time over plain JAX, roughly, because the machine was busy; the last columns are"
        " the peak of a process that runs nothing else beside the bytes of the compiled program"
        " (`benchmarks/fit.py`):",
        _all,
        [
            ("program", field("program")),
            ("plain", _in_millions("plain_bytes")),
            ("limit", _limit),
            ("budget", _budget),
            ("of the limit", _share_used),
            ("compilations", field("compilations")),
            ("time", _over_plain),
            ("bytes", _in_millions("bytes")),
            ("peak", _in_millions("peak_bytes")),
        ],
    ),
    "compiling": Table(
        "compiling-cpu",
        "Gradients of a stencil of width 1000 {where}: instructions of the compiled program, and"
        " seconds of tracing, lowering and compiling it (`benchmarks/compiling.py`):",
        _compiled,
        [
            ("", lambda row: row[0]),
            ("gradient of", lambda row: row[1]),
            *_over_length("instructions", field("instructions")),
            *_over_length("time", _seconds),
        ],
    ),
    "layers": Table(
        "layers-cpu",
        "Gradients of models {where}; memory and time over the plain model's"
        " (`benchmarks/layers.py`):",
        _all,
        [
            ("model", field("workload")),
            ("layers run by", _layers_run_by),
            ("memory", megabytes),
            ("share", lambda run: number(run.memory_over(names.PLAIN_LAYERS), 3)),
            ("time", over(names.PLAIN_LAYERS)),
        ],
    ),
    "diffrax": Table(
        "diffrax-cpu",
        "Solves {where}; the last column is the time over `ForwardMode` or, for gradients, over"
        " `RecursiveCheckpointAdjoint` with as many checkpoints"
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
        _by_program,
        [
            ("program", _of_program(_title)),
            ("loops", _of_program(field("loops"))),
            *_memory_and_time("memory", names.JAX_GRAD, missing="no gradient"),
            *_memory_and_time("by default", names.CHECKPOINT_LOOPS),
            *_memory_and_time("`memory=`", names.WITHIN_BUDGET),
            ("difference", _of_program(_relative("difference"))),
            ("rounding", _of_program(_relative("rounding"))),
        ],
    ),
    "tpu-programs": Table(
        "programs-tpu",
        "Gradients of 1000 steps of a stencil, compiled for a TPU ({machine[compiled_for]}) with"
        " jax {machine[versions][jax]}; temporaries in states of 16 MiB"
        " (`benchmarks/tpu_programs.py`):",
        _all,
        [
            ("loop", lambda run: f"`{run['loop']}`"),
            ("options", lambda run: run["options"] and f"`{run['options']}`"),
            ("on the device", lambda run: number(run["device_states"], 1)),
            ("on the host", lambda run: number(run["host_states"], 0)),
            ("loops", field("loops")),
            ("of dynamic length", field("dynamic_loops")),
            ("copies of slots", field("copies_of_buffers")),
            ("transfers", field("transfers")),
        ],
    ),
    "host-scan": Table(
        "host-scan-cpu",
        "5000 steps {where}, each of which does next to nothing: microseconds of one evaluation,"
        " and the most states on the device (`benchmarks/host_scan.py`):",
        _by_evaluations,
        [
            ("", _of_host_scan("quantity")),
            ("checkpoints", _of_host_scan("checkpoints")),
            ("storage", lambda runs: (s := _of_host_scan("storage")(runs)) and f"`{s}`"),
            ("evaluations", _of_host_scan("evaluations")),
            ("bare loop", lambda runs: number(_microseconds(runs, names.BARE_LOOP), 1)),
            ("`host_scan`", lambda runs: number(_microseconds(runs, names.HOST_SCAN), 1)),
            ("states", _of_host_scan("states")),
        ],
    ),
    "progress": Table(
        "progress-cpu",
        "Time with bars over time without, {where} (`benchmarks/progress.py`):",
        _progress,
        [
            ("loop, steps x width", lambda runs: runs["value"]["loop"]),
            ("value", _slower("value")),
            ("gradient", _slower("gradient")),
        ],
    ),
    "storage": Table(
        "storage-cpu",
        "Gradients with 10 checkpoints {where}; times are ratios of medians, over that with all of"
        " them on the device (`benchmarks/storage.py`):",
        _all,
        [
            ("loop", field("workload")),
            ("checkpoints", _storage),
            ("memory", megabytes),
            ("time", over(names.ON_DEVICE)),
        ],
    ),
}
