"""`measure=True`: what is compiled and run, in which order, for how long, and what it shows."""

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from matplotlib.figure import Figure
from support.asked import explained_scan, explained_while

from jax_revolve import Disk, Plan, checkpointed_scan, explain
from jax_revolve._compat.values import is_traced
from jax_revolve.programs import measure
from jax_revolve.programs.measure import MOST_ROUNDS, TELLING_RUNS, Program
from jax_revolve.schedule.selection import contenders
from jax_revolve.step.loop import Loop
from jax_revolve.typing import Report

pytestmark = pytest.mark.usefixtures("default_precision")


LENGTH = 50
BUDGET = 20_000

weight = np.linspace(0.5, 1.5, 100)


def step(weight: Any, carry: Any, x: Any) -> Any:
    u, count = carry
    u = jnp.sin(u) * weight + x
    return (u, count + 1), jnp.sum(u)


def arguments() -> tuple[Any, Any]:
    return (jnp.ones(100), 0), jnp.linspace(0.0, 1.0, LENGTH)


def predicted(**asked: Any) -> Report:
    return explained_scan(partial(step, weight), *arguments(), **asked)


def measured(**asked: Any) -> Report:
    return predicted(**{"measure": True, "seconds": 1000, "memory": BUDGET, **asked})


def expected_plans(report: Report, memory: int | None = None) -> list[Plan]:
    """The contenders with the chosen plan of a report without measurements."""
    chosen = report.plan
    assert isinstance(chosen, Plan)
    memory = report.memory(chosen) if memory is None else memory
    return contenders(chosen, report.sizes, memory, is_while=report.is_while)


def most_checkpoints(plans: Any) -> int:
    """Of the plan that is the quickest here."""
    return max(p.checkpoints for p in plans)


FULL = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate")


class Machine:
    """Waits for no real clock: it compiles a gradient in a second, and a run takes `seconds(plan)`,
    the first twice as long. The plan `full` is too large when it is compiled, or in that run."""

    def __init__(self) -> None:
        self.now, self.seconds = 0.0, lambda plan: 1 / plan.checkpoints
        self.compiled: list[Plan] = []
        self.ran: list[Plan] = []
        self.interrupt_at: int | None = None
        self.peak: int | None = None
        self.full: tuple[Callable[[Plan], bool], int] = (lambda _: False), 0
        self.error, self.failed = FULL, 0

    def compile_gradient(self, loop: Loop, operands: list[Any]) -> Program:
        chosen = loop.plan
        assert isinstance(chosen, Plan)
        assert not any(map(is_traced, operands))
        self.fail(chosen, -1)
        self.now += 1.0
        self.compiled.append(chosen)
        return Program(chosen, partial(self.run, chosen), 1000 * chosen.checkpoints)

    def fail(self, chosen: Plan, run: int) -> None:
        is_full, at = self.full
        if is_full(chosen) and run == at:
            self.failed += 1
            raise self.error

    def run(self, chosen: Plan) -> None:
        if len(self.ran) == self.interrupt_at:
            raise KeyboardInterrupt
        self.fail(chosen, self.ran.count(chosen))
        self.now += self.seconds(chosen) * (1 if chosen in self.ran else 2)
        self.ran.append(chosen)
        if self.peak is not None:
            self.peak = max(self.peak, 1000 * chosen.checkpoints + 7)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(measure, "perf_counter", lambda: machine.now)
    monkeypatch.setattr(measure, "compile_gradient", machine.compile_gradient)
    monkeypatch.setattr(measure, "peak_bytes", lambda _: machine.peak)
    return machine


def test_the_quickest_is_chosen(machine: Machine) -> None:
    report, unmeasured = measured(), predicted(memory=BUDGET)
    expected = expected_plans(unmeasured, BUDGET)
    assert machine.compiled == list(report.measured) == expected
    assert len(expected) > 3
    most = most_checkpoints(expected)
    assert report.plan.checkpoints == most > unmeasured.plan.checkpoints
    for p, its in report.measured.items():
        assert (its.ms, *its.quartiles) == pytest.approx((1000 / p.checkpoints,) * 3)
        runs = MOST_ROUNDS if p.checkpoints == most else TELLING_RUNS
        assert its[2:] == (runs, 1000 * p.checkpoints, None)
    assert not report.unmeasured
    assert not report.is_interrupted
    assert {*report.measured} <= {*report.choices}
    line = rf" {most} +{report.plan.block_size} .* {1000 / most:.3g} .*  <- measured fastest\n"
    assert re.search(line, str(report))
    assert f"  ms: the median of at least {TELLING_RUNS} runs" in str(report)
    legend = report.plot(Figure().subplots()).get_legend()
    assert legend.get_texts()[-1].get_text() == "measured fastest"
    assert (report.sizes, report.always) == (unmeasured.sizes, unmeasured.always)


