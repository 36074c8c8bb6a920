"""`explain`: bytes against hand counts, choices against what the loops really run."""

import re
from collections.abc import Iterator
from functools import partial
from html import escape
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
from jax import lax
from matplotlib import pyplot
from support.asked import explained_scan, explained_while, for_bound, for_scan

from jax_revolve import (
    Plan,
    bounded_while_loop,
    checkpoint_loops,
    checkpointed_scan,
    explain,
    fit,
    plan,
)
from jax_revolve.schedule import cost
from jax_revolve.schedule.arguments import readable

pytestmark = pytest.mark.usefixtures("default_precision")

matplotlib.use("Agg")

LENGTH = 50
WIDTH = 1000

weight = np.linspace(0.5, 1.5, WIDTH, dtype=np.float32)
offset = np.arange(3, dtype=np.int32)

REQUESTS: list[dict[str, Any]] = [
    {},
    {"checkpoints": "all"},
    {"block_size": 1000},
    {"checkpoints": 3, "block_size": 4},
    {"memory": 30_000},
    {"memory": "1GB"},
    {"memory": "60kB", "block_size": 4},
]
BUDGETS = {"1GB": 10**9, 30_000: 30_000, "60kB": 60_000}


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    yield
    pyplot.close("all")


def step(carry: Any, x: Any, weight: Any = weight) -> Any:
    """A field, a factor for each of ten things, and a running sum."""
    u, v, total = carry
    u = jnp.sin(u) * weight
    v = v * x["factor"]
    total = total + jnp.sum(u)
    return (u, v, total), jnp.sum(v) + x["number"] * offset[0]


def arguments() -> tuple[Any, Any]:
    init = (jnp.ones(WIDTH, jnp.float32), jnp.ones(10, jnp.float32), jnp.float32(0.0))
    numbers = jnp.arange(LENGTH, dtype="int32")
    return init, {"factor": jnp.ones((LENGTH, 10), jnp.float32), "number": numbers}


def body(state: Any, weight: Any = weight) -> Any:
    i, u = state
    return i + 1, jnp.sin(u) * weight


def going(state: Any) -> Any:
    return state[0] < LENGTH


def start() -> Any:
    return jnp.int32(0), jnp.ones(WIDTH, jnp.float32)


def test_bytes() -> None:
    """The field before the step is kept, from which its sine and its derivative are recomputed, and
    the factors that are multiplied; what they are multiplied by is read again. A step taped alone
    has the sine and its derivative. The field and the factors are what running on takes."""
    report = explained_scan(step, *arguments(), weights=[weight])
    sizes = report.sizes
    assert sizes.checkpoint == 4 * (WIDTH + 10)
    assert sizes.carry == 4 * (WIDTH + 10 + 1)
    assert sizes.residuals == 4 * (WIDTH + 10)
    assert sizes.alone == sizes.residuals + 4 * WIDTH
    assert sizes.weights == 0
    assert report.always == {
        "xs": LENGTH * 4 * (10 + 1),
        "cotangents of xs": LENGTH * 4 * 10,
        "ys": LENGTH * 4,
        "cotangents of ys": LENGTH * 4,
        "cotangents of closed-over values": 4 * WIDTH,
    }
    assert not report.is_while
    limit = jnp.full(7, 1e9, jnp.float32)  # what only the condition closes over has no cotangent
    bounded = lambda c: going(c) & (c[1][0] < limit[0])  # noqa: E731
    report = explained_while(bounded, body, start(), [weight], max_steps=100)
    assert report.sizes.checkpoint == 4 * (WIDTH + 1)
    assert report.sizes.carry == report.sizes.checkpoint + 4  # the number of steps
    # The predicate may be kept, too.
    assert 0 <= report.sizes.residuals - 4 * WIDTH <= 8
    assert report.sizes.uncut in (4 * 2 * WIDTH, 4 * 2 * WIDTH + 1)
    assert {k: v for k, v in report.always.items() if v} == {
        "cotangents of closed-over values": 4 * WIDTH
    }
    assert report.is_while
    assert report.plan.length == 100


