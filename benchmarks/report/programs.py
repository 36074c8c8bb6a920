"""The tables of models, solves, other packages' programs, storage, compilation, progress and
loops in Python."""

from collections.abc import Callable, Iterable, Iterator

from benchmarks.contenders import names
from benchmarks.report.results import Results, Run, find, grouped
from benchmarks.report.table import ENOUGH, Cell, Column, Table, of, over, ratio

COMPILED = [
    ("stencil", names.LAX_SCAN, "", "`lax.scan(f)`"),
    ("stencil", names.REMAT, "", "`lax.scan(jax.checkpoint(f))`"),
    ("stencil", names.NESTED, "", "two nested scans under `jax.checkpoint`"),
    ("stencil", names.EQUINOX, "", "Equinox's checkpointed loop"),
    ("stencil", names.JAX_REVOLVE, "by default", "`checkpointed_scan(f)`"),
    ("stencil", names.JAX_REVOLVE, "memory=", "`checkpointed_scan(f, memory=)`, 100 carries"),
    ("stencil, while", names.EQUINOX, "", "Equinox's checkpointed loop"),
    ("stencil, while", names.JAX_REVOLVE, "", "`bounded_while_loop`"),
]
LENGTHS = (10, 1000, 100_000)
PROGRESS = [
    "stencil, 1000 x 20000",
    "stencil, every carry, 1000 x 20000",
    "stencil, while, 1000 x 20000",
    "scalar, 100000 x 1",
]


def _all(results: Results) -> Iterable[Run]:
    return results.runs


def _by(name: str) -> Callable[[Results], Iterator[dict[str, Run]]]:
    """The runs with the same value of a field, by their contenders."""
    return lambda results: ({r["contender"]: r for r in runs} for runs in grouped(results, name))


def _pieces_that_pay(results: Results) -> Iterator[tuple[Run, float]]:
    """Where doing without a piece takes a twentieth more time or memory, and how many times the
    memory that is."""
    for runs in grouped(results, "without"):
        for run in runs:
            (whole,) = find(
                results.runs, workload=run["workload"], options=run["options"], without="nothing"
            )
            times_the_bytes = run["temp_bytes"] / whole["temp_bytes"]
            if max(run["ratio"], times_the_bytes) >= 1.05:
                yield run, times_the_bytes


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


def _compiled(results: Results) -> Iterator[dict[int | str, Run | str]]:
    for family, contender, detail, label in COMPILED:
        runs = find(results.runs, family=family, contender=contender)
        kind = "while loop" if "while" in family else "scan"
        of_lengths = {run["length"]: run for run in runs if detail in run["detail"]}
        yield {"kind": kind, "label": label, **of_lengths}


def _compiled_twice(results: Results) -> Iterator[dict[int | str, tuple[Run, Run] | str]]:
    """Gradients and Hessian-vector products, by length."""
    runs = find(results.runs, family="stencil, second order")
    for contender, label in ((names.LAX_SCAN, "`lax.scan`"), (names.JAX_REVOLVE, "jax_revolve")):
        first, second = (find(runs, contender=contender, quantity=q) for q in ("gradient", "hvp"))
        pairs = zip(first, second, strict=True)
        yield {"label": label, **{pair[0]["length"]: pair for pair in pairs}}


def _seconds(run: Run) -> str:
    return f"{_time(run):.1f} s"


def _time(run: Run) -> float:
    return sum(run[f"{phase}_seconds"] for phase in ("trace", "lower", "compile"))


def _over_length(title: str, cell: Cell) -> list[Column]:
    """The first of the columns says what they show."""
    titles = [f"{title}, n = {LENGTHS[0]}", *(f"n = {n}" for n in LENGTHS[1:])]
    return [(title, of(n, cell)) for title, n in zip(titles, LENGTHS, strict=True)]


def _progress(results: Results) -> Iterator[dict[str, Run]]:
    for loop in PROGRESS:
        yield {run["program"]: run for run in find(results.runs, loop=loop)}


def _slower(run: Run) -> str:
    return f"{run['ratio']:.{2 if run['rounds'] >= ENOUGH else 1}f}"


def _microseconds(run: Run) -> str:
    """Of one evaluation."""
    return f"{1e3 * run['median_ms'] / run['evaluations']:.1f}"


def _title(run: Run) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in run["versions"].items())
    return f"{run['program']}: {run['size']} ({versions})"


def _memory_and_time(title: str, contender: str, missing: str = "") -> list[Column]:
    """The time is a ratio where there is something to compare with."""

    def time(runs: dict[str, Run]) -> str:
        if contender not in runs:
            return ""
        if contender == names.JAX_GRAD or names.JAX_GRAD not in runs:
            return f"{runs[contender]['median_ms']:.0f} ms"
        return ratio(runs[contender], runs[names.JAX_GRAD])

    return [(title, of(contender, "{MB:.2f} MB", missing)), ("time", time)]


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
    return f"{run['bytes'] / run['limit']:.2f}"


