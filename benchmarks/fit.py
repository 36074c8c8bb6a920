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

SHARES = (0.95, 0.5, 0.2)
SECONDS = 4.0
TOO_LITTLE = 1000


class Case(NamedTuple):
    """`program(loop, *arguments)`, where `plain` is the loop without this library, and `within`
    takes a budget as well."""

    name: str
    program: Callable[..., Any]
    plain: Any
    within: Callable[..., Any]
    arguments: tuple[Any, ...]

    def make(self, memory: int) -> Callable[..., Any]:
        return partial(self.program, partial(self.within, memory=memory))


gradient = partial(jax.value_and_grad, argnums=1)
"""Of `loss(loop, x)`."""


def network(quick: bool) -> Case:
    """An LSTM with xs and ys: gradients of the weights and of the xs."""
    recurrence = lstm(*(20, 2, 4) if quick else (1000, 32, 128))

    def loss(scan: Any, active: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            carry = recurrence.step(active["parameters"], carry, x)
            return carry, carry[0]

        return jnp.mean(scan(step, recurrence.passive["init"], active["xs"])[1] ** 2)

    name = f"LSTM with xs and ys: {recurrence.length} steps, {recurrence.size}"
    return Case(name, gradient(loss), jax.lax.scan, checkpointed_scan, (recurrence.active,))


def flax_model(quick: bool) -> Case:
    """A recurrent model of Flax, and its update by Adam."""
    length, batch, width = (20, 2, 4) if quick else (500, 32, 128)
    model, optimizer = nn.RNN(nn.GRUCell(width)), optax.adam(1e-3)
    xs = jnp.sin(jnp.arange(batch * length * width, dtype=float)).reshape(batch, length, width)
    weights = model.init(jax.random.key(0), xs)

    def update(wrap: Any, weights: Any, state: Any, xs: Any) -> Any:
        loss = lambda weights: jnp.mean(wrap(model.apply)(weights, xs) ** 2)  # noqa: E731
        value, slope = jax.value_and_grad(loss)(weights)
        updates, state = optimizer.update(slope, state)
        return value, optax.apply_updates(weights, updates), state

    name = f"Flax model, with Adam's update: GRU, {length} steps, batch {batch}, width {width}"
    arguments = (weights, optimizer.init(weights), xs)
    return Case(name, update, lambda f: f, checkpoint_loops, arguments)


def solve(quick: bool) -> Case:
    """A partial differential equation by Diffrax, with a fixed number of steps."""
    steps, width = (20, 10) if quick else (300, 20_000)

    def loss(adjoint: Any, u: Any) -> Any:
        term = diffrax.ODETerm(lambda _, u, __: reaction_diffusion(u) - u)
        how = {"dt0": 0.1, "max_steps": steps, "throw": False, "adjoint": adjoint()}
        solution = diffrax.diffeqsolve(term, diffrax.Tsit5(), 0.0, 0.1 * steps, y0=u, **how)
        return sum_of_squares(solution.ys)

    name = f"Diffrax solve: Tsit5, {steps} steps, {width} unknowns"
    start = jnp.sin(0.01 * jnp.arange(width))
    return Case(name, gradient(loss), diffrax.DirectAdjoint, RevolveAdjoint, (start,))


class Residual(eqx.Module):
    """A layer for a batch, added to what goes in."""

    mlp: eqx.nn.MLP

    def __call__(self, x: Any, *, key: Any = None) -> Any:
        return x + jax.vmap(self.mlp)(x)


def stack(quick: bool) -> Case:
    """Residual layers, by `checkpointed_chain`."""
    count, batch, width = (4, 2, 4) if quick else (48, 2048, 128)
    make = lambda key: eqx.nn.MLP(width, width, 2 * width, 1, jnp.tanh, key=key)  # noqa: E731
    layers = eqx.filter_vmap(make)(jax.random.split(jax.random.key(0), count))
    weights, rest = eqx.partition(layers, eqx.is_inexact_array)

    def loss(chain: Any, weights: Any, x: Any) -> Any:
        return jnp.mean(chain(Residual(eqx.combine(weights, rest)), x) ** 2)

    def plain(layers: Any, x: Any) -> Any:
        arrays, rest = eqx.partition(layers, eqx.is_array)
        return jax.lax.scan(lambda x, w: (eqx.combine(w, rest)(x), None), x, arrays)[0]

    x = jnp.sin(jnp.arange(batch * width, dtype=float)).reshape(batch, width)
    name = f"stack of layers: {count} of width {width}, batch {batch}"
    return Case(name, gradient(loss), plain, checkpointed_chain, (weights, x))


def two_loops(quick: bool) -> Case:
    """Each of them takes the budget for itself, so the program takes it twice."""
    length, width = (20, 10) if quick else (500, 20_000)

    def loss(scan: Any, u: Any) -> Any:
        for change in (jnp.sin, jnp.cos):
            step = lambda u, _, f=change: (reaction_diffusion(f(u)), None)  # noqa: E731
            u, _ = scan(step, u, None, length)
        return sum_of_squares(u)

    init = jnp.sin(0.01 * jnp.arange(width))
    name = f"two loops in a row: {length} steps, width {width}"
    return Case(name, gradient(loss), jax.lax.scan, checkpointed_scan, (init,))


def third_party(_: bool) -> Case:
    """The gradient through a training by Optax, which the benchmark of third parties has too."""
    loss, argument = training()
    program = gradient(lambda wrap, x: wrap(loss)(x))
    name = "through a training by Optax: 500 steps of Adam, width 128"
    return Case(name, program, lambda f: f, checkpoint_loops, (argument,))


CASES = (network, flax_model, solve, stack, two_loops, third_party)
ALONE = (network, solve)
"""Whose peaks are measured."""


def measurements(_: bool) -> Iterator[Measurement]:
    yield from (Measurement(build.__name__, partial(of_case, build)) for build in CASES)


def of_case(build: Callable[[bool], Case], quick: bool) -> list[Record]:
    case = build(quick)
    plain = fit(lambda _: partial(case.program, case.plain), 2**62)(*case.arguments)
    limits = [(share, int(share * plain.bytes)) for share in SHARES]
    limits += [(0.0, TOO_LITTLE)] * (build is network)
    about: list[Record] = []
    fitted = [plain]
    for share, limit in tqdm(limits, desc=case.name, leave=False):
        record: Record = {"share": share, "limit": limit, "error": "", "peak_bytes": None}
        record |= dict.fromkeys(("memory", "bytes", "compilations", "median_ms", "repetitions"))
        about.append(record)
        try:
            found = fit(case.make, limit)(*case.arguments)
        except ValueError as error:
            if not str(error).startswith("limit must be at least"):
                raise
            record["error"] = str(error)
            continue
        fitted.append(found)
        record |= {name: getattr(found, name) for name in ("memory", "bytes")}
        record["compilations"] = len(found.attempts)
        if share == 0.5 and not quick and build in ALONE:
            record["peak_bytes"] = _peak_alone(build, found.memory)
    runs = [partial(_run, each.compiled, case.arguments) for each in fitted]
    times = interleave(runs, SECONDS, 2, quick=quick)
    of_plain, *spreads = (spread(each, times[0]) for each in times)
    for record, taken in zip((r for r in about if not r["error"]), spreads, strict=True):
        record |= taken
    known = {"program": case.name, "plain_bytes": plain.bytes, "plain_ms": of_plain["median_ms"]}
    return [known | record for record in about]


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