def test_products_of_weights() -> None:
    """A block keeps what the weight's cotangent is a product of; a single step adds to it. A
    product is there before it is added."""
    w = jnp.eye(256, dtype=jnp.float32)
    carry = 4 * 16 * 256
    h = jax.ShapeDtypeStruct((16, 256), jnp.float32)
    f = lambda h, _, w: (jnp.tanh(h @ w), None)  # noqa: E731
    report = explained_scan(f, h, length=LENGTH, weights=[w])
    sizes = report.sizes
    assert sizes.weights == w.nbytes == report.always["cotangents of closed-over values"]
    assert 2 * sizes.residuals == sizes.alone  # in a block, the tanh of a step is the next h
    assert sizes.factors == carry
    assert f"- taped alone                      {sizes.alone / 1000:.1f} kB" in str(report)
    always = 4 * carry + w.nbytes
    assert report.memory(Plan(LENGTH, 3, 1)) == always + sizes.alone
    of_two = 2 * (sizes.residuals + sizes.factors)
    assert report.memory(Plan(LENGTH, 3, 2)) == always + of_two
    of_all = 64 * sizes.residuals + 32 * sizes.factors
    assert report.memory(Plan(64, 3, 64)) == always + of_all


@pytest.mark.parametrize("is_disabled", [False, True])
def test_nothing_runs_and_functions_are_traced_once(is_disabled: bool) -> None:
    traced: list[str] = []
    ran: list[None] = []

    def noted(name: str, function: Any) -> Any:
        def run(*arguments: Any) -> Any:
            traced.append(name)
            jax.debug.callback(lambda: ran.append(None))
            return function(*arguments)

        return run

    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments())
    with jax.disable_jit(is_disabled):
        assert explained_scan(noted("f", step), *shapes) == explained_scan(step, *arguments())
        explained_while(noted("cond", going), noted("body", body), start(), max_steps=100)
    assert sorted(traced) == ["body", "cond", "f"]
    jax.effects_barrier()
    assert not ran


def test_numbers_arrays_of_numpy_keys_and_complex_numbers() -> None:
    def step(carry: Any, x: Any) -> Any:
        z, last = carry
        return (z * jax.random.normal(x[0]) * x[1], x[0]), last

    keys = jax.random.split(jax.random.key(0), 1)
    report = explained_scan(step, (1.0 + 0j, keys[0]), (keys, 1j * np.ones(1)))
    assert report.plan == Plan(1, 1, 1)


# What is chosen


@pytest.mark.parametrize(
    ("asked", "is_while"),
    [*((asked, False) for asked in REQUESTS), *((asked, True) for asked in REQUESTS[::3])],
    ids=str,
)
def test_chosen_plan(asked: dict[str, Any], is_while: bool) -> None:
    """The report chooses what is asked for, and its only marked line says so."""
    if is_while:
        report = explained_while(going, body, start(), max_steps=LENGTH, **asked)
        wanted: Any = for_bound(LENGTH, **{"checkpoints": None, "sizes": report.sizes, **asked})
        assert str(report).startswith(f"A loop of at most {LENGTH} steps.\n")
    else:
        report = explained_scan(step, *arguments(), **asked)
        wanted = for_scan(LENGTH, **{"checkpoints": None, "sizes": report.sizes, **asked})
    chosen = report.plan
    assert chosen == wanted
    (line,) = re.findall(r"^ (.*)  <- chosen$", str(report), re.MULTILINE)
    checkpoints, block_size, *_, evaluations, per_step, time, unit = line.split()
    assert (int(checkpoints), int(block_size)) == (chosen.checkpoints, chosen.block_size)
    assert int(evaluations) == report.evaluations(chosen)
    assert float(per_step) == pytest.approx(int(evaluations) / LENGTH, abs=0.006)
    assert unit == "ms"
    assert float(time) == pytest.approx(1e3 * (report.time(chosen) or 0), rel=0.01)
    assert report.choices.count(chosen) == 1
    bytes_taken = [report.memory(p) for p in report.choices]
    assert bytes_taken == sorted(bytes_taken)
    for p in report.choices:
        assert report.evaluations(p) == cost.evaluations(p, is_while=is_while)
    assert report.memory(chosen) <= BUDGETS.get(asked.get("memory", ""), 10**9)
    if "block_size" in asked:
        assert chosen.block_size == min(asked["block_size"], LENGTH)
    elif "checkpoints" in asked and not is_while:
        assert chosen == plan(LENGTH, asked["checkpoints"])


