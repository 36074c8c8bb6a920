"""`measure=True`: what is compiled and run, in which order, for how long, and what it shows."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from asked import explained_scan, explained_while
from jax import lax
from matplotlib.figure import Figure

from jax_revolve import (
    Disk,
    Measurement,
    Plan,
    Report,
    TwoLevelPlan,
    checkpointed_scan,
    explain,
    plan,
)
from jax_revolve._compat.values import is_traced
from jax_revolve.loops import measure
from jax_revolve.loops.measure import MOST_ROUNDS, TELLING_RUNS, Program
from jax_revolve.schedule.cost import Sizes
from jax_revolve.schedule.selection import contenders
from jax_revolve.schedule.two_level import AnyPlan
from jax_revolve.step.loop import Loop

pytestmark = pytest.mark.usefixtures("default_precision")


LENGTH = 50
BUDGET = 20_000

weight = np.linspace(0.5, 1.5, 100)


def step(weight: Any, carry: Any, x: Any) -> Any:
    u, count = carry
    u = jnp.sin(u) * weight + x
    return (u, count + 1), jnp.sum(u)


def arguments(length: int = LENGTH) -> tuple[Any, Any]:
    return (jnp.ones(100), 0), jnp.linspace(0.0, 1.0, length)


def predicted(**asked: Any) -> Report:
    return explained_scan(partial(step, weight), *arguments(), **asked)


def measured(**asked: Any) -> Report:
    return predicted(measure=True, **asked)


def expected_plans(report: Report, memory: int | None = None) -> list[Plan]:
    """The contenders with the chosen plan of a report without measurements."""
    chosen = report.plan
    assert isinstance(chosen, Plan)
    memory = report.memory(chosen) if memory is None else memory
    return contenders(chosen, report.sizes, memory, is_while=report.is_while)


def going(state: Any) -> Any:
    return state[0] < 7


def body(state: Any) -> Any:
    return state[0] + 1, jnp.sin(state[1]) * weight


# Nothing below waits for a real clock: time passes when a gradient is compiled or run


class Machine:
    """Compiles a gradient in a second. A run takes `seconds(plan)`, the first twice as long."""

    def __init__(self, seconds: Callable[[AnyPlan], float]) -> None:
        self.now, self.seconds = 0.0, seconds
        self.compiled: list[AnyPlan] = []
        self.ran: list[AnyPlan] = []
        self.interrupt_at: int | None = None
        self.peak: int | None = None

    def compile_gradient(self, loop: Loop, operands: list[Any]) -> Program:
        chosen = loop.plan
        assert isinstance(chosen, AnyPlan)
        assert not any(map(is_traced, operands))
        self.now += 1.0
        self.compiled.append(chosen)
        return Program(chosen, partial(self.run, chosen), 1000 * chosen.checkpoints)

    def run(self, chosen: AnyPlan) -> None:
        if len(self.ran) == self.interrupt_at:
            raise KeyboardInterrupt
        self.now += self.seconds(chosen) * (1 if chosen in self.ran else 2)
        self.ran.append(chosen)
        if self.peak is not None:
            self.peak = max(self.peak, 1000 * chosen.checkpoints + 7)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The plan with the most checkpoints is the quickest."""
    machine = Machine(lambda plan: 1 / plan.checkpoints)
    monkeypatch.setattr(measure, "perf_counter", lambda: machine.now)
    monkeypatch.setattr(measure, "compile_gradient", machine.compile_gradient)
    monkeypatch.setattr(measure, "peak_bytes", lambda _: machine.peak)
    return machine


def test_the_quickest_is_chosen(machine: Machine) -> None:
    report = measured(memory=BUDGET, seconds=1000)
    unmeasured = predicted(memory=BUDGET)
    expected = expected_plans(unmeasured, BUDGET)
    assert machine.compiled == list(report.measured) == expected
    assert len(expected) > 3
    most = max(p.checkpoints for p in expected)
    assert report.plan.checkpoints == most > unmeasured.plan.checkpoints
    for p, its in report.measured.items():
        assert (its.ms, *its.quartiles) == pytest.approx((1000 / p.checkpoints,) * 3)
        runs = MOST_ROUNDS if p.checkpoints == most else TELLING_RUNS
        assert its[2:] == (runs, 1000 * p.checkpoints, None)
    assert not report.unmeasured
    assert not report.is_interrupted
    assert {*report.measured} <= {*report.choices}
    assert (report.sizes, report.always) == (unmeasured.sizes, unmeasured.always)


