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
from pathlib import Path
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from tqdm import tqdm

from benchmarks.report.results import Run
from benchmarks.report.table import Table
from benchmarks.runner.benchmark import Benchmark, Measurement
from benchmarks.runner.programs import Record, bytes_of, sum_of_squares
from benchmarks.runner.timing import interleave, spread
from benchmarks.workloads.packages import training
from benchmarks.workloads.recurrences import lstm, reaction_diffusion
from jax_revolve import checkpoint_loops, checkpointed_chain, checkpointed_scan, fit
from jax_revolve.integrations.diffrax import RevolveAdjoint
from jax_revolve.typing import Fitted

SHARES = (0.95, 0.5, 0.2)
SECONDS = 4.0
TOO_LITTLE = 1000


class Case(NamedTuple):
    """A program: `gradient(loop)` is a function of the arguments, where `plain` is the loop without
    this library, and `within` takes a budget as well."""

    name: str
    gradient: Callable[[Any], Callable[..., Any]]
    plain: Any
    within: Callable[..., Any]
    arguments: tuple[Any, ...]

    def make(self, memory: int) -> Callable[..., Any]:
        return self.gradient(partial(self.within, memory=memory))


def network(quick: bool) -> Case:
    """An LSTM with xs and ys: gradients of the weights and of the xs."""
    recurrence = lstm(*(20, 2, 4) if quick else (1000, 32, 128))

    def gradient(scan: Any) -> Any:
        def loss(active: Any) -> Any:
            def step(carry: Any, x: Any) -> Any:
                carry = recurrence.step(active["parameters"], carry, x)
                return carry, carry[0]

            return jnp.mean(scan(step, recurrence.passive["init"], active["xs"])[1] ** 2)

        return jax.value_and_grad(loss)

    name = f"LSTM with xs and ys: {recurrence.length} steps, {recurrence.size}"
    return Case(name, gradient, jax.lax.scan, checkpointed_scan, (recurrence.active,))


def flax_model(quick: bool) -> Case:
    """A recurrent model of Flax, and its update by Adam."""
    length, batch, width = (20, 2, 4) if quick else (500, 32, 128)
    model = nn.RNN(nn.GRUCell(width))
    xs = jnp.sin(jnp.arange(batch * length * width, dtype=float)).reshape(batch, length, width)
    weights = model.init(jax.random.key(0), xs)
    optimizer = optax.adam(1e-3)

    def update(wrap: Any) -> Any:
        def loss(weights: Any, xs: Any) -> Any:
            return jnp.mean(wrap(model.apply)(weights, xs) ** 2)

        def step(weights: Any, state: Any, xs: Any) -> Any:
            value, gradient = jax.value_and_grad(loss)(weights, xs)
            updates, state = optimizer.update(gradient, state)
            return value, optax.apply_updates(weights, updates), state

        return step

    name = f"Flax model, with Adam's update: GRU, {length} steps, batch {batch}, width {width}"
    arguments = (weights, optimizer.init(weights), xs)
    return Case(name, update, lambda f: f, checkpoint_loops, arguments)


def solve(quick: bool) -> Case:
    """A partial differential equation by Diffrax, with a fixed number of steps."""
    steps, width = (20, 10) if quick else (300, 20_000)

    def gradient(adjoint: Any) -> Any:
        def loss(u: Any) -> Any:
            term = diffrax.ODETerm(lambda _, u, __: reaction_diffusion(u) - u)
            step = {"dt0": 0.1, "max_steps": steps, "throw": False, "adjoint": adjoint()}
            solution = diffrax.diffeqsolve(term, diffrax.Tsit5(), 0.0, 0.1 * steps, y0=u, **step)
            return sum_of_squares(solution.ys)

        return jax.value_and_grad(loss)

    name = f"Diffrax solve: Tsit5, {steps} steps, {width} unknowns"
    start = jnp.sin(0.01 * jnp.arange(width))
    return Case(name, gradient, diffrax.DirectAdjoint, RevolveAdjoint, (start,))


def layers(quick: bool) -> Case:
    """A stack of residual layers, by `checkpointed_chain`."""
    count, batch, width = (4, 2, 4) if quick else (48, 2048, 128)
    make_layer = partial(eqx.nn.MLP, width, width, 2 * width, 1, activation=jnp.tanh)
    stack = eqx.filter_vmap(lambda key: make_layer(key=key))(
        jax.random.split(jax.random.key(0), count)
    )
    weights, rest = eqx.partition(stack, eqx.is_inexact_array)

    def gradient(chain: Any) -> Any:
        def loss(weights: Any, x: Any) -> Any:
            return jnp.mean(chain(_Residual(eqx.combine(weights, rest)), x) ** 2)

        return jax.value_and_grad(loss)

    def plain(layers: Any, x: Any) -> Any:
        arrays, rest = eqx.partition(layers, eqx.is_array)
        return jax.lax.scan(lambda x, w: (eqx.combine(w, rest)(x), None), x, arrays)[0]

    x = jnp.sin(jnp.arange(batch * width, dtype=float)).reshape(batch, width)
    name = f"stack of layers: {count} of width {width}, batch {batch}"
    return Case(name, gradient, plain, checkpointed_chain, (weights, x))