# All loops of a function


def nest(u: Any, note: Any = lambda: None, inner: Any = checkpointed_scan) -> Any:
    """A loop in another one, and one of lax."""

    def noted(c: Any, _: Any) -> Any:
        jax.debug.callback(lambda: note())
        return jnp.sin(c), None  # a weight would count as differentiated in the report alone

    def step(c: Any, _: Any) -> Any:
        return inner(noted, c, length=20)[0] + 1, None

    u = checkpointed_scan(step, u, length=6)[0]
    with jax.named_scope("last"):
        return jnp.sum(jax.jit(lambda u: lax.scan(noted, u, length=30)[0])(u) ** 2)


def test_all_loops_of_a_function() -> None:
    explanation = explain(nest)(jnp.ones(WIDTH, jnp.float32))
    outer, inner, last = explanation.loops
    names = [loop.name for loop in explanation.loops]
    assert names == ["scan", "scan/scan", "last/<lambda>/scan"]
    assert all(loop.source.startswith("test_explain.py:") for loop in explanation.loops)
    assert [loop.runs for loop in explanation.loops] == [1, 6, 1]
    assert [loop.is_own for loop in explanation.loops] == [True, True, False]
    assert [loop.plan.length for loop in explanation.loops] == [6, 20, 30]
    assert inner.sizes.checkpoint == 4 * WIDTH
    # What the inner loop holds is among the residuals of an outer step.
    assert outer.sizes.residuals >= inner.plan.checkpoints * 4 * WIDTH
    assert last.memory(last.plan) <= 20 * 4 * WIDTH <= explanation.memory_now - explanation.memory
    lines = str(explanation).splitlines()
    assert lines[0] == "The gradient with respect to u."
    assert lines[5].split()[0] == "together"
    assert lines[5].split()[-1] == str(explanation.evaluations)
    assert "Run by jax.lax: last/<lambda>/scan." in lines[6]
    own = checkpoint_loops(nest)
    assert explain(own)(jnp.ones(WIDTH, jnp.float32)).memory_now == explanation.memory


@pytest.mark.usefixtures("compile_quickly")
@pytest.mark.parametrize("inner", [checkpointed_scan, lax.scan])
def test_evaluations_are_counted_in_nests(inner: Any) -> None:
    """The inner loops are evaluated in each evaluation of an outer step."""
    noted: list[None] = []
    fun = checkpoint_loops(partial(nest, note=lambda: noted.append(None), inner=inner))
    u = jnp.ones(WIDTH, jnp.float32)
    explanation = explain(fun)(u)
    assert not noted
    jax.block_until_ready(jax.jit(jax.value_and_grad(fun))(u))
    jax.effects_barrier()
    outer = explanation.loops[0]
    assert len(noted) == explanation.evaluations - outer.evaluations(outer.plan)


def test_a_loop_around_a_while_loop_of_lax_has_no_gradient() -> None:
    """It once ended in lax's error."""

    def step(x: Any, _: Any) -> Any:
        return lax.while_loop(lambda x: jnp.all(x < 1), lambda x: 2 * x, x), None

    explanation = explain(lambda x: checkpointed_scan(step, x, length=20)[0])(jnp.ones(3))
    assert explanation.loops == ()
    assert [loop.name for loop in explanation.left_alone] == ["scan", "scan/while"]
    assert "no gradient" in str(explanation)
    assert "needs max_steps" in str(explanation)


def test_a_while_loop_of_lax_that_is_not_differentiated_needs_no_bound() -> None:
    def loss(x: Any) -> Any:
        start = lax.stop_gradient(x)
        return jnp.sum(x * lax.while_loop(lambda x: jnp.all(x < 1), lambda x: 2 * x, start))

    assert "needs max_steps" not in str(explain(loss)(jnp.ones(3)))