def test_by_default_the_budget_is_what_the_chosen_plan_takes(machine: Machine) -> None:
    predicted(measure=True, seconds=1000)
    assert machine.compiled == expected_plans(predicted())
    assert len(machine.compiled) > 1


def test_plans_take_turns(machine: Machine) -> None:
    machine.seconds = lambda plan: 1 + plan.checkpoints / 1000
    report = measured()
    n = len(report.measured)
    rounds = [machine.ran[i : i + n] for i in range(0, len(machine.ran), n)]
    assert len(rounds) == 1 + MOST_ROUNDS
    assert all({*turns} == {*report.measured} for turns in rounds)
    assert len({*map(tuple, rounds)}) > 3
    before = machine.ran.copy()
    machine.ran.clear()
    assert measured().plan == report.plan
    assert machine.ran == before


@pytest.mark.parametrize("seconds", [1e-9, 2.0])
def test_too_short_a_limit(machine: Machine, seconds: float) -> None:
    """A plan is measured all the same: the one that is predicted quickest."""
    report = measured(seconds=seconds)
    chosen, *others = expected_plans(predicted(memory=BUDGET), BUDGET)
    assert machine.compiled == list(report.measured) == [report.plan] == [chosen]
    assert report.unmeasured == others
    assert report.measured[chosen].runs >= 2
    assert f"  no time: {len(others)} plans that may be faster (pass more seconds)" in str(report)
    rows = str(report).splitlines()
    assert sum(" no time " in row for row in rows) == len(others)
    assert sum("<- measured" in row for row in rows) == 1
    assert sum(" not run " in row for row in rows) == len(report.choices) - 1 - len(others)


def test_interrupted(machine: Machine) -> None:
    n = len(measured().measured)
    assert n > 3
    machine.ran.clear()
    machine.interrupt_at = 2 * n + 3
    report = measured()
    assert {*report.measured} == {*machine.ran[-3:]}
    assert report.plan.checkpoints == most_checkpoints(report.measured)
    assert len(report.unmeasured) == n - 3
    assert report.is_interrupted
    assert f"  no time: {n - 3} plans that may be faster (interrupted)" in str(report)
    machine.ran.clear()
    machine.interrupt_at = 4  # before anything is measured
    with pytest.raises(KeyboardInterrupt):
        measured()


@pytest.mark.parametrize("becomes_slower", [False, True])
def test_slow_runs(machine: Machine, becomes_slower: bool) -> None:
    """A plan runs no more only if all of its runs were slow, and what ran only while the machine
    was quicker is not taken for the quickest."""
    steady = machine.seconds
    if becomes_slower:
        machine.seconds = lambda plan: steady(plan) * (1 if len(machine.ran) < 36 else 100)
    else:
        machine.seconds = lambda plan: steady(plan) + (len(machine.ran) % 7 == 0)
    report = measured()
    assert report.plan.checkpoints == most_checkpoints(report.measured)
    assert report.measured[report.plan].runs == MOST_ROUNDS


@pytest.mark.parametrize("run", [-1, 0, 2])
def test_too_large_for_the_device(machine: Machine, run: int) -> None:
    """What other plans have measured is kept."""
    largest, *others = measured().measured
    machine.ran.clear()
    machine.full = (lambda plan: plan == largest), run
    report = measured()
    assert list(report.measured) == others
    assert report.plan.checkpoints == most_checkpoints(others)
    assert (report.too_large, report.unmeasured) == ([largest], [])
    assert re.search(rf"\n +{largest.checkpoints} +{largest.block_size} .* too large ", str(report))
    assert "too large: the device has too little memory" in str(report)