def test_plans_take_turns(machine: Machine) -> None:
    machine.seconds = lambda plan: 1 + plan.checkpoints / 1000
    report = measured(memory=BUDGET, seconds=1000)
    n = len(report.measured)
    rounds = [machine.ran[i : i + n] for i in range(0, len(machine.ran), n)]
    assert len(rounds) == 1 + MOST_ROUNDS
    assert all({*turns} == {*report.measured} for turns in rounds)
    assert rounds[0] == sorted(rounds[0], key=lambda p: p.checkpoints)
    assert len({*map(tuple, rounds)}) > 3
    before = machine.ran.copy()
    machine.ran.clear()
    assert measured(memory=BUDGET, seconds=1000).plan == report.plan
    assert machine.ran == before


@pytest.mark.parametrize("seconds", [1e-9, 2.0])
def test_too_short_a_limit(machine: Machine, seconds: float) -> None:
    """A plan is measured all the same: the one that is predicted quickest."""
    report = measured(memory=BUDGET, seconds=seconds)
    chosen, *others = expected_plans(predicted(memory=BUDGET), BUDGET)
    assert machine.compiled == list(report.measured) == [report.plan] == [chosen]
    assert report.unmeasured == others
    assert report.measured[chosen].runs >= 2
    of = 1 + len(others)
    assert f"  1 of {of} plans are measured: more seconds are needed for the others" in str(report)


def test_interrupted(machine: Machine) -> None:
    n = len(measured(memory=BUDGET, seconds=1000).measured)
    assert n > 3
    machine.ran.clear()
    machine.interrupt_at = 2 * n + 3
    report = measured(memory=BUDGET, seconds=1000)
    assert {*report.measured} == {*machine.ran[-3:]}
    assert report.plan.checkpoints == max(p.checkpoints for p in report.measured)
    assert len(report.unmeasured) == n - 3
    assert report.is_interrupted
    assert f"  Interrupted: 3 of {n} plans are measured" in str(report)


@pytest.mark.parametrize("becomes_slower", [False, True])
def test_slow_runs(machine: Machine, becomes_slower: bool) -> None:
    """A plan runs no more only if all of its runs were slow, and what ran only while the machine
    was quicker is not taken for the quickest."""
    steady = machine.seconds
    if becomes_slower:
        machine.seconds = lambda plan: steady(plan) * (1 if len(machine.ran) < 36 else 100)
    else:
        machine.seconds = lambda plan: steady(plan) + (len(machine.ran) % 7 == 0)
    report = measured(memory=BUDGET, seconds=1000)
    assert report.plan.checkpoints == max(p.checkpoints for p in report.measured)
    assert report.measured[report.plan].runs == MOST_ROUNDS


FULL = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate")


@pytest.mark.parametrize("when", ["compiled", "run first", "run"])
def test_too_large_for_the_device(machine: Machine, when: str) -> None:
    """What other plans have measured is kept."""
    plans = list(measured(memory=BUDGET, seconds=1000).measured)
    machine.ran.clear()
    compile_gradient, run, largest = machine.compile_gradient, machine.run, plans[0]

    def compile(loop: Loop, operands: list[Any]) -> Program:
        if when == "compiled" and loop.plan == largest:
            raise FULL
        return compile_gradient(loop, operands)

    def run_or_raise(chosen: AnyPlan) -> None:
        if chosen == largest and (when == "run first" or machine.ran.count(largest) == 2):
            raise FULL
        run(chosen)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "compile_gradient", compile)
        patch.setattr(machine, "run", run_or_raise)
        report = measured(memory=BUDGET, seconds=1000)
    assert list(report.measured) == plans[1:]
    assert report.plan.checkpoints == max(p.checkpoints for p in plans[1:])
    assert (report.too_large, report.unmeasured) == ([largest], [])
    named = f"{largest.checkpoints} x {largest.block_size}"
    assert f"too little memory for (checkpoints x block size): {named}." in str(report)


@pytest.mark.parametrize("text", ["RESOURCE_EXHAUSTED: all", "INTERNAL: a fault"])
def test_no_plan_runs(machine: Machine, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def run(chosen: AnyPlan) -> None:
        machine.ran.append(chosen)
        raise jax.errors.JaxRuntimeError(text)

    monkeypatch.setattr(machine, "run", run)
    with pytest.raises(jax.errors.JaxRuntimeError, match=text):
        measured(memory=BUDGET)
    assert (len(machine.ran) > 1) == text.startswith("RESOURCE")


def test_peaks(machine: Machine) -> None:
    """A peak that the process had before is nobody's."""
    machine.peak = 8000
    report = measured(memory=BUDGET, seconds=1000)
    peaks = {p.checkpoints: its.peak for p, its in report.measured.items()}
    assert peaks == {s: 1000 * s + 7 if s >= 8 else None for s in peaks}
    assert None in peaks.values()
    assert len({*peaks.values()}) > 2
    assert "peak" in str(report)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"checkpoints": 3},
        {"block_size": 4, "memory": BUDGET},
        {"plan": plan(LENGTH, 5, block_size=2)},
    ],
    ids=str,
)
def test_what_is_asked_for_stays(machine: Machine, asked: dict[str, Any]) -> None:
    """By default the budget is what the chosen plan takes."""
    report, unmeasured = measured(**asked), predicted(**asked)
    assert machine.compiled[0] == unmeasured.plan
    assert len(machine.compiled) > 1 or {"checkpoints", "plan"} & {*asked}
    if "block_size" in asked:
        assert {p.block_size for p in machine.compiled} == {4}
    if not asked:
        assert max(map(report.memory, machine.compiled)) <= report.memory(unmeasured.plan)
        assert machine.compiled == expected_plans(unmeasured)


