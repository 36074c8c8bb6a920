"""`explain`: bytes against hand counts, choices against what the loops really run."""

import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
from asked import explained_scan, explained_while, for_bound, for_scan
from jax import lax
from matplotlib import pyplot

import jax_revolve
from jax_revolve import (
    Plan,
    Report,
    bounded_while_loop,
    checkpoint_loops,
    checkpointed_scan,
    explain,
    plan,
)
from jax_revolve.schedule import cost
from jax_revolve.schedule.cost import Sizes
from jax_revolve.schedule.selection import Request
from jax_revolve.schedule.two_level import AnyPlan

pytestmark = pytest.mark.usefixtures("default_precision")

matplotlib.use("Agg")

LENGTH = 50
WIDTH = 1000

weight = np.linspace(0.5, 1.5, WIDTH, dtype=np.float32)
offset = np.arange(3, dtype=np.int32)

REQUESTS: list[dict[str, Any]] = [
    {},
    {"checkpoints": 3},
    {"checkpoints": "all"},
    {"block_size": 7},
    {"block_size": 1000},
    {"checkpoints": 3, "block_size": 4},
    {"memory": 30_000},
    {"memory": "100 kB"},
    {"memory": "1GB"},
    {"memory": "60kB", "block_size": 4},
]


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    yield
    pyplot.close("all")


def step(carry: Any, x: Any) -> Any:
    """A field, a factor for each of ten things, and a running sum."""
    u, v, total = carry
    u = jnp.sin(u) * weight
    v = v * x["factor"]
    total = total + jnp.sum(u)
    return (u, v, total), jnp.sum(v) + x["number"] * offset[0]


def arguments(length: int = LENGTH) -> tuple[Any, Any]:
    init = (jnp.ones(WIDTH, jnp.float32), jnp.ones(10, jnp.float32), jnp.float32(0.0))
    xs = {
        "factor": jnp.ones((length, 10), jnp.float32),
        "number": jnp.arange(length, dtype="int32"),
    }
    return init, xs


def body(state: Any) -> Any:
    i, u = state
    return i + 1, jnp.sin(u) * weight


def going(state: Any) -> Any:
    return state[0] < LENGTH


def start() -> Any:
    return jnp.int32(0), jnp.ones(WIDTH, jnp.float32)


def test_bytes() -> None:
    """The sine and its derivative are left behind, and the factors that are multiplied; what they
    are multiplied by is read again. The field and the factors are what running on takes."""
    report = explained_scan(step, *arguments())
    sizes = report.sizes
    assert sizes.checkpoint == 4 * (WIDTH + 10)
    assert sizes.carry == 4 * (WIDTH + 10 + 1)
    assert sizes.residuals == sizes.alone == 4 * (WIDTH + WIDTH + 10)
    assert sizes.weights == 0
    assert report.always == {
        "xs": LENGTH * 4 * (10 + 1),
        "cotangents of xs": LENGTH * 4 * 10,
        "ys": LENGTH * 4,
        "cotangents of ys": LENGTH * 4,
        "cotangents of closed-over values": 4 * WIDTH,
    }
    assert not report.is_while


def test_bytes_of_a_loop_that_stops_by_itself() -> None:
    """What only the condition closes over has no cotangent. The predicate is left behind, too."""
    limit = jnp.full(7, 1e9, jnp.float32)

    def cond_fun(state: Any) -> Any:
        return going(state) & (state[1][0] < limit[0])

    report = explained_while(cond_fun, body, start(), max_steps=100)
    sizes = report.sizes
    assert sizes.checkpoint == sizes.carry == 4 * (WIDTH + 1)
    assert sizes.uncut is not None
    assert 0 <= sizes.uncut - 4 * 2 * WIDTH <= 8
    assert sizes.residuals == sizes.uncut  # to compute the sine again takes more than it saves
    assert report.always == {
        "xs": 0,
        "cotangents of xs": 0,
        "ys": 0,
        "cotangents of ys": 0,
        "cotangents of closed-over values": 4 * WIDTH,
    }
    assert report.is_while
    assert report.plan.length == 100


