"""Measures the profile of the device that JAX uses."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from math import inf
from typing import Any, NamedTuple

import jax
from jax import lax

from jax_revolve._compat import (
    LoopEquation,
    default_device,
    has_host_memory,
    run_around_loop,
    zeros,
)
from jax_revolve.autodiff.sizes import sizes_of
from jax_revolve.calibration import transfers
from jax_revolve.calibration.fit import Sample, fitted, predictions, rank_correlation
from jax_revolve.calibration.workloads import Workload, plans, workloads
from jax_revolve.engine.tape.cut import cut_at
from jax_revolve.engine.tape.taped import taped_step
from jax_revolve.loops.explain import differentiated
from jax_revolve.loops.measure import measure
from jax_revolve.loops.options import Options
from jax_revolve.profiles.profile import Profile, of_platform
from jax_revolve.schedule import cost
from jax_revolve.schedule.cost import Sizes
from jax_revolve.schedule.report.table import aligned
from jax_revolve.schedule.two_level import AnyPlan
from jax_revolve.step.loop import Loop
from jax_revolve.step.restart import find_restart
from jax_revolve.step.work import work_of


class Calibration(NamedTuple):
    """A measured profile, the one that it was before, and the times that it comes from."""

    profile: Profile
    before: Profile
    samples: list[Sample]

    def __str__(self) -> str:
        return "\n".join([*self._table(), "", *self._summary()])

    def _table(self) -> Iterator[str]:
        before, now = (predictions(self.samples, p) for p in (self.before, self.profile))
        rows: list[tuple[str, ...]] = [("loop", "plan", "measured", "predicted", "before")]
        for sample, *predicted in zip(self.samples, now, before, strict=True):
            times = (f"{time / 1e6:.3g} ms" for time in (sample.taken, *predicted))
            rows.append((sample.loop, sample.plan, *times))
        yield from aligned(rows)

    def _summary(self) -> Iterator[str]:
        for name, profile in ("before", self.before), ("now", self.profile):
            correlation = rank_correlation(self.samples, profile)
            yield f"Rank correlation of predicted and measured times, {name}: {correlation:.2f}"


def calibrate(seconds: float = 60.0) -> Calibration:
    """Measure the profile of the device that JAX uses, in about so many seconds."""
    device = default_device()
    before = of_platform(device.platform)
    loops = workloads(device.platform)
    samples = [s for loop in loops for s in _samples(loop, seconds / len(loops))]
    with tempfile.TemporaryDirectory() as directory:
        measured = transfers.constants(directory, has_host_memory=has_host_memory())
    origin = f"measured with jax {jax.__version__}, {datetime.now(UTC).date().isoformat()}"
    found = replace(fitted(samples, before), device=device.device_kind, origin=origin, **measured)
    return Calibration(found, before, samples)


def _samples(workload: Workload, seconds: float) -> Iterator[Sample]:
    found: list[tuple[Loop, list[Any]]] = []

    def look(equation: LoopEquation, operands: list[Any]) -> Any:
        found.append((Options(checkpoints=1).loop(equation), operands))
        return [zeros(t) for t in equation.output_types]

    def run(weights: Any, init: jax.Array) -> Any:
        step = lambda u, _: (workload.step(weights, u), None)  # noqa: E731
        return lax.scan(step, init, None, workload.length)

    run_around_loop(lambda: run(workload.weights, workload.init), look)
    ((loop, operands),) = found
    predicted = _prediction(loop, operands)
    # Slow plans tell as much of the constants as quick ones.
    times, _ = measure(loop, operands, list(plans(workload.length)), seconds, clearly=inf)
    for plan, measured in times.measured.items():
        taken = 1e6 * measured.ms
        yield Sample(workload.name, _in_words(plan), partial(predicted, plan), taken)


def _prediction(loop: Loop, operands: list[Any]) -> Any:
    """The predicted time of a plan with a profile. What is taped is chosen by another one."""
    inputs, activity = differentiated(loop, operands)
    step = taped_step(loop, activity, inputs)
    sizes = sizes_of(loop, activity, find_restart(loop, activity, inputs), inputs)

    def sizes_with(profile: Profile) -> Sizes:
        again = cut_at(step.step, step.cut.kept, profile).work
        work = work_of(loop.jaxpr, profile)
        return sizes._replace(profile=profile, work=work, again_work=again)

    known: dict[Profile, Sizes] = {}

    def predicted(plan: AnyPlan, profile: Profile) -> float:
        if profile not in known:
            known[profile] = sizes_with(profile)
        return cost.time(plan, known[profile])

    return predicted


def _in_words(plan: AnyPlan) -> str:
    return f"{plan.checkpoints} checkpoints, blocks of {plan.block_size}"
