"""The demonstration: simulate, observe, recover, report."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path
from time import perf_counter

import jax
import numpy as np
from tqdm import tqdm

from jax_revolve import checkpointed_scan, plan
from jax_revolve.typing import Plan

from .bathymetry import Bathymetry, salish_sea
from .inversion import Problem, recover, twin_problem
from .measurement import counted_evaluations, temporary_memory
from .model import stable_time_step
from .picture import Findings, draw, readable
from .scenario import GAUGES, NOISE, place, true_source


def run(
    output: str | Path = "tsunami.png",
    *,
    hours: float = 4.0,
    refinement: int = 2,
    iterations: int = 30,
    checkpoints: int | None = None,
) -> Findings:
    """Find the source of a tsunami off Vancouver Island, print its cost, and write the figure.

    - `output`: path of the PNG.
    - `hours`: simulated time.
    - `refinement`: grid cells per cell of the data, in each direction.
    - `iterations`: iterations of the search.
    - `checkpoints`: stored carries; by default, `jax_revolve.plan` chooses.
    """
    started = perf_counter()
    sea_floor = salish_sea(refinement)
    schedule = plan(ceil(hours * 3600.0 / stable_time_step(sea_floor)), checkpoints)
    problem = _problem(sea_floor, schedule)
    _print_setting(sea_floor, problem)
    _print_evaluations(problem, schedule)
    program = problem.compiled_gradient()
    memory = _compare_memory(problem, program)
    found = _recover_with_bar(problem, program, iterations)
    findings = _findings(sea_floor, problem, found, memory)
    _print_recovery(findings)
    draw(findings, Path(output))
    print(f"Wrote       {output} after {perf_counter() - started:.0f} s")
    return findings


def _problem(sea_floor: Bathymetry, schedule: Plan) -> Problem:
    return twin_problem(
        sea_floor,
        source=true_source(sea_floor),
        gauges=place(GAUGES, sea_floor),
        length=schedule.length,
        noise=NOISE,
        scan=partial(checkpointed_scan, plan=schedule),
    )


def _recover_with_bar(problem: Problem, program: jax.stages.Compiled, iterations: int) -> jax.Array:
    with tqdm(total=iterations, desc="Searching", unit="iteration") as bar:

        def progress(misfit: float) -> None:
            bar.set_postfix_str(f"misfit {misfit:.3f}", refresh=False)
            bar.update()

        return recover(program, problem.no_guess(), iterations, progress)


def _compare_memory(problem: Problem, program: jax.stages.Compiled) -> dict[str, int]:
    """Temporary bytes with `jax.lax.scan` (compiled, not run) and with `checkpointed_scan`."""
    plain = replace(problem, scan=jax.lax.scan).compiled_gradient()
    memory = {
        "jax.lax.scan\n(compiled, not run)": temporary_memory(plain),
        "jax_revolve\ncheckpointed_scan": temporary_memory(program),
    }
    lax_size, size = memory.values()
    print(
        f"Memory      temporary, of the compiled gradient: {readable(size)} with "
        f"checkpointed_scan, {readable(lax_size)} with jax.lax.scan ({lax_size / size:.0f} times)"
    )
    return memory


def _findings(
    sea_floor: Bathymetry, problem: Problem, found: jax.Array, memory: dict[str, int]
) -> Findings:
    traces = jax.jit(problem.traces)
    return Findings(
        bathymetry=sea_floor,
        gauges=GAUGES,
        positions=problem.gauges,
        source=true_source(sea_floor),
        recovered=np.asarray(problem.smoothness(found), np.float64),
        hours=np.arange(1, problem.length + 1) * problem.ocean.time_step / 3600.0,
        observed=np.asarray(problem.observed, np.float64),
        before=np.asarray(traces(problem.no_guess()), np.float64),
        after=np.asarray(traces(found), np.float64),
        memory=memory,
    )


def _print_setting(sea_floor: Bathymetry, problem: Problem) -> None:
    rows, columns = sea_floor.depth.shape
    depth = sea_floor.depth[sea_floor.sea]
    hours = problem.length * problem.ocean.time_step / 3600.0
    print(
        f"Sea floor   {rows} x {columns} cells of {sea_floor.cell_height / 1e3:.2f} km, "
        f"{100 * sea_floor.sea.mean():.0f} % sea, {depth.min():.0f} to {depth.max():.0f} m deep\n"
        f"Simulation  {hours:.1f} hours in {problem.length} steps of "
        f"{problem.ocean.time_step:.2f} s\n"
        f"Gauges      {len(problem.gauges)}, with readings simulated from a synthetic source and "
        f"{100 * NOISE:.0f} cm of noise (standard deviation)"
    )


def _print_evaluations(problem: Problem, schedule: Plan) -> None:
    print(f"Plan        {schedule}")
    counted = counted_evaluations(problem)
    print(
        f"Evaluations {counted} steps counted in one value and gradient; "
        f"{schedule.evaluations} planned"
    )


def _print_recovery(findings: Findings) -> None:
    sea = findings.bathymetry.sea
    true, found = findings.source[sea], findings.recovered[sea]
    correlation = np.corrcoef(true, found)[0, 1]
    error = np.linalg.norm(found - true) / np.linalg.norm(true)
    before, after = (
        100.0 * np.sqrt(np.mean((traces - findings.observed) ** 2))
        for traces in (findings.before, findings.after)
    )
    print(
        f"Gauges      root-mean-square error {before:.1f} cm before, {after:.1f} cm after\n"
        f"Source      correlation of recovered and true source {correlation:.3f}, "
        f"relative error {100 * error:.0f} %"
    )