def test_products_of_weights() -> None:
    """A block keeps what the weight's cotangent is a product of; a single step adds to it."""
    w = jnp.eye(256, dtype=jnp.float32)
    h = jax.ShapeDtypeStruct((16, 256), jnp.float32)
    report = explained_scan(lambda h, _: (jnp.tanh(h @ w), None), h, length=LENGTH)
    assert report.sizes.weights == w.nbytes == report.always["cotangents of closed-over values"]
    assert report.sizes.residuals == report.sizes.alone
    assert report.sizes.factors == 4 * 16 * 256
    assert f"- taped alone                      {report.sizes.alone / 1000:.1f} kB" in str(report)
    single = Plan(LENGTH, 3, 1)
    assert report.memory(single) == 4 * 4 * 16 * 256 + report.sizes.alone
    blocks = Plan(LENGTH, 3, 2)
    of_two = 2 * (report.sizes.residuals + report.sizes.factors)
    assert report.memory(blocks) == 4 * 4 * 16 * 256 + of_two
    long = Plan(64, 3, 64)
    of_all = 64 * report.sizes.residuals + 32 * report.sizes.factors
    assert report.memory(long) == 4 * 4 * 16 * 256 + of_all


def test_shapes_do() -> None:
    init, xs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments())
    assert explained_scan(step, init, xs) == explained_scan(step, *arguments())


@pytest.mark.parametrize("loop", ["scan", "while"])
def test_nothing_runs_and_functions_are_traced_once(loop: str) -> None:
    traced: list[str] = []
    ran: list[None] = []

    def noted(name: str, result: Any) -> Any:
        traced.append(name)
        jax.debug.callback(lambda: ran.append(None))
        return result

    if loop == "scan":
        explained_scan(lambda c, x: noted("f", step(c, x)), *arguments())
        assert traced == ["f"]
    else:
        explained_while(
            lambda c: (traced.append("cond"), going(c))[1],
            lambda c: noted("body", body(c)),
            start(),
            max_steps=100,
        )
        assert sorted(traced) == ["body", "cond"]
    jax.effects_barrier()
    assert not ran


def test_within_another_trace() -> None:
    """The length of a block depends on shapes alone, which are known when a function is traced."""
    found: list[Report] = []

    def loss(u: Any) -> Any:
        found.append(explained_scan(lambda c, _: (jnp.sin(c), None), u, length=LENGTH))
        chosen: Any = found[0].plan
        return checkpointed_scan(lambda c, _: (jnp.sin(c), None), u, length=LENGTH, plan=chosen)[0]

    assert jnp.isfinite(jax.jit(jax.grad(loss))(1.0))
    assert found[0].plan == explained_scan(lambda c, _: (jnp.sin(c), None), 1.0, length=LENGTH).plan


# The table


TABLE = """\
A loop of 10 steps.
  a checkpoint             1 kB  the restart state, of a carry of 1 kB
  residuals of a step      3 kB  kept until the step is transposed
  - taped alone            2 kB  with block size 1: weight gradients are summed in each step
  xs                      12 MB  with every plan
  cotangents of xs      12.3 kB  with every plan

  checkpoints  block size  memory  evaluations  per step
            1           1    4 kB           65      6.50
            3           1    6 kB           28      2.80  <- chosen
            2           2    9 kB           22      2.20
            4           2   11 kB           18      1.80
            1           5   17 kB           15      1.50
            1          10   32 kB           10      1.00"""


def test_table() -> None:
    """Sizes for which evaluations are all that counts."""
    always = {"xs": 12_000_000, "cotangents of xs": 12_345, "ys": 0}
    sizes = Sizes(1000, 3000, 2000, 1004)
    assert str(Report(plan(10, 3), sizes, always, is_while=False)) == TABLE


def marked(report: Report) -> list[str]:
    """The cells of the line that is marked, of which there is one."""
    (line,) = re.findall(r"^ (.*)  <- chosen$", str(report), re.MULTILINE)
    return line.split()


