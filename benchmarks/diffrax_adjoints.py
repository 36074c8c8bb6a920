"""Times `RevolveAdjoint` against the adjoints of Diffrax itself.

    python benchmarks/diffrax_adjoints.py

prints a table per problem and the goals, and writes `benchmarks/results/diffrax-DEVICE.json`. It
needs `jax_revolve[bench,diffrax]`. All contenders of a table take turns in one process; run it on a
machine that does nothing else.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import diffrax
import goals as scan_goals
import jax
import jax.numpy as jnp
from command import Benchmark
from contenders import OURS, Contender
from goals import Goal, time_ratio
from measurements import Measurement, measure_programs
from programs import gradient, jvp, value
from workloads import Workload, sum_of_squares

from jax_revolve.integrations.diffrax import RevolveAdjoint

RECURSIVE = "RecursiveCheckpointAdjoint"
DIRECT = "DirectAdjoint"
FORWARD = "ForwardMode"
BACKSOLVE = "BacksolveAdjoint"

MOST_OF_RECURSIVE = 1 / 1.5
MOST_OF_FORWARD = 1.1


@dataclass(frozen=True)
class Solve(Workload):
    """A solve by fixed or adaptive steps. `step(parameters, y, t)` is the vector field, `length`
    the number of steps of `dt0`, and the loop an adjoint."""

    solver: Any
    controller: Any
    dt0: float
    max_steps: int = 4096

    def loss(self, loop: Any, active: dict[str, Any], passive: dict[str, Any]) -> jax.Array:
        inputs = active | passive
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, parameters: self.step(parameters, y, t)),
            self.solver,
            0.0,
            self.dt0 * self.length,
            self.dt0,
            inputs["init"],
            inputs["parameters"],
            stepsize_controller=self.controller,
            adjoint=loop,
            max_steps=self.max_steps,
            throw=False,
        )
        return sum_of_squares(solution.ys)


def stencil(length: int, width: int) -> Solve:
    """Reaction and diffusion on a ring: not stiff."""

    def field(rate: Any, u: Any, _: Any) -> Any:
        return rate * (jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1)) - u**3

    active = {"init": jnp.sin(0.01 * jnp.arange(width)), "parameters": jnp.float32(0.3)}
    solver, controller = diffrax.Tsit5(), diffrax.ConstantStepSize()
    return Solve(
        *("tsit5", f"width {width}", length, field, active, {}, (44, 10)),
        *(solver, controller, 0.01),
    )


def stiff(length: int, reactors: int) -> Solve:
    """Robertson's chemistry in many reactors, coupled by diffusion."""

    def field(rates: Any, y: Any, _: Any) -> Any:
        a, b, c = y
        slow, fast, back = rates[0] * a, rates[1] * b * b, rates[2] * b * c
        flow = 0.1 * (jnp.roll(y, 1, 1) - 2 * y + jnp.roll(y, -1, 1))
        return jnp.stack([back - slow, slow - back - fast, fast]) + flow

    init = jnp.zeros((3, reactors)).at[0].set(1 + 0.1 * jnp.cos(jnp.arange(reactors)))
    active = {"init": init, "parameters": jnp.array([0.04, 3e3, 1e2])}
    controller = diffrax.PIDController(rtol=1e-4, atol=1e-6)
    return Solve(
        *("kvaerno5", f"{reactors} reactors", length, field, active, {}, (20, 8)),
        *(diffrax.Kvaerno5(), controller, 0.01),
    )