def test_no_loops() -> None:
    explanation = explain(jnp.sin)(1.0)
    assert (explanation.loops, explanation.memory, explanation.memory_now) == ((), 0, 0)


# Errors


def final(x: Any, factor: Any = 1.0) -> Any:
    step = lambda c, _: (jnp.sin(factor * c), None)  # noqa: E731
    return jnp.sum(checkpointed_scan(step, x, length=100, checkpoints=5)[0])


def test_derivatives_that_a_function_takes() -> None:
    """Those in forward mode were said to run no loops, and a gradient in each step of a loop was
    multiplied by its length."""
    x = jnp.ones(WIDTH)
    of_gradient = explain(jax.grad(final))(x)
    tangents = explain(lambda x: jax.jvp(jax.grad(final), (x,), (x,)))(x)
    (own,), (pushed,) = of_gradient.loops, tangents.loops
    assert pushed.plan == own.plan and tangents.memory == 2 * of_gradient.memory  # noqa: PT018

    def nest(x: Any) -> Any:
        sine: Any = lambda c, _: (jnp.sin(c), None)  # noqa: E731
        step = lambda c, _: (checkpointed_scan(sine, c, length=20)[0], None)  # noqa: E731
        return jnp.sum(checkpointed_scan(step, x, length=30)[0])

    pushed_nest = explain(lambda x: jax.jvp(jax.grad(nest), (x,), (x,)))(x)
    assert pushed_nest.memory == 2 * explain(jax.grad(nest))(x).memory
    (alone,) = explain(lambda x: jax.jvp(final, (x,), (x,)))(x).left_alone
    assert (alone.length, alone.is_own) == (100, True)

    def summed(factors: Any) -> Any:
        add = lambda total, f: (total + jax.grad(final)(x, f), None)  # noqa: E731
        return lax.scan(add, jnp.zeros_like(x), factors)[0]

    assert explain(summed)(jnp.ones(8)).memory == of_gradient.memory


def test_a_loop_that_carries_nothing() -> None:
    """It is not swept forward, and was said to keep nothing, with the loop in it."""
    each = lambda x: jnp.sum(lax.map(partial(final, x), jnp.ones(4)))  # noqa: E731
    found = explain(checkpoint_loops(each, checkpoints=5, min_length=2))(jnp.ones(WIDTH))
    assert [report.is_own for report in found.loops] == [True, True]
    assert found.memory >= 5 * 4 * WIDTH


@pytest.mark.parametrize("y", [lambda c, x: c, lambda c, x: lax.stop_gradient(x)])
def test_nothing_to_differentiate(y: Any) -> None:
    for scan in (checkpointed_scan, lax.scan):
        explanation = explain(partial(scan, lambda c, x: (c + 1, y(c, x))))(0, jnp.arange(20.0))
        assert not explanation.loops
        assert explanation.evaluations == 0
        assert ("keeps nothing" if scan is checkpointed_scan else "left alone") in str(explanation)


def test_pictures() -> None:
    report = explained_scan(step, *arguments())
    ax = report.plot()
    assert ax.figure in map(pyplot.figure, pyplot.get_fignums())
    single, *lines = ax.lines
    for line, plans in zip(lines, (report.choices, [report.plan]), strict=True):
        assert list(line.get_xdata()) == [report.memory(p) for p in plans]
        assert list(line.get_ydata()) == [report.evaluations(p) / LENGTH for p in plans]
    assert next(iter(single.get_xdata())) == report.memory(Plan(LENGTH, 1, 1))
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert len(ax.get_legend().get_texts()) == 3
    ax.figure.canvas.draw()
    explanation = explain(nest)(jnp.ones(WIDTH, jnp.float32))
    ax = explanation.plot()
    assert [line.get_marker() for line in ax.lines] == ["o", "*"] * 3
    labels = [text.get_text().split()[0] for text in ax.get_legend().get_texts()]
    assert labels == [report.name for report in explanation.loops]
    assert ax.lines[3].get_xdata() == [explanation.loops[1].memory(explanation.loops[1].plan)]
    assert len(explain(partial(checkpointed_scan, step))(*arguments()).plot().lines) == 3