def check_choices(report: Report, wanted: AnyPlan | Request | None) -> None:
    """What the report chooses is what is asked for, and it says so."""
    expected = wanted.resolve(report.sizes) if isinstance(wanted, Request) else wanted
    assert report.plan == expected
    checkpoints, block_size, *_, evaluations, per_step = marked(report)
    assert (int(checkpoints), int(block_size)) == (report.plan.checkpoints, report.plan.block_size)
    assert int(evaluations) == report.evaluations(report.plan)
    assert float(per_step) == pytest.approx(int(evaluations) / LENGTH, abs=0.006)
    assert report.choices.count(report.plan) == 1
    bytes_taken = [report.memory(p) for p in report.choices]
    assert bytes_taken == sorted(bytes_taken)


@pytest.mark.parametrize("asked", REQUESTS, ids=str)
def test_chosen_plan(asked: dict[str, Any]) -> None:
    report = explained_scan(step, *arguments(), **asked)
    check_choices(report, for_scan(LENGTH, **{"checkpoints": None, **asked}))
    if "memory" in asked:
        assert report.memory(report.plan) <= {"1GB": 10**9, 30_000: 30_000}.get(
            asked["memory"], 100_000
        )
    if "block_size" in asked:
        assert report.plan.block_size == min(asked["block_size"], LENGTH)
    if "block_size" not in asked and "checkpoints" in asked:
        assert report.plan == plan(LENGTH, asked["checkpoints"])


@pytest.mark.parametrize("asked", REQUESTS, ids=str)
def test_chosen_plan_of_a_loop_that_stops_by_itself(asked: dict[str, Any]) -> None:
    report = explained_while(going, body, start(), max_steps=LENGTH, **asked)
    check_choices(report, for_bound(LENGTH, **{"checkpoints": None, **asked}))
    assert str(report).startswith(f"A loop of at most {LENGTH} steps.\n")
    for p in report.choices:
        assert report.evaluations(p) == cost.evaluations(p, is_while=True)


@pytest.mark.parametrize("length", [1, 2])
def test_shortest_loops(length: int) -> None:
    report = explained_scan(lambda c, _: (jnp.sin(c), None), 1.0, length=length)
    assert report.plan == Plan(length, 1, 1)
    assert report.evaluations(report.plan) == plan(length).evaluations
    assert marked(report)[:2] == ["1", "1"]


# All loops of a function


def long(u: Any) -> Any:
    return jnp.sum(checkpointed_scan(lambda c, _: (jnp.sin(c) * weight, None), u, length=40)[0])


def nest(u: Any, note: Callable[[], None] = lambda: None, inner: Any = checkpointed_scan) -> Any:
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
    assert last.memory(last.plan) < 20 * 4 * WIDTH < explanation.memory_now - explanation.memory
    lines = str(explanation).splitlines()
    assert lines[4].split()[0] == "together"
    assert lines[4].split()[-1] == str(explanation.evaluations)
    assert "Run by jax.lax: last/<lambda>/scan." in lines[5]
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


def test_pictures_of_all_loops() -> None:
    axes = explain(nest)(jnp.ones(WIDTH, jnp.float32)).plot()
    assert [ax.get_title() for ax in axes] == [
        "Gradient of a loop of 6 steps",
        "Gradient of a loop of 20 steps: scan/scan",
        "Gradient of a loop of 30 steps: last/<lambda>/scan",
    ]
    assert len({ax.figure for ax in axes}) == 1
    assert len(explain(long)(jnp.ones(WIDTH, jnp.float32)).plot()) == 1


def test_the_table_of_one_loop_has_its_plans() -> None:
    explanation = explain(long)(jax.ShapeDtypeStruct((WIDTH,), jnp.float32))
    (loop,) = explanation.loops
    assert str(explanation).endswith("\n\n" + str(loop))
    assert explanation.memory == explanation.memory_now == loop.memory(loop.plan)


@pytest.mark.parametrize("name", ["scan", "while_loop", "fori_loop", "loops"])
def test_the_old_names_say_what_to_write(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"explain_{name} is gone. Write explain\("):
        getattr(jax_revolve, f"explain_{name}")


# Errors


def test_a_bound_is_needed() -> None:
    explanation = explain(lambda x: bounded_while_loop(going, body, x, max_steps=None))(start())
    assert not explanation.loops
    assert "needs max_steps" in str(explanation)