def neural_ode(length: int, batch: int, width: int) -> Solve:
    """A batch of states moved by a network of two layers."""

    def field(p: Any, y: Any, _: Any) -> Any:
        return jnp.tanh(jnp.tanh(y @ p["in"]) @ p["middle"]) @ p["out"]

    keys = jax.random.split(jax.random.key(0), 4)
    normal = jax.random.normal
    parameters = {
        "in": 3 * normal(keys[0], (8, width)) / 8**0.5,
        "middle": 3 * normal(keys[1], (width, width)) / width**0.5,
        "out": normal(keys[2], (width, 8)) / width**0.5,
    }
    active = {"init": normal(keys[3], (batch, 8)), "parameters": parameters}
    controller = diffrax.PIDController(rtol=1e-6, atol=1e-8)
    return Solve(
        *("neural ode", f"batch {batch}, width {width}", length, field, active, {}, (20, 8)),
        *(diffrax.Dopri5(), controller, 0.1),
    )


def all_workloads() -> list[Solve]:
    return [stencil(500, 2000), stiff(1000, 10), neural_ode(100, 64, 128)]


def smoke_workloads() -> list[Solve]:
    """Tiny ones, by a solver that compiles quickly, to see that everything runs."""
    tiny = [stencil(8, 16), neural_ode(4, 2, 4)]
    smaller = partial(replace, solver=diffrax.Heun(), checkpoints=(3,), max_steps=32)
    return list(map(smaller, tiny))


def _adjoint(name: str, adjoint: Any, checkpoints: int | None = None) -> Contender:
    """The adjoint is passed where other benchmarks pass a loop."""
    return Contender(name, adjoint, checkpoints)


def measure(solve: Solve, budget: float, least_rounds: int) -> list[Measurement]:
    """Value, derivative and gradient."""
    forward, direct = diffrax.ForwardMode(), diffrax.DirectAdjoint()
    first = _adjoint(OURS, RevolveAdjoint())
    values = [_adjoint(FORWARD, forward), first]
    values.append(_adjoint(RECURSIVE, diffrax.RecursiveCheckpointAdjoint()))
    tangents = [_adjoint(FORWARD, forward), first, _adjoint(DIRECT, direct)]
    gradients = [_adjoint(DIRECT, direct), _adjoint(BACKSOLVE, diffrax.BacksolveAdjoint())]
    for s in solve.checkpoints:
        assert isinstance(s, int)
        recursive = diffrax.RecursiveCheckpointAdjoint(checkpoints=s)
        gradients.append(_adjoint(OURS, RevolveAdjoint(checkpoints=s), s))
        gradients.append(_adjoint(RECURSIVE, recursive, s))
    rounds = partial(measure_programs, least_rounds=least_rounds)
    return [
        *rounds(solve, "value", [value(solve, c) for c in values], budget / 4),
        *rounds(solve, "jvp", [jvp(solve, c) for c in tangents], budget / 4),
        *rounds(solve, "gradient", [gradient(solve, c) for c in gradients], budget),
    ]


def goals(measurements: list[Measurement]) -> Iterator[Goal]:
    """Each run of ours against the goals that are stated for it."""
    for run in measurements:
        if run.contender != OURS:
            continue
        if run.quantity == "jvp":
            ratio = time_ratio(run, measurements, FORWARD)
            yield Goal(run.workload, f"jvp: time / {FORWARD}", MOST_OF_FORWARD, ratio)
        elif run.quantity == "gradient":
            what = f"gradient, s = {run.checkpoints}: time / {RECURSIVE}"
            ratio = time_ratio(run, measurements, RECURSIVE)
            yield Goal(run.workload, what, MOST_OF_RECURSIVE, ratio)


def time_ratios(run: Measurement, measurements: list[Measurement]) -> dict[str, float | None]:
    rivals = (FORWARD, RECURSIVE, DIRECT, BACKSOLVE)
    return {rival: time_ratio(run, measurements, rival) for rival in rivals}


BENCHMARK = Benchmark(
    name="diffrax",
    description=__doc__ or "",
    reference="the result of the first adjoint of the table",
    workloads=all_workloads,
    smoke_workloads=smoke_workloads,
    measure=measure,
    goals=goals,
    time_ratios=time_ratios,
    memory_ratio=partial(scan_goals.memory_ratio, rival=RECURSIVE),
)

if __name__ == "__main__":
    BENCHMARK.run()