def test_bar(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    n = len(measured(memory=BUDGET).measured)
    printed = capsys.readouterr()
    assert not printed.out
    last = printed.err.split("\r")[-1]
    assert last.startswith(f"{n} plans measured 100%|")
    assert f"compiling plan 2 of {n}" in printed.err


def test_interrupted_before_anything_is_measured(machine: Machine) -> None:
    machine.interrupt_at = 4
    with pytest.raises(KeyboardInterrupt):
        measured(memory=BUDGET)


@pytest.mark.usefixtures("machine")
def test_no_bar_without_tqdm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    assert measured().measured
    assert capsys.readouterr() == ("", "")


# Refusals


def test_bad_arguments() -> None:
    for seconds in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=r"^seconds must be a number > 0, but is"):
            measured(seconds=seconds)
    for other in ("1", None, True):
        with pytest.raises(TypeError, match=r"^seconds must be a number > 0, but is .* of type"):
            measured(seconds=other)
    with pytest.raises(TypeError, match=r"^measure must be True or False, but is 10 of type int"):
        explained_scan(partial(step, weight), *arguments(), measure=10)  # pyright: ignore


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


def test_table() -> None:
    quick, slow = Plan(10, 4, 2), Plan(10, 3, 1)
    measured: dict[AnyPlan, Measurement] = {
        slow: Measurement(12.345, (12.0, 13.0), 7, 5000, None),
        quick: Measurement(8.0, (7.0, 8.5), 8, 9000, None),
    }
    report = Report(quick, Sizes(1000, 3000, 2000, 1004), {}, False, measured=measured)
    lines = str(report).splitlines()
    assert "  checkpoints  block size  memory  measured    ms  evaluations  per step" in lines
    assert "            3           1    6 kB      5 kB  12.3           28      2.80" in lines
    assert " ".join(lines[-5].split()) == "4 2 11 kB 9 kB 8 18 1.80 <- measured quickest"
    assert lines[-1] == "  ms: the median of at least 7 runs"
    legend = report.plot(Figure().subplots()).get_legend()
    assert legend.get_texts()[-1].get_text() == "measured quickest"


# Real programs


@pytest.mark.usefixtures("compile_quickly")
def test_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs are those of a user's gradient, with the results of `lax.scan`."""
    programs: list[Program] = []
    real = measure.compile_gradient
    monkeypatch.setattr(
        measure, "compile_gradient", lambda *args: programs.append(real(*args)) or programs[-1]
    )
    report = measured(memory=BUDGET, block_size=10)
    assert len(programs) == len(report.measured) > 1
    (u, _), xs = arguments()

    def gradient(loop: Any, weight: Any, u: Any, xs: Any) -> Any:
        run = lambda weight, u, xs: loop(partial(step, weight), (u, 0), xs)  # noqa: E731
        (carry, ys), pull_back = jax.vjp(run, weight, u, xs)
        seeds = jnp.ones_like(carry[0]), np.zeros((), jax.dtypes.float0)
        return (carry[0], ys), pull_back((seeds, jnp.ones_like(ys)))

    def compiled(loop: Any) -> Any:
        return jax.jit(partial(gradient, loop)).lower(jnp.asarray(weight), u, xs).compile()

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
        return body(state)

    report = explained_while(going, noted, (0, weight), max_steps=1000, measure=True, seconds=2)
    jax.effects_barrier()
    runs = sum(1 + its.runs for its in report.measured.values())
    assert 7 * runs <= len(ran) <= 7 * 8 * runs
    assert all(p.length == 1000 for p in report.measured)
    chosen = explained_while(going, body, (0, weight), max_steps=1000)
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
    report = measured(memory=6000, storage=Disk(tmp_path, transfer=1))
    assert isinstance(report.plan, TwoLevelPlan)
    assert list(report.measured) == [report.plan]
    assert "writes" in str(report)


def test_numbers_arrays_of_numpy_keys_and_complex_numbers() -> None:
    def step(carry: Any, x: Any) -> Any:
        z, last = carry
        return (z * jax.random.normal(x[0]) * x[1], x[0]), last

    keys = jax.random.split(jax.random.key(0), 1)
    xs = keys, 1j * np.ones(1)
    report = explained_scan(step, (1.0 + 0j, keys[0]), xs, measure=True)
    assert list(report.measured) == [report.plan] == [Plan(1, 1, 1)]
