"""`fit` on six programs: what it finds for 95, 50 and 20% of what plain JAX takes, in how many
compilations, and the time beside the plain program.

Bytes are those of the whole compiled program. For two programs, a process of its own runs what was
found, and its peak is noted: what it takes while the program runs beyond what it took before, and
the arguments.
"""

import ctypes
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
from tqdm import tqdm

from benchmarks import diffrax_adjoints, layers
from benchmarks.report.results import Run
from benchmarks.report.table import Table
from benchmarks.runner.benchmark import Benchmark, Measurement
from benchmarks.runner.programs import Inputs, Loop, Record, Workload, bytes_of
from benchmarks.runner.timing import LEAST_ROUNDS, interleave, spread
from benchmarks.workloads.packages import training
from benchmarks.workloads.recurrences import lstm, scanned, stencil
from benchmarks.workloads.steps import sine_stencil
from jax_revolve import checkpoint_loops, checkpointed_scan, fit
from jax_revolve.integrations.diffrax import RevolveAdjoint
from jax_revolve.typing import Fitted

SHARES = (0.95, 0.5, 0.2)
SECONDS = 4.0
TOO_LITTLE = 1000


class Case(NamedTuple):
    """`plain` is the loop without this library; `within` takes a budget, and returns a loop or, if
    it is a loop, runs within it."""

    build: Callable[[bool], Workload]
    plain: Loop
    within: Callable[[int], Loop]
    is_run_alone: bool = False


def network(quick: bool) -> Workload:
    return scanned(lstm(*(20, 2, 4) if quick else (1000, 32, 128)))


def solve(quick: bool) -> Workload:
    return diffrax_adjoints.stencil(*(20, 10) if quick else (300, 20_000))


def stack(quick: bool) -> Workload:
    return layers.transformer(*(2, 8, 8, 2) if quick else (24, 128, 128, 2), is_stack=True)


def flax_model(quick: bool) -> Workload:
    """A recurrent model, whose loop is found in `apply`."""
    linen = import_module("flax.linen")
    length, batch, width = (20, 2, 4) if quick else (500, 32, 128)
    model = linen.RNN(linen.GRUCell(width))
    xs = jnp.sin(jnp.arange(batch * length * width, dtype=float)).reshape(batch, length, width)

    def loss(wrap: Loop, active: Inputs, passive: Inputs) -> jax.Array:
        return jnp.mean(wrap(model.apply)(active["weights"], passive["xs"]) ** 2)

    weights = {"weights": model.init(jax.random.key(0), xs)}
    size = f"batch {batch}, width {width}"
    return Workload("GRU of Flax", f"n = {length}", size, length, loss, weights, {"xs": xs})


def two_loops(quick: bool) -> Workload:
    """Each of them takes the budget for itself, so the program takes it twice."""
    shape = (20, 10) if quick else (500, 20_000)
    first, second = scanned(stencil(*shape)), scanned(sine_stencil(*shape))

    def loss(loop: Loop, active: Inputs, passive: Inputs) -> jax.Array:
        return first.loss(loop, active, passive) + second.loss(loop, active, passive)

    names = ("two stencils", first.steps, first.size)
    return Workload(*names, first.length, loss, first.active, first.passive)


def third_party(_: bool) -> Workload:
    """The gradient through a training by Optax, which the benchmark of third parties has too."""
    loss, start = training()
    through = lambda wrap, active, _: wrap(loss)(active["start"])  # noqa: E731
    names = ("training by Optax", "500 steps of Adam", "batch 64, width 128")
    return Workload(*names, 500, through, {"start": start}, {})


def _as_it_is(function: Any) -> Any:
    return function