class _Residual(eqx.Module):
    """A layer for a batch, added to what goes in."""

    mlp: eqx.nn.MLP

    def __call__(self, x: Any, *, key: Any = None) -> Any:
        del key
        return x + jax.vmap(self.mlp)(x)


def two_loops(quick: bool) -> Case:
    """Each of them takes the budget for itself, so the program takes it twice."""
    length, width = (20, 10) if quick else (500, 20_000)

    def gradient(scan: Any) -> Any:
        def loss(u: Any) -> Any:
            for change in (jnp.sin, jnp.cos):
                step = lambda u, _, f=change: (reaction_diffusion(f(u)), None)  # noqa: E731
                u, _ = scan(step, u, None, length)
            return sum_of_squares(u)

        return jax.value_and_grad(loss)

    init = jnp.sin(0.01 * jnp.arange(width))
    name = f"two loops in a row: {length} steps, width {width}"
    return Case(name, gradient, jax.lax.scan, checkpointed_scan, (init,))


def third_party(quick: bool) -> Case:
    """The gradient through a training by Optax, which the benchmark of third parties has too."""
    del quick
    loss, argument = training()
    gradient = lambda wrap: jax.value_and_grad(wrap(loss))  # noqa: E731
    name = "through a training by Optax: 500 steps of Adam, width 128"
    return Case(name, gradient, lambda f: f, checkpoint_loops, (argument,))


CASES = (network, flax_model, solve, layers, two_loops, third_party)


def measurements(_: bool) -> Iterator[Measurement]:
    yield from (Measurement(build.__name__, partial(of_case, build)) for build in CASES)


def of_case(build: Callable[[bool], Case], quick: bool) -> list[Record]:
    case = build(quick)
    plain = fit(lambda memory: case.gradient(case.plain), 2**62)(*case.arguments)
    limits = [(share, int(share * plain.bytes)) for share in SHARES]
    limits += [(0.0, TOO_LITTLE)] * (build is network)
    described = tqdm(limits, desc=case.name, leave=False)
    known = [_fitted(case, limit) for _, limit in described]
    programs = [plain, *(each for each in known if isinstance(each, Fitted))]
    runs = [partial(_run, program.compiled, case.arguments) for program in programs]
    for run in runs:
        run()
    times = interleave(runs, 0.0 if quick else SECONDS, 2)
    spreads = {id(p): spread(taken, times[0]) for p, taken in zip(programs, times, strict=True)}
    records: list[Record] = []
    for (share, limit), result in zip(limits, known, strict=True):
        found = result if isinstance(result, Fitted) else None
        alone = share == 0.5 and not quick and build in (network, solve)
        taken = spreads[id(found)] if found else {}
        records.append(
            {
                "program": case.name,
                "share": share,
                "limit": limit,
                "plain_bytes": plain.bytes,
                "plain_ms": spreads[id(plain)]["median_ms"],
                "memory": found and found.memory,
                "bytes": found and found.bytes,
                "compilations": found and len(found.attempts),
                "median_ms": taken.get("median_ms"),
                "repetitions": taken.get("repetitions"),
                "peak_bytes": _peak_alone(build, found.memory) if found and alone else None,
                "error": "" if found else str(result),
            }
        )
    return records


def _fitted(case: Case, limit: int) -> Fitted | ValueError:
    try:
        return fit(case.make, limit)(*case.arguments)
    except ValueError as error:
        if not str(error).startswith("limit must be at least"):
            raise
        return error


def _run(compiled: Any, arguments: tuple[Any, ...]) -> None:
    jax.block_until_ready(compiled(*arguments))


def _peak_alone(build: Callable[[bool], Case], memory: int) -> int:
    """The peak in a process that only runs this program."""
    program = f"from benchmarks import fit; print(fit.peak(fit.{build.__name__}, {memory}))"
    command = [sys.executable, "-c", program]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def peak(build: Callable[[bool], Case], memory: int) -> int:
    """What the process takes at most while the program runs, beyond what it took before, and the
    arguments."""
    case = build(False)
    compiled = jax.jit(case.make(memory)).lower(*case.arguments).compile()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _status("VmRSS")
    _run(compiled, case.arguments)
    return _status("VmHWM") - before + bytes_of(case.arguments)


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
