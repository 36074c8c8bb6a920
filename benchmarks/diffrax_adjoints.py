"""`RevolveAdjoint` beside the adjoints of Diffrax itself: the loop of a workload is an adjoint."""

from collections.abc import Iterator
from typing import Any

import diffrax
import jax
import jax.numpy as jnp

from benchmarks.contenders.scans import JAX_REVOLVE
from benchmarks.report.results import Run
from benchmarks.report.table import Table, over
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison
from benchmarks.runner.programs import Contender, Inputs, Workload, sum_of_squares
from jax_revolve.integrations.diffrax import RevolveAdjoint

RECURSIVE = "RecursiveCheckpointAdjoint"
FORWARD = Contender("ForwardMode", diffrax.ForwardMode())
DIRECT = Contender("DirectAdjoint", diffrax.DirectAdjoint())
BACKSOLVE = Contender("BacksolveAdjoint", diffrax.BacksolveAdjoint())


def revolve(s: int | None = None) -> Contender:
    return Contender(JAX_REVOLVE, RevolveAdjoint(checkpoints=s), s)


def recursive(s: int | None = None) -> Contender:
    return Contender(RECURSIVE, diffrax.RecursiveCheckpointAdjoint(checkpoints=s), s)


def comparisons(quick: bool) -> Iterator[Comparison]:
    """The quick ones are by a solver that compiles quickly."""
    if quick:
        quickly = {"solver": diffrax.Heun(), "max_steps": 32}
        solves = [
            (stencil(8, 16, **quickly), (3,)),
            (neural_ode(4, 2, 4, remat=True, **quickly), (3,)),
        ]
    else:
        networks = [(neural_ode(100, 64, 128, remat=remat), (20, 8)) for remat in (False, True)]
        solves = [(stencil(500, 2000), (44, 10)), (stiff(1000, 10), (20, 8)), *networks]
    for solve, checkpoints in solves:
        each = [adjoint for s in checkpoints for adjoint in (revolve(s), recursive(s))]
        yield Comparison(solve, "jvp", [FORWARD, revolve(), DIRECT], share=1 / 4)
        yield Comparison(solve, "gradient", [DIRECT, BACKSOLVE, *each])


def stencil(length: int, width: int, **options: Any) -> Workload:
    """Reaction and diffusion on a ring: not stiff."""

    def field(rate: Any, u: Any) -> Any:
        return rate * (jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1)) - u**3

    active = {"init": jnp.sin(0.01 * jnp.arange(width)), "parameters": jnp.float32(0.3)}
    how = {"solver": diffrax.Tsit5(), "stepsize_controller": diffrax.ConstantStepSize()} | options
    return _solve("tsit5", f"width {width}", length, field, active, dt=0.01, **how)


def stiff(length: int, reactors: int) -> Workload:
    """Robertson's chemistry in many reactors, coupled by diffusion."""

    def field(rates: Any, y: Any) -> Any:
        a, b, c = y
        slow, fast, back = rates[0] * a, rates[1] * b * b, rates[2] * b * c
        flow = 0.1 * (jnp.roll(y, 1, 1) - 2 * y + jnp.roll(y, -1, 1))
        return jnp.stack([back - slow, slow - back - fast, fast]) + flow

    init = jnp.zeros((3, reactors)).at[0].set(1 + 0.1 * jnp.cos(jnp.arange(reactors)))
    active = {"init": init, "parameters": jnp.array([0.04, 3e3, 1e2])}
    how = {"solver": diffrax.Kvaerno5(), "stepsize_controller": diffrax.PIDController(1e-4, 1e-6)}
    return _solve("kvaerno5", f"{reactors} reactors", length, field, active, dt=0.01, **how)


def neural_ode(
    length: int, batch: int, width: int, *, remat: bool = False, **options: Any
) -> Workload:
    """A batch of states moved by a network of two layers, perhaps under `jax.checkpoint`."""

    def field(p: Any, y: Any) -> Any:
        return jnp.tanh(jnp.tanh(y @ p["in"]) @ p["middle"]) @ p["out"]

    keys = jax.random.split(jax.random.key(0), 4)
    normal = jax.random.normal
    parameters = {
        "in": 3 * normal(keys[0], (8, width)) / 8**0.5,
        "middle": 3 * normal(keys[1], (width, width)) / width**0.5,
        "out": normal(keys[2], (width, 8)) / width**0.5,
    }
    active = {"init": normal(keys[3], (batch, 8)), "parameters": parameters}
    how = {
        "solver": diffrax.Dopri5(),
        "stepsize_controller": diffrax.PIDController(1e-6, 1e-8),
    } | options
    size = f"batch {batch}, width {width}" + ", jax.checkpoint" * remat
    field = jax.checkpoint(field) if remat else field
    return _solve("neural ode", size, length, field, active, dt=0.1, **how)


def _solve(
    family: str, size: str, length: int, field: Any, active: Inputs, dt: float, **options: Any
) -> Workload:
    """Over `length` steps of `dt`, of which an adaptive solver takes as many as it needs."""
    options = {"max_steps": 4096, "throw": False} | options

    def loss(adjoint: Any, active: Inputs, _: Inputs) -> jax.Array:
        term = diffrax.ODETerm(lambda _, y, parameters: field(parameters, y))
        times = {"t0": 0.0, "t1": dt * length, "dt0": dt}
        inputs = {"y0": active["init"], "args": active["parameters"]}
        solution = diffrax.diffeqsolve(term, **times, **inputs, adjoint=adjoint, **options)
        return sum_of_squares(solution.ys)

    return Workload(family, f"n = {length}", size, length, loss, active, {})


def _adjoint(run: Run) -> str:
    return f"`{run['contender'].replace(JAX_REVOLVE, 'RevolveAdjoint')}`"


def _over_diffrax(run: Run) -> str:
    return over({"jvp": FORWARD.name, "gradient": RECURSIVE}[run["quantity"]])(run)


TABLES = {
    "diffrax": Table(
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
}
BENCHMARK = Benchmark("diffrax", comparisons, TABLES)