CASES = {
    "network": Case(network, jax.lax.scan, lambda m: partial(checkpointed_scan, memory=m), True),
    "flax": Case(flax_model, _as_it_is, lambda m: partial(checkpoint_loops, memory=m)),
    "solve": Case(solve, diffrax.DirectAdjoint(), lambda m: RevolveAdjoint(memory=m), True),
    "stack": Case(stack, layers.run_stack, lambda m: layers.chain(memory=m)),
    "two loops": Case(two_loops, jax.lax.scan, lambda m: partial(checkpointed_scan, memory=m)),
    "optax": Case(third_party, _as_it_is, lambda m: partial(checkpoint_loops, memory=m)),
}


def measurements(_: bool) -> Iterator[Measurement]:
    yield from (Measurement(name, partial(of_case, name)) for name in CASES)


def _gradient(workload: Workload, loop: Loop) -> Callable[..., Any]:
    return jax.value_and_grad(partial(workload.loss, loop))


def of_case(name: str, quick: bool) -> list[Record]:
    case = CASES[name]
    workload = case.build(quick)
    inputs = workload.active, workload.passive
    plain = fit(lambda memory: _gradient(workload, case.plain), 2**62)(*inputs)
    limits = {share: int(share * plain.bytes) for share in SHARES}
    if name == "network":
        limits[0.0] = TOO_LITTLE

    def fitted(limit: int) -> Fitted | ValueError:
        try:
            return fit(lambda memory: _gradient(workload, case.within(memory)), limit)(*inputs)
        except ValueError as error:
            if not str(error).startswith("limit must be at least"):
                raise
            return error

    known = {share: fitted(limit) for share, limit in tqdm(limits.items(), leave=False)}
    programs = [plain, *(f for f in known.values() if isinstance(f, Fitted))]
    runs = [partial(_run, program.compiled, inputs) for program in programs]
    for run in runs:
        run()
    times = interleave(runs, 0.0 if quick else SECONDS, 2 if quick else LEAST_ROUNDS)
    spreads = {id(p): spread(taken, times[0]) for p, taken in zip(programs, times, strict=True)}
    records: list[Record] = []
    for share, result in known.items():
        found = result if isinstance(result, Fitted) else None
        alone = found and case.is_run_alone and share == 0.5 and not quick
        records.append(
            {
                "program": workload.name,
                "share": share,
                "limit": limits[share],
                "plain_bytes": plain.bytes,
                "plain_ms": spreads[id(plain)]["median_ms"],
                "memory": found and found.memory,
                "bytes": found and found.bytes,
                "compilations": found and len(found.attempts),
                "median_ms": None,
                "peak_bytes": _peak_alone(name, found.memory) if found and alone else None,
                "error": "" if found else str(result),
                **spreads.get(id(found), {}),
            }
        )
    return records


def _run(compiled: Any, arguments: tuple[Any, ...]) -> None:
    jax.block_until_ready(compiled(*arguments))


def _peak_alone(name: str, memory: int) -> int:
    """The peak in a process that only runs this program."""
    program = f"from benchmarks import fit; print(fit.peak({name!r}, {memory}))"
    command = [sys.executable, "-c", program]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def peak(name: str, memory: int) -> int:
    """What the process takes at most while the program runs, beyond what it took before, and the
    arguments."""
    workload = CASES[name].build(False)
    inputs = workload.active, workload.passive
    compiled = jax.jit(_gradient(workload, CASES[name].within(memory))).lower(*inputs).compile()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _status("VmRSS")
    _run(compiled, inputs)
    return _status("VmHWM") - before + bytes_of(inputs)


def _status(name: str) -> int:
    return 1024 * int(re.findall(rf"{name}:\s*(\d+) kB", Path("/proc/self/status").read_text())[0])


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


TABLES = {
    "fit": Table(
        "Whole programs {where}, with limits as shares of what plain JAX takes: the budget that"
        " `fit` finds, the share of the limit that the program takes, the compilations, and the"
        " time over plain JAX, roughly, because the machine was busy; the last columns are"
        " the peak of a process that runs nothing else beside the bytes of the compiled program"
        " (`benchmarks/fit.py`):",
        lambda results: results.runs,
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
}
BENCHMARK = Benchmark("fit", measurements, TABLES)