def test_notebooks_show_text_and_a_short_repr() -> None:
    explanation = explain(partial(checkpointed_scan, step))(*arguments())
    assert re.fullmatch(r"<Explanation: 1 loop, .* kB, \d+ evaluations>", repr(explanation))
    (report,) = explanation.loops
    assert repr(report) == f"<Report: A loop of {LENGTH} steps.>"
    for shown in (explanation, report):
        assert escape(str(shown)) in shown._repr_html_()


def test_the_bytes_outside_the_budget() -> None:
    explanation = explain(partial(checkpointed_scan, step))(*arguments())
    (report,) = explanation.loops
    assert explanation.outside == sum(report.always.values()) > 0
    assert f"Outside the budget: {readable(explanation.outside)} for" in str(explanation)


def test_a_rule_that_hides_loops_is_named() -> None:
    solve = lambda b: jax.scipy.sparse.linalg.cg(lambda x: 2 * x, b)[0]  # noqa: E731
    text = str(explain(solve)(jnp.ones(3)))
    assert "custom_linear_solve does not differentiate them" in text


@pytest.mark.parametrize("wrap", [explain, checkpoint_loops])
def test_a_python_loop_over_traced_values(wrap: Any) -> None:
    def until_small(x: Any) -> Any:
        while x > 1.0:
            x = lax.while_loop(lambda x: x > 5.0, lambda x: x - 3.0, x) - 1.0
        return x

    with pytest.raises(jax.errors.TracerBoolConversionError) as raised:
        wrap(until_small)(jnp.ones(()))
    assert any("write Python's `while`" in note for note in raised.value.__notes__)


# What the loops really run


@pytest.mark.usefixtures("compile_quickly")
@pytest.mark.parametrize(
    ("is_while", "length", "asked"),
    [
        (False, 1, {}),
        (False, 30, {"memory": "1MB"}),
        (True, 2, {"block_size": 7}),
        (True, 57, {"memory": 300}),
    ],
    ids=str,
)
def test_a_loop_runs_the_plan_that_is_explained(
    is_while: bool, length: int, asked: dict[str, Any]
) -> None:
    """A while loop stops at its bound."""
    noted: list[None] = []

    def step(u: Any, x: Any) -> Any:
        jax.debug.callback(lambda: noted.append(None))
        return jnp.sin(u) + x, u

    def run(u: Any, xs: Any, scan: Any, while_loop: Any) -> Any:
        if not is_while:
            return scan(step, u, xs, **asked)
        body = lambda state: (state[0] + 1, step(state[1], xs[state[0]])[0])  # noqa: E731
        goes_on = lambda state: state[0] < length  # noqa: E731
        return while_loop(goes_on, body, (jnp.int32(0), u), max_steps=length, **asked)

    def total(u: Any, xs: Any) -> Any:
        return jnp.sum(run(u, xs, checkpointed_scan, bounded_while_loop)[is_while])

    arguments = jnp.ones(3), jnp.ones((length, 3))
    report = run(*arguments, explained_scan, explained_while)
    assert length == 1 or report.plan.block_size > 1
    jax.block_until_ready(jax.jit(jax.value_and_grad(total, (0, 1)))(*arguments))
    jax.effects_barrier()
    assert len(noted) == report.evaluations(report.plan)


@pytest.mark.parametrize(
    ("call", "arguments", "how"),
    [
        (explain, (1.0,), "explain(fun)(x)"),
        (fit, ("1MB", 1.0), 'fit(make, "2GB")(x)'),
        (checkpoint_loops, ("1MB",), 'checkpoint_loops(fun, memory="2GB")(x)'),
    ],
)
def test_a_call_in_one_is_an_error_that_shows_both(call: Any, arguments: Any, how: str) -> None:
    with pytest.raises(TypeError, match=re.escape(f"arguments. It is called as {how}.")):
        call(jnp.sin, *arguments)
