"""The examples in `examples`: the gradients of a small tsunami and of a short `bay`, the job of the
tsunami from end to end, and an inversion that is killed."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_revolve import checkpointed_scan, plan
from jax_revolve.__main__ import main

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
bay = import_module("bay")
bathymetry, inversion, measurement = (
    import_module(f"tsunami.{name}") for name in ("bathymetry", "inversion", "measurement")
)

ROWS, COLUMNS = 14, 18


def small_problem(scan: Callable[..., Any]) -> Any:
    """A basin with an island, a bump, three gauges and 80 steps, in double precision."""
    sea_floor = bathymetry.flat_basin(ROWS, COLUMNS)
    sea_floor.depth[4:7, 11:13] = 0.0
    row, column = np.mgrid[:ROWS, :COLUMNS]
    bump = np.exp(-((row - 7) ** 2 + (column - 6) ** 2) / 8.0)
    gauges = ((3, 3), (11, 9), (5, 15))
    return inversion.twin_problem(sea_floor, bump, gauges, 80, 0.02, scan, np.float64)


@pytest.mark.parametrize("scan", [checkpointed_scan, jax.lax.scan], ids=["checkpointed", "lax"])
def test_gradient_equals_finite_differences(scan):
    problem = small_problem(scan)
    random = np.random.default_rng(3)
    parameters, direction = (jnp.asarray(random.standard_normal((ROWS, COLUMNS))) for _ in "ab")
    misfit = jax.jit(problem.misfit)
    slope = float(jnp.vdot(jax.jit(jax.grad(problem.misfit))(parameters), direction))
    reach = 1e-4
    rise = misfit(parameters + reach * direction) - misfit(parameters - reach * direction)
    assert slope == pytest.approx(float(rise) / (2.0 * reach), rel=1e-6)


def test_the_source_of_a_small_tsunami_is_found():
    problem, history = small_problem(checkpointed_scan), list[float]()
    program = problem.compiled_gradient()
    found = inversion.recover(program, problem.no_guess(), 25, history.append)
    assert len(history) == 25
    assert all(np.diff(history) < 0.0)
    assert float(program(problem.no_guess())[0]) > 9.0
    assert history[-1] < 1.5  # the true source would leave the noise alone, that is 1
    assert float(program(found)[0]) == pytest.approx(history[-1])


def test_counted_evaluations_are_those_of_the_plan():
    schedule = plan(80)
    problem = small_problem(partial(checkpointed_scan, plan=schedule))
    assert measurement.counted_evaluations(problem) == schedule.evaluations


def test_job_runs_from_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path[:])
    output = tmp_path / "small.png"
    arguments = ["--hours", "0.2", "--refinement", "1", "--iterations", "2"]
    main([*arguments, "--checkpoints", "9", "--output", str(output)])
    assert output.read_bytes().startswith(b"\x89PNG")
    printed, bar = capsys.readouterr()
    assert re.search(r"\d+ steps counted .* \d+ planned", printed)
    assert re.search(r"MB with jax\.lax\.scan", printed)
    assert "misfit" in bar


def test_missing_extra_is_explained(capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "tsunami.job")
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "pip install tqdm" in capsys.readouterr().err


def test_gradient_of_the_bay_with_wind_from_files(tmp_path: Path) -> None:
    steps = 150
    bay.write_wind(tmp_path, steps)
    assert len(list(tmp_path.iterdir())) == 2
    read, depth = bay.reader(tmp_path), bay.sea_floor()
    wind = np.stack([read(i) for i in range(steps)])

    def gradient(wind: Any, **options: Any) -> Any:
        level = partial(bay.level_at_the_quay, steps=steps, **options)
        return jax.value_and_grad(level, has_aux=True)(depth, wind)

    ours, theirs = gradient(read, checkpoints=5), gradient(wind, scan=jax.lax.scan)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.max(np.abs(b)))


KILLED = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import inversion
improve, left = inversion.improve, [5]

def improve_or_die(*args):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), 9)
    return improve(*args)

inversion.improve = improve_or_die
inversion.invert(Path(sys.argv[2]), **eval(sys.argv[3]))
"""


@pytest.mark.filterwarnings("ignore")  # of Orbax
def test_an_inversion_goes_on_after_a_kill_to_the_same_bits(tmp_path: Path) -> None:
    """Killed in the sixth iteration, it repeats two, which were not saved."""
    pytest.importorskip("orbax.checkpoint")
    inversion, few = import_module("inversion"), {"iterations": 8, "steps": 90, "every": 3}
    folder = str(Path(inversion.__file__ or "").parent)
    command = [sys.executable, "-c", KILLED, folder, str(tmp_path / "run"), str(few)]
    environment = {**os.environ, "JAX_ENABLE_X64": "1"}
    assert subprocess.run(command, env=environment, capture_output=True).returncode == -9
    assert [path.name for path in tmp_path.glob("run/*.png")] == ["0003.png"]
    numbers, improve = list[int](), inversion.improve
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(inversion, "improve", lambda *x: numbers.append(1) or improve(*x))
        resumed = inversion.invert(tmp_path / "run", **few)
    assert len(numbers) == 5
    whole = inversion.invert(tmp_path / "whole", **few)
    for ours, theirs in zip(jax.tree.leaves(resumed), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    misfits = whole[2]
    assert len(misfits) == 8
    assert misfits[-1] < 0.7 * misfits[0]
    assert len(list(tmp_path.glob("run/*.png"))) == 3