def _budget(run: Run) -> str:
    return "unlimited" if run["compilations"] == 1 else _in_millions("memory")(run)


def _in_millions(name: str) -> Callable[[Run], str]:
    return lambda run: "" if run[name] is None else f"{run[name] / 1e6:.1f} MB"


def _over_plain(run: Run) -> str:
    return "" if run["median_ms"] is None else f"{run['median_ms'] / run['plain_ms']:.1f}"


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
            ("program", "{program}"),
            ("plain", _in_millions("plain_bytes")),
            ("limit", _limit),
            ("budget", _budget),
            ("of the limit", _share_used),
            ("compilations", "{compilations}"),
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
            ("", of("kind", str)),
            ("gradient of", of("label", str)),
            *_over_length("instructions", "{instructions}"),
            *_over_length("time", _seconds),
        ],
    ),
    "compiling-second-order": Table(
        "compiling-cpu",
        "Hessian-vector products of that stencil, forward over reverse, {where}: instructions of"
        " the compiled program, and the time to make it over the gradient's"
        " (`benchmarks/compiling.py`):",
        _compiled_twice,
        [
            ("loop", of("label", str)),
            *_over_length("instructions", lambda pair: f"{pair[1]['instructions']}"),
            *_over_length("time", lambda pair: f"{_time(pair[1]) / _time(pair[0]):.1f}"),
        ],
    ),
    "cpu-pieces": Table(
        "cpu-pieces-cpu",
        "Gradients {where} without one piece of `jax_revolve.step.cpu`, if that takes a twentieth"
        " more time or memory (`benchmarks/cpu_pieces.py`):",
        _pieces_that_pay,
        [
            ("without", of(0, "`{without}`")),
            ("workload", of(0, "{workload}")),
            ("plan", of(0, "{options}")),
            ("time", of(0, "{ratio:.2f}")),
            ("memory", lambda row: f"{row[1]:.2f}"),
        ],
    ),
    "layers": Table(
        "layers-cpu",
        "Gradients of models {where}; memory and time over the plain model's"
        " (`benchmarks/layers.py`):",
        _all,
        [
            ("model", "{workload}"),
            ("layers run by", _layers_run_by),
            ("memory", "{MB:.2f} MB"),
            ("share", lambda run: f"{run.memory_over(names.PLAIN_LAYERS):.3f}"),
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
            ("problem", "{workload}"),
            ("derivative", "{quantity}"),
            ("adjoint", _adjoint),
            ("checkpoints", "{checkpoints}"),
            ("memory", "{MB:.2f} MB"),
            ("time", "{median_ms:.1f} ms"),
            ("ratio", _over_diffrax),
        ],
    ),
    "third-party": Table(
        "third-party-cpu",
        "Gradients of programs of other packages {where}: alone, with `checkpoint_loops` by"
        " default, and with `memory=` a tenth of the first column (`benchmarks/third_party.py`):",
        _by("program"),
        [
            ("program", of(names.CHECKPOINT_LOOPS, _title)),
            ("loops", of(names.CHECKPOINT_LOOPS, "{loops}")),
            *_memory_and_time("memory", names.JAX_GRAD, missing="no gradient"),
            *_memory_and_time("by default", names.CHECKPOINT_LOOPS),
            *_memory_and_time("`memory=`", names.WITHIN_BUDGET),
            ("difference", of(names.CHECKPOINT_LOOPS, _relative("difference"))),
            ("rounding", of(names.CHECKPOINT_LOOPS, _relative("rounding"))),
        ],
    ),
    "host-scan": Table(
        "host-scan-cpu",
        "5000 steps {where}, each of which does next to nothing: microseconds of one evaluation,"
        " and the most states on the device (`benchmarks/host_scan.py`):",
        _by("evaluations"),
        [
            ("", of(names.HOST_SCAN, "{quantity}")),
            ("checkpoints", of(names.HOST_SCAN, "{checkpoints}")),
            ("storage", lambda runs: (s := runs[names.HOST_SCAN]["storage"]) and f"`{s}`"),
            ("evaluations", of(names.HOST_SCAN, "{evaluations}")),
            ("bare loop", of(names.BARE_LOOP, _microseconds)),
            ("`host_scan`", of(names.HOST_SCAN, _microseconds)),
            ("states", of(names.HOST_SCAN, "{states}")),
        ],
    ),
    "progress": Table(
        "progress-cpu",
        "Time with bars over time without, {where} (`benchmarks/progress.py`):",
        _progress,
        [
            ("loop, steps x width", of("value", "{loop}")),
            ("value", of("value", _slower)),
            ("gradient", of("gradient", _slower)),
        ],
    ),
    "storage": Table(
        "storage-cpu",
        "Gradients with 10 checkpoints {where}; times are ratios of medians, over that with all of"
        " them on the device (`benchmarks/storage.py`):",
        _all,
        [
            ("loop", "{workload}"),
            ("checkpoints", _storage),
            ("memory", "{MB:.2f} MB"),
            ("time", over(names.ON_DEVICE)),
        ],
    ),
}
