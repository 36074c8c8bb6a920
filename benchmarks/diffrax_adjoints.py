"""`RevolveAdjoint` beside the adjoints of Diffrax itself."""

from collections.abc import Iterator

import diffrax

from benchmarks.contenders import names
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison
from benchmarks.runner.programs import Contender
from benchmarks.workloads.solves import neural_ode, stencil, stiff
from jax_revolve.integrations.diffrax import RevolveAdjoint

FORWARD = Contender(names.FORWARD, diffrax.ForwardMode())
DIRECT = Contender(names.DIRECT, diffrax.DirectAdjoint())
BACKSOLVE = Contender(names.BACKSOLVE, diffrax.BacksolveAdjoint())


def revolve(s: int | None = None) -> Contender:
    return Contender(names.JAX_REVOLVE, RevolveAdjoint(checkpoints=s), s)


def recursive(s: int | None = None) -> Contender:
    return Contender(names.RECURSIVE, diffrax.RecursiveCheckpointAdjoint(checkpoints=s), s)


def comparisons(quick: bool) -> Iterator[Comparison]:
    """The quick ones are by a solver that compiles quickly."""
    if quick:
        quickly = {"solver": diffrax.Heun(), "max_steps": 32}
        solves = [(stencil(8, 16, **quickly), (3,)), (neural_ode(4, 2, 4, **quickly), (3,))]
    else:
        networks = (neural_ode(100, 64, 128), (20, 8))
        solves = [(stencil(500, 2000), (44, 10)), (stiff(1000, 10), (20, 8)), networks]
    for solve, checkpoints in solves:
        each = [adjoint for s in checkpoints for adjoint in (revolve(s), recursive(s))]
        yield Comparison(solve, "jvp", [FORWARD, revolve(), DIRECT], share=1 / 4)
        yield Comparison(solve, "gradient", [DIRECT, BACKSOLVE, *each])


BENCHMARK = Benchmark("diffrax", comparisons)
