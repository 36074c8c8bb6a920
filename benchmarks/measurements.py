"""What is measured of one workload."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import jax
from contenders import Contender, equinox, ours, plain, rematerialized
from nesting import NestedScans
from programs import Program, difference, gradient, hvp, jvp, value
from timing import MOST_ROUNDS, interleave
from tqdm import tqdm
from workloads import Workload

from jax_revolve import plan

MOST_OF_SECOND_ORDER = 1000  # steps


@dataclass(frozen=True)
class Measurement:
    """The cost of one program. `checkpoints` of a nested scan are those of the run of ours whose
    memory it was chosen to fit; `max_steps` is the bound of a while loop; `block` is how many steps
    are taped together within a `budget` of bytes; `peak_bytes` is the most that the device's
    allocator has given out so far, if this program raised that; `difference` is the relative one to
    the result of the first contender of its table."""

    family: str
    workload: str
    length: int
    quantity: str
    contender: str
    checkpoints: int | None
    max_steps: int | None
    block: int | None
    budget: int | None
    detail: str
    median_ms: float
    minimum_ms: float
    repetitions: int
    temp_bytes: int | None
    peak_bytes: int | None
    evaluations: int | None
    difference: float


def measure(workload: Workload, budget: float, least_rounds: int) -> list[Measurement]:
    """Value, derivative, gradient and, of loops that are not too long, a product with the Hessian;
    `budget` is the time in seconds for the gradients' rounds."""
    baseline, loop = plain(workload.length), ours(workload.length, _checkpoints(workload)[0])
    forward: dict[str, Callable[[Workload, Contender], Program]] = {"value": value, "jvp": jvp}
    results = []
    for quantity, build in forward.items():
        programs = [build(workload, contender) for contender in (baseline, loop)]
        results += measure_programs(workload, quantity, programs, budget / 8, least_rounds)
    gradients = _gradients(workload)
    results += measure_programs(workload, "gradient", gradients, budget, least_rounds)
    if workload.length <= MOST_OF_SECOND_ORDER:
        products = _products(workload)
        results += measure_programs(workload, "hvp", products, budget / 2, least_rounds)
    return results


def _checkpoints(workload: Workload) -> list[int]:
    return [plan(workload.length, wanted).checkpoints for wanted in workload.checkpoints]


def _gradients(workload: Workload) -> list[Program]:
    """Every contender's gradient, that of `lax.scan` first."""
    length = workload.length
    baseline = gradient(workload, plain(length))
    remat = gradient(workload, rematerialized(length))
    programs = [baseline, remat]
    nested_scans = NestedScans(workload, baseline, remat)
    for s in tqdm(_checkpoints(workload), desc="Compiling", unit="set", leave=False):
        loop = gradient(workload, ours(length, s))
        programs += [loop, gradient(workload, equinox(s)), *nested_scans.best(loop)]
    return programs


def _products(workload: Workload) -> list[Program]:
    """Products with the Hessian, forward over reverse.

    How many checkpoints ours is given does not matter there; Equinox's loop keeps to them. The
    nested scans are the quickest whose products fit into the memory of ours.
    """
    length, s = workload.length, _checkpoints(workload)[0]
    baseline, remat = hvp(workload, plain(length)), hvp(workload, rematerialized(length))
    loop = hvp(workload, ours(length, s))
    nested_scans = NestedScans(workload, baseline, remat, build=hvp)
    return [baseline, remat, loop, hvp(workload, equinox(s)), *nested_scans.best(loop)]


def measure_programs(
    workload: Workload,
    quantity: str,
    programs: list[Program],
    budget: float,
    least_rounds: int,
    most_rounds: int = MOST_ROUNDS,
) -> list[Measurement]:
    """Measurements of programs for the same result, of which the first is the reference."""
    # One nested scan may be the best beside several runs of ours; it is timed once.
    once = list({_identity(program): program for program in programs}.values())
    reference, first_peak = _run_first(programs[0])
    apart, peaks = [0.0], [first_peak]
    for program in once[1:]:
        result, peak = _run_first(program)
        apart.append(difference(result, reference))
        peaks.append(peak)
        del result
    del reference
    times = interleave([program.run for program in once], budget, least_rounds, most_rounds)
    found = dict(zip(map(_identity, once), zip(times, apart, peaks, strict=True), strict=True))
    return [_measurement(workload, quantity, p, *found[_identity(p)]) for p in programs]


def _run_first(program: Program) -> tuple[Any, int | None]:
    """The result, and the allocator's peak if there is a new one. CPUs do not say."""
    before = _peak_bytes()
    result = program.run()
    after = _peak_bytes()
    return result, after if after != before else None


def _peak_bytes() -> int | None:
    stats = jax.devices()[0].memory_stats()
    return None if stats is None else stats.get("peak_bytes_in_use")


def _identity(program: Program) -> int:
    return id(program.compiled)


def _measurement(
    workload: Workload,
    quantity: str,
    program: Program,
    times: list[float],
    apart: float,
    peak_bytes: int | None,
) -> Measurement:
    contender = program.contender
    return Measurement(
        family=workload.family,
        workload=workload.name,
        length=workload.length,
        quantity=quantity,
        contender=contender.name,
        checkpoints=contender.checkpoints,
        max_steps=contender.max_steps,
        block=contender.block,
        budget=contender.budget,
        detail=contender.detail,
        median_ms=1e3 * median(times),
        minimum_ms=1e3 * min(times),
        repetitions=len(times),
        temp_bytes=program.temp_bytes,
        peak_bytes=peak_bytes,
        # What is known in advance is the cost of the gradient.
        evaluations=contender.evaluations if quantity.startswith("gradient") else None,
        difference=apart,
    )