@pytest.mark.parametrize("text", ["RESOURCE_EXHAUSTED: all", "INTERNAL: a fault"])
def test_no_plan_runs(machine: Machine, text: str) -> None:
    machine.full, machine.error = ((lambda _: True), 0), jax.errors.JaxRuntimeError(text)
    with pytest.raises(jax.errors.JaxRuntimeError, match=text):
        measured()
    assert (machine.failed > 1) == text.startswith("RESOURCE")


def test_peaks(machine: Machine) -> None:
    """A peak that the process had before is nobody's."""
    machine.peak = 8000
    report = measured()
    peaks = {p.checkpoints: its.peak for p, its in report.measured.items()}
    assert peaks == {s: 1000 * s + 7 if s >= 8 else None for s in peaks}
    assert None in peaks.values()
    assert len({*peaks.values()}) > 2
    assert "peak" in str(report)


def test_bar(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    n = len(measured().measured)
    printed = capsys.readouterr()
    assert not printed.out
    assert printed.err.split("\r")[-1].startswith(f"{n} plans measured 100%|")
    assert f"compiling plan 2 of {n}" in printed.err
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tqdm", None)
        patch.setitem(sys.modules, "tqdm.auto", None)
        assert measured().measured
    assert capsys.readouterr() == ("", "")


# Refusals


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"seconds": 0}, "seconds must be a number > 0, but is 0"),
        ({"seconds": float("nan")}, "seconds must be a number > 0, but is nan"),
        ({"seconds": "1"}, "seconds must be a number > 0, but is '1' of type str"),
        ({"seconds": True}, "seconds must be a number > 0, but is True of type bool"),
        ({"measure": 10}, "measure must be True or False, but is 10 of type int"),
    ],
)
def test_bad_arguments(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError if "type" in message else ValueError, match=f"^{message}"):
        measured(**asked)


REFUSED = "^measure must be False unless the arguments, and what the function closes over, are real"


@pytest.mark.parametrize(("transform", "where"), [(jax.jit, "closure"), (jax.vmap, "init")])
def test_shapes_and_tracers_are_refused(transform: Any, where: str, machine: Machine) -> None:
    def loss(u: Any) -> Any:
        factor, start = (u, jnp.float32(1.0)) if where == "closure" else (2.0, u)
        explained_scan(lambda c, _: (jnp.sin(c) * factor, None), start, length=5, measure=True)
        return u

    with pytest.raises(ValueError, match=REFUSED + ".* traces. Pass arrays, outside trans"):
        transform(loss)(jnp.ones(3))
    shape = jax.ShapeDtypeStruct((100,), jnp.float32)
    with pytest.raises(ValueError, match=REFUSED + ".* is a shape. Pass arrays"):
        explained_scan(lambda c, _: (c, None), (1.0, shape), length=5, measure=True)
    assert not machine.compiled


# Real programs


@pytest.mark.usefixtures("compile_quickly")
def test_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs are those of a user's gradient, with the results of `lax.scan`."""
    programs, real = list[Program](), measure.compile_gradient
    monkeypatch.setattr(
        measure, "compile_gradient", lambda *args: programs.append(real(*args)) or programs[-1]
    )
    report = measured(block_size=10, seconds=10)
    assert len(programs) == len(report.measured) > 1
    (u, _), xs = arguments()

    def compiled(loop: Any) -> Any:
        def gradient(weight: Any, u: Any, xs: Any) -> Any:
            run = lambda weight, u, xs: loop(partial(step, weight), (u, 0), xs)  # noqa: E731
            (carry, ys), pull_back = jax.vjp(run, weight, u, xs)
            seeds = jnp.ones_like(carry[0]), np.zeros((), jax.dtypes.float0)
            return (carry[0], ys), pull_back((seeds, jnp.ones_like(ys)))

        return jax.jit(gradient).lower(jnp.asarray(weight), u, xs).compile()

    expected = jax.tree.leaves(compiled(lax.scan)(jnp.asarray(weight), u, xs))
    for program in programs:
        for x, y in zip(jax.tree.leaves(program.run()), expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5)
        assert program.temporaries == report.measured[program.plan].temporaries
    # A plan that was clearly slower in its first runs is compared no more: the machine may have
    # been busy then, and its median the smallest of all the same.
    most = max(its.runs for its in report.measured.values())
    compared = [p for p, its in report.measured.items() if its.runs == most]
    assert report.plan == min(compared, key=lambda p: report.measured[p].ms)
    in_use = compiled(partial(checkpointed_scan, plan=report.plan)).memory_analysis()
    # The initial count, of eight bytes at most, is a constant here and an operand there.
    measured_bytes = report.measured[report.plan].temporaries or 0
    assert abs(measured_bytes - in_use.temp_size_in_bytes) <= 8