@pytest.mark.parametrize(
    ("f", "xs"),
    [
        (lambda c, x: (c + 1, c), jnp.arange(5)),
        (lambda c, x: (c + 1, lax.stop_gradient(x)), jnp.arange(5.0)),
    ],
    ids=["integers", "stopped"],
)
def test_nothing_to_differentiate(f: Callable[..., Any], xs: Any) -> None:
    for scan in (checkpointed_scan, lax.scan):
        explanation = explain(partial(scan, f))(jnp.int32(0), jnp.concatenate([xs] * 4))
        assert not explanation.loops
        assert explanation.evaluations == 0
        assert ("no gradient" if scan is checkpointed_scan else "left alone") in str(explanation)


def test_too_little_memory() -> None:
    sizes = explained_scan(step, *arguments()).sizes
    least = sizes.checkpoint + sizes.residuals + sizes.carry
    enough = explained_scan(step, *arguments(), memory=least)
    assert (enough.plan, enough.memory(enough.plan)) == (Plan(LENGTH, 1, 1), least)
    with pytest.raises(ValueError, match=f"^memory must be at least {least} bytes here"):
        explained_scan(step, *arguments(), memory=least - 1)


# The picture


def test_plot() -> None:
    report = explained_scan(step, *arguments())
    ax = report.plot()
    assert ax.get_xscale() == "log"
    assert ax.figure in map(pyplot.figure, pyplot.get_fignums())
    single, choices, chosen = ax.lines
    assert list(choices.get_xdata()) == [report.memory(p) for p in report.choices]
    per_step = [report.evaluations(p) / LENGTH for p in report.choices]
    assert list(choices.get_ydata()) == per_step
    assert list(chosen.get_xdata()) == [report.memory(report.plan)]
    assert list(chosen.get_ydata()) == [report.evaluations(report.plan) / LENGTH]
    assert next(iter(single.get_xdata())) == report.memory(Plan(LENGTH, 1, 1))
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert len(ax.get_legend().get_texts()) == 3
    ax.figure.canvas.draw()


def test_plot_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    report = explained_scan(step, *arguments())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "jax_revolve\[plot\]"'):
        report.plot()


# What the loops really run


@pytest.mark.usefixtures("compile_quickly")
@pytest.mark.parametrize(
    ("loop", "length", "asked"),
    [
        ("scan", 1, {}),
        ("scan", 57, {"checkpoints": 3, "block_size": 4}),
        ("scan", 30, {"memory": "1MB"}),
        ("while", 57, {}),
        ("while", 2, {"block_size": 7}),
        ("while", 57, {"memory": 300}),
    ],
    ids=str,
)
def test_a_loop_runs_the_plan_that_is_explained(
    loop: str, length: int, asked: dict[str, Any]
) -> None:
    """A while loop stops at its bound."""
    noted: list[None] = []
    xs = jnp.ones((length, 3))

    def step(factor: Any, carry: Any, x: Any) -> Any:
        jax.debug.callback(lambda: noted.append(None))
        u, total = carry
        u = jnp.sin(u) * factor + x
        return (u, total + u), u

    def run(factor: Any, u: Any, xs: Any, scan: Any, while_loop: Any) -> Any:
        carry = (u, jnp.zeros(3))
        if loop == "scan":
            return scan(partial(step, factor), carry, xs, **asked)
        body = lambda state: (state[0] + 1, step(factor, state[1], xs[state[0]])[0])  # noqa: E731
        goes_on = lambda state: state[0] < length  # noqa: E731
        return while_loop(goes_on, body, (jnp.int32(0), carry), max_steps=length, **asked)

    def total(factor: Any, u: Any, xs: Any) -> Any:
        results = run(factor, u, xs, checkpointed_scan, bounded_while_loop)
        return sum(
            jnp.sum(x) for x in jax.tree.leaves(results) if jnp.issubdtype(x.dtype, jnp.floating)
        )

    report = run(jnp.ones(3), jnp.ones(3), xs, explained_scan, explained_while)
    assert length == 1 or not ({"block_size", "memory"} & {*asked}) or report.plan.block_size > 1
    gradient = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2)))
    jax.block_until_ready(gradient(jnp.ones(3), jnp.ones(3), xs))
    jax.effects_barrier()
    assert len(noted) == report.evaluations(report.plan)