@pytest.mark.parametrize("is_disabled", [False, True])
def test_a_function_is_traced_once(is_disabled: bool) -> None:
    """Its effects happen in each run, and in the evaluation for the operands."""
    traced: list[None] = []
    ran: list[int] = []

    def noted(carry: Any, _: Any) -> Any:
        traced.append(None)
        jax.debug.callback(lambda: ran.append(1))
        return jnp.sin(carry), None

    with jax.disable_jit(is_disabled):
        report = explained_scan(noted, 1.0, length=3, checkpoints=1, measure=True)
    jax.effects_barrier()
    assert len(traced) == 1
    (its,) = report.measured.values()
    assert len(ran) == 3 + (1 + its.runs) * report.evaluations(report.plan)


@pytest.mark.usefixtures("compile_quickly")
def test_while_loop() -> None:
    """It takes the steps that it takes, not those of its bound."""
    ran: list[int] = []

    def noted(state: Any) -> Any:
        jax.debug.callback(lambda: ran.append(1))
        return state[0] + 1, jnp.sin(state[1]) * weight

    loop: Any = (lambda state: state[0] < 7), noted, (0, weight)
    report = explained_while(*loop, max_steps=1000, measure=True, seconds=2)
    jax.effects_barrier()
    runs = sum(1 + its.runs for its in report.measured.values())
    assert 7 * runs <= len(ran) <= 7 * 8 * runs
    chosen = explained_while(*loop, max_steps=1000)
    assert [*report.measured, *report.unmeasured] == expected_plans(chosen)


@pytest.mark.usefixtures("compile_quickly")
def test_outer_loops_are_measured() -> None:
    """Wherever their operands can be had; the loops share the seconds."""

    def loop(length: int) -> Any:
        def scan(x: Any) -> Any:
            return lax.scan(lambda c, _: (jnp.sin(c) * weight, None), x, length=length)[0]

        return scan

    def fun(x: Any, y: Any) -> Any:
        x = jax.jit(loop(20))(x)
        x = lax.scan(lambda c, _: (loop(30)(c), None), jnp.sort(x) * y, length=17)[0]
        x = jax.checkpoint(loop(18))(x)
        return lax.cond(x[0] > 0, loop(19), loop(21), x)

    explanation = explain(fun, measure=True, seconds=3)(jnp.ones(100), jnp.float32(2.0))
    of_length = {report.plan.length: report for report in explanation.loops}
    assert {n for n, report in of_length.items() if report.measured} == {20, 17, 18}
    assert {*of_length} == {20, 17, 30, 18, 19, 21}
    for n in (20, 17, 18):
        assert of_length[n].plan in of_length[n].measured
    no_loops = explain(jnp.sin, measure=True)(1.0)
    assert (no_loops.loops, no_loops.memory, no_loops.memory_now) == ((), 0, 0)


@pytest.mark.usefixtures("compile_quickly")
def test_storage(tmp_path: Path) -> None:
    report = measured(memory=6000, seconds=10, storage=Disk(tmp_path, transfer=1))
    assert report.plan.segments
    assert list(report.measured) == [report.plan]
    assert "writes" in str(report)


def test_numbers_arrays_of_numpy_keys_and_complex_numbers() -> None:
    def step(carry: Any, x: Any) -> Any:
        z, last = carry
        return (z * jax.random.normal(x[0]) * x[1], x[0]), last

    keys = jax.random.split(jax.random.key(0), 1)
    report = explained_scan(step, (1.0 + 0j, keys[0]), (keys, 1j * np.ones(1)), measure=True)
    assert list(report.measured) == [report.plan] == [Plan(1, 1, 1)]
