"""A differentiated loop is what JAX's derivative rules make of it, at every order, wherever its
checkpoints are; and examples of `jax.vmap` see of each other what they see in `jax.lax`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.core import ShapedArray
from jax.custom_batching import custom_vmap
from jax.dtypes import float0
from support.oracles import assert_close, by_python

from jax_revolve import bounded_while_loop, checkpoint_loops, checkpointed_scan
from jax_revolve.step.linearized import Linearized
from jax_revolve.step.steps import Steps

pytestmark = pytest.mark.usefixtures("compile_quickly")

OPTIONS: list[dict[str, Any]] = [{"checkpoints": 2}, {"checkpoints": 2, "block_size": 3}]


def equal(ours: Any, theirs: Any) -> None:
    assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


# Rules that compute the value themselves, or another one

recomputed = jax.custom_jvp(lambda x: jnp.sin(x))
recomputed.defjvp(lambda xs, ts: (jnp.sin(xs[0]), 1.1 * jnp.cos(xs[0]) * ts[0]))

other_value = jax.custom_jvp(lambda x: x)
other_value.defjvp(
    lambda xs, ts: (jnp.round(4 * xs[0]) / 4 + jnp.sin(xs[0]), jnp.cos(xs[0]) * ts[0])
)

other_value_in_reverse = jax.custom_vjp(lambda x: x)
other_value_in_reverse.defvjp(
    lambda x: (jnp.round(4 * x) / 4 + 0.1 * x, x), lambda x, ct: (ct * jnp.cos(x),)
)


def loss(rule: Any, scan: Any, x: Any) -> Any:
    step = lambda c, a: (rule(c) * 0.9 + a, rule(c * 0.5))  # noqa: E731
    carry, ys = scan(step, x, jnp.linspace(0.1, 0.5, 7))
    return jnp.sum(carry**2) + jnp.sum(ys)


DERIVATIVES: dict[str, Callable[[Any], Any]] = {
    "value and grad": jax.value_and_grad,
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (jnp.cos(x),)),
    "forward over reverse": lambda f: jax.jacfwd(jax.grad(f)),
    "reverse over reverse": lambda f: jax.jacrev(jax.grad(f)),
    "reverse over forward": lambda f: jax.jacrev(jax.jacfwd(f)),
    "forward over forward": lambda f: jax.jacfwd(jax.jacfwd(f)),
    "vmap of Hessian": lambda f: lambda x: jax.vmap(jax.hessian(f))(jnp.stack([x, 2 * x])),
}


PAIRS = [
    (rule, derivative)
    for derivative in DERIVATIVES
    for rule in (recomputed, other_value, other_value_in_reverse)
    # A function with a `custom_vjp` has no forward mode.
    if rule is not other_value_in_reverse
    or derivative not in ("jvp", "reverse over forward", "forward over forward")
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("rule", "derivative"), PAIRS)
def test_values_and_derivatives_are_those_of_the_rules(
    rule: Any, derivative: str, options: dict[str, Any]
) -> None:
    """The result once lay between the function's and the rule's, and depended on the plan."""
    differentiated = DERIVATIVES[derivative]
    x = jnp.array([0.3, 0.4])
    ours = differentiated(partial(loss, rule, partial(checkpointed_scan, **options)))(x)
    equal(ours, differentiated(partial(loss, rule, by_python))(x))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_rule_in_another_direction(options: dict[str, Any]) -> None:
    """Of a gradient with respect to the carry, the derivative with respect to a weight uses the
    rule that the weight's function has."""

    def mixed(scan: Any) -> Any:
        def loss(x: Any, w: Any) -> Any:
            step = lambda c, _: (jnp.sin(c * other_value(w)), None)  # noqa: E731
            return jnp.sum(scan(step, x, None, 5)[0] ** 2)

        of_x = jax.grad(loss)
        total = lambda w: jnp.sum(of_x(jnp.array([0.3, 0.4]), w) ** 2)  # noqa: E731
        return jax.value_and_grad(total)(1.2), jax.jvp(total, (1.2,), (1.0,))

    equal(mixed(partial(checkpointed_scan, **options)), mixed(by_python))


def test_advances_and_tapes_run_the_same_jaxpr(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: dict[bool, set[int]] = {False: set(), True: set()}
    run = Steps.run

    def note(steps: Steps, inputs: Any, kept: Any = ()) -> Any:
        closed[bool(kept)].add(id(steps.linearized.closed))
        return run(steps, inputs, kept)

    monkeypatch.setattr(Steps, "run", note)
    scan = partial(checkpointed_scan, checkpoints=2, block_size=3)
    jax.jit(jax.grad(partial(loss, other_value, scan))).lower(jnp.ones(2))
    assert closed[False] == closed[True]
    assert len(closed[True]) == 1


@pytest.mark.parametrize("inner", ["scan", "while"])
def test_advances_of_an_outer_loop_store_nothing_of_an_inner_one(
    inner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[set[str]] = []
    run = Linearized.run

    def note(step: Linearized, outputs: Any, inputs: Any) -> Any:
        if outputs == step.results:  # an advance
            jaxpr = jax.make_jaxpr(lambda *flat: run(step, outputs, flat))(*step.closed.in_avals)
            found.append({eqn.primitive.name for eqn in jaxpr.eqns})
        return run(step, outputs, inputs)

    monkeypatch.setattr(Linearized, "run", note)

    def step(c: Any, _: Any) -> Any:
        if inner == "scan":
            c, ys = checkpointed_scan(lambda c, _: (jnp.sin(c), c**2), c, None, 4, checkpoints=2)
            return c, ys.sum()
        grow = lambda s: (s[0] + 1, jnp.sin(s[1]))  # noqa: E731
        return bounded_while_loop(lambda s: s[0] < 3, grow, (0, c), max_steps=4)[1], c

    def loss(x: Any) -> Any:
        c, ys = checkpointed_scan(step, x, None, 6, checkpoints=2, block_size=2)
        return c + ys.sum()

    jax.jit(jax.grad(loss)).lower(0.5)
    loops = [{name for name in names if "checkpointed" in name} for names in found]
    assert {"checkpointed_loop"} in loops
    assert all(names <= {"checkpointed_loop"} for names in loops)


# Named axes


def psum_scatter(c: Any) -> Any:
    return lax.psum_scatter(c, "i", scatter_dimension=0)


COLLECTIVES: dict[str, Callable[[Any], Any]] = {
    "axis_index": lambda c: 0.1 * lax.axis_index("i").astype(c.dtype),
    "psum": lambda c: 0.1 * lax.psum(jnp.sin(c), "i"),
    "psum_scatter": lambda c: 0.1 * psum_scatter(c),
    "all_gather": lambda c: 0.1 * lax.all_gather(c, "i")[0],
}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_examples_that_differ_by_their_axis_alone(collective: str, options: dict[str, Any]) -> None:
    """Derivatives in several directions at one point; and derivatives of a batched gradient, whose
    steps were once traced where its axis is not bound."""

    def run(scan: Any) -> Any:
        def loss(x: Any, w: Any) -> Any:
            step = lambda c, _: (jnp.sin(c * w) + COLLECTIVES[collective](c), None)  # noqa: E731
            return jnp.sum(scan(step, x, None, 5)[0] ** 2)

        x, w = jnp.array([0.1, 0.2]), 1.3
        along = jax.vmap(lambda t: jax.jvp(lambda x: loss(x, w), (x,), (t,)), axis_name="i")
        products = lambda t: jax.jvp(jax.grad(lambda x: loss(x, w)), (x,), (t,))  # noqa: E731
        of_each = jax.jit(jax.vmap(jax.grad(loss), (0, None), axis_name="i"))
        total = lambda x, w: jnp.sum(of_each(x, w) ** 2)  # noqa: E731
        rows = jnp.array([[0.3, 0.1], [0.2, 0.5]])
        return (
            along(jnp.eye(2)),
            jax.vmap(products, axis_name="i")(jnp.eye(2)),
            jax.grad(total, (0, 1))(rows, w),
            jax.jacfwd(total, 1)(rows, w),
        )

    equal(run(partial(checkpointed_scan, **options)), run(lax.scan))


MIXING: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda s: 0.0,
    "axis_index": lambda s: 0.5 * lax.axis_index("i"),
    "psum": lambda s: lax.psum(s, "i"),
    "psum in jit": jax.jit(lambda s: lax.psum(s, "i")),
}


@pytest.mark.parametrize("options", [{}, {"checkpoints": 2}], ids=str)
@pytest.mark.parametrize("mixing", MIXING)
def test_examples_that_are_done(mixing: str, options: dict[str, Any]) -> None:
    """The square root has no derivative where an example stops. What it shows the others there is
    its own value, and has the derivative of that."""

    def body(state: Any) -> Any:
        x, s = state
        return x - 1, s + jnp.sqrt(x) + MIXING[mixing](s) * jnp.sin(s)

    def goes_on(state: Any) -> Any:
        return state[0] > 0

    def masked(x: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            on = goes_on(state)
            new = body((jnp.where(on, state[0], 1.0), state[1]))
            return jax.tree.map(lambda n, o: jnp.where(on, n, o), new, state), None

        return lax.scan(step, (x, 0.0), length=6)[0][1]

    def ours(x: Any) -> Any:
        return bounded_while_loop(goes_on, body, (x, 0.0), max_steps=6, **options)[1]

    starts = jnp.array([3.0, 1.0, 0.0])
    both = (jax.vmap(jax.value_and_grad(f), axis_name="i")(starts) for f in (ours, masked))
    equal(*both)


def test_a_function_with_a_batching_rule_sees_all_examples_as_in_lax() -> None:
    @custom_vmap
    def largest(x: Any) -> Any:
        return x

    @largest.def_vmap
    def _(axis_size: int, in_batched: Any, x: Any) -> Any:
        del axis_size, in_batched
        return jnp.broadcast_to(jnp.max(x), x.shape), True

    def run(loop: Any, x: Any) -> Any:
        body = lambda s: (s[0] - 1, s[1] + largest(s[0]) * jnp.cos(s[1]))  # noqa: E731
        return loop(lambda s: s[0] > 0, body, (x, 1.0))[1]

    starts = jnp.array([1.0, 3.0, 0.0])
    ours = partial(run, partial(bounded_while_loop, max_steps=6))
    equal(jax.vmap(ours)(starts), jax.vmap(partial(run, lax.while_loop))(starts))


def test_a_batch_of_no_examples() -> None:
    def run(x: Any) -> Any:
        body = lambda s: (s[0] - 1, s[1] * jnp.sin(s[0]))  # noqa: E731
        return bounded_while_loop(lambda s: s[0] > 0, body, (x, x), max_steps=6)[1]

    def by_lax(x: Any) -> Any:
        return lax.while_loop(lambda s: s[0] > 0, lambda s: (s[0] - 1, s[1] * 2), (x, x))[1]

    none = jnp.zeros((0,))
    for f in (run, checkpoint_loops(jax.vmap(by_lax), max_steps=6)):
        mapped = jax.vmap(f) if f is run else f
        assert mapped(none).shape == jax.grad(lambda x, f=mapped: f(x).sum())(none).shape == (0,)
    assert jax.vmap(jax.grad(run))(none).shape == (0,)


# Other places where loops run


@pytest.mark.skipif(
    jax.__version_info__ < (0, 12),
    reason="JAX 0.10 transposes the solve, whose matrix is a gradient at the linear operand",
)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_loop_in_a_function_whose_root_is_found(options: dict[str, Any]) -> None:
    """`tangent_solve` takes a Jacobian of the loop, linearized, as a linear function."""

    def run(scan: Any) -> Any:
        def root(a: Any) -> Any:
            def g(y: Any) -> Any:
                step = lambda c, _: (c + 0.1 * (jnp.tanh(c) * a - c), None)  # noqa: E731
                return scan(step, y, None, 6)[0] - a

            def solve(g: Any, y: Any) -> Any:
                newton = lambda _, y: y - jnp.linalg.solve(jax.jacobian(g)(y), g(y))  # noqa: E731
                return lax.fori_loop(0, 8, newton, y)

            tangent_solve = lambda g, y: jnp.linalg.solve(jax.jacobian(g)(y), y)  # noqa: E731
            return lax.custom_root(g, jnp.ones(2), solve, tangent_solve)

        at = jnp.array([0.5, 0.6])
        return root(at), jax.jacrev(root)(at), jax.jacfwd(root)(at)

    equal(run(partial(checkpointed_scan, **options)), run(lax.scan))


@pytest.mark.parametrize("scan", [lax.scan, checkpointed_scan])
def test_loops_that_run_while_a_function_is_traced(scan: Any) -> None:
    @jax.jit
    def f(x: Any) -> Any:
        with jax.ensure_compile_time_eval():
            carry, _ = scan(lambda c, a: (c * 2 + a, None), 1.0, jnp.ones(3))
            slope = jax.grad(lambda c: scan(lambda c, a: (jnp.sin(c), a), c, jnp.ones(3))[0])(1.0)
            halved = bounded_while_loop(lambda c: c > 1, lambda c: c / 2, carry, max_steps=9)
            assert float(halved) == 15 / 16
            assert 0 < float(slope) < 1
        return x + carry

    assert f(1.0) == 16


@jax.custom_vjp
def write(buffer: Any, x: Any, i: Any) -> Any:
    return buffer.at[i].set(x), jnp.sin(x)


write.defvjp(
    lambda buffer, x, i: (write(buffer, x, i), (x, i)),
    lambda held, cts: (
        cts[0].at[held[1]].set(0),
        cts[0][held[1]] + cts[1] * jnp.cos(held[0]),
        None,
    ),
)


def write_in_a_scan(buffer: Any, x: Any, i: Any) -> Any:
    step = lambda c, j: ((c[0].at[i].add(c[1] * j), jnp.sin(c[1])), None)  # noqa: E731
    return lax.scan(step, (buffer, x), jnp.arange(1.0, 4))[0]


def write_in_a_while_loop(buffer: Any, x: Any, i: Any) -> Any:
    """As Diffrax does for `SaveAt(ts=...)`."""

    def step(carry: Any) -> Any:
        buffer, x, j = carry
        return buffer.at[i].add(x), jnp.sin(x), j + 1

    init = (buffer, x, jnp.where(x[0] > 0, 0, 1))
    return bounded_while_loop(lambda c: c[2] < 3, step, init, max_steps=3)[:2]


@pytest.mark.parametrize("written", [write, write_in_a_scan, write_in_a_while_loop])
def test_a_checkpoint_without_the_buffer_that_a_call_writes(
    written: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def loss(scan: Any, x: Any) -> Any:
        init, step = (jnp.zeros((4, 3)), x), lambda c, i: (written(*c, i), None)
        buffer, x = scan(step, init, jnp.arange(4))[0]
        return jnp.sum(buffer**2) + jnp.sum(x)

    def derivatives(scan: Any) -> Any:
        gradient = jax.grad(partial(loss, scan))
        product = lambda x: jax.vjp(gradient, x)[1](jnp.cos(x))[0]  # noqa: E731
        if written is write:  # which is no derivative to second order
            product = gradient
        orders = gradient, product, lambda x: jax.vmap(gradient)(jnp.stack([x, -x]))
        return [jax.jit(order)(x) for order in orders]

    x = jnp.array([0.3, 0.5, 0.7])
    monkeypatch.setenv("JAX_REVOLVE_TRACE", "1")
    ours = derivatives(partial(checkpointed_scan, checkpoints=2))
    lines = [line for line in capsys.readouterr().err.splitlines() if "scan of 4 steps" in line]
    assert lines
    assert "checkpoint: 1/2 leaves" in lines[0]
    equal(ours, derivatives(by_python))


class _Scale(jax.dtypes.extended):
    """A scale of eight-bit numbers, whose cotangents are scales, and the larger one counts."""


class _ScaleRules:
    allow_conversion = True

    @staticmethod
    def physical_element_aval(dtype: Any) -> Any:
        return ShapedArray((), dtype.inside)

    @staticmethod
    def tangent_dtype(dtype: Any) -> Any:
        return dtype

    @staticmethod
    def zero(dtype: Any) -> Any:
        return lax.convert_element_type(np.float32(-np.inf), dtype)

    @staticmethod
    def add(dtype: Any, x: Any, y: Any) -> Any:
        both = (lax.convert_element_type(value, dtype.inside) for value in (x, y))
        return lax.convert_element_type(lax.max(*both), dtype)


SINGLE = np.dtype("float32")
ExtendedDType: Any = type(jax.random.key(0).dtype).__base__


@dataclass(frozen=True)
class _ScaleType(ExtendedDType):
    inside: Any = SINGLE
    name: Any = "scale"
    _rules: Any = _ScaleRules
    type: Any = _Scale


def test_a_dtype_with_cotangents_of_its_own() -> None:
    @jax.custom_vjp
    def scaled(u: Any, scale: Any) -> Any:
        del scale
        return u

    def backward(scale: Any, ct: Any) -> Any:
        largest = jnp.max(ct) + 0.5 * lax.convert_element_type(scale, jnp.float32)
        return ct, lax.convert_element_type(largest, _ScaleType())

    scaled.defvjp(lambda u, scale: (u, scale), backward)

    def run(scan: Any, u: Any, scale: Any) -> Any:
        scale = lax.convert_element_type(scale, _ScaleType())
        return scan(lambda u, _: (2 * scaled(u, scale), None), u, length=3)[0]

    ours, theirs = (
        jax.jit(jax.grad(partial(run, scan), (0, 1)))(jnp.float32(3), jnp.float32(1))
        for scan in (checkpointed_scan, lax.scan)
    )
    assert ours == theirs
    assert ours[1] == 8.5


def test_a_rule_that_returns_cotangents_of_another_dtype() -> None:
    """JAX lets that pass for xs. The gradient has the dtype of the xs here."""

    @jax.custom_vjp
    def times(u: Any, w: Any) -> Any:
        return u * w

    def backward(residuals: Any, ct: Any) -> Any:
        u, w = residuals
        return ct * w, jnp.bfloat16(ct * u)

    times.defvjp(lambda u, w: (u * w, (u, w)), backward)
    grad = jax.grad(lambda w: checkpointed_scan(lambda u, w: (times(u, w), None), 1.0, w)[0])
    found = grad(jnp.array([2.0, 4, 8]))
    assert found.dtype == jnp.float64
    np.testing.assert_array_equal(found, [32, 16, 8])


@pytest.mark.parametrize("kind", [jax.custom_jvp, jax.custom_vjp])
def test_a_rule_of_what_has_no_tangent_under_the_next_checkpoint(kind: Any) -> None:
    """Second derivatives of such steps take `jax.checkpoint`."""
    f = kind(jnp.sin)
    if kind is jax.custom_jvp:
        f.defjvp(lambda x, dx: (jnp.sin(x[0]) + 0.1, jnp.cos(x[0]) * dx[0]))
    else:
        f.defvjp(lambda x: (jnp.sin(x) + 0.1, x), lambda x, ct: (jnp.cos(x) * ct,))

    def second(scan: Any) -> Any:
        run = lambda c: scan(lambda c, x: (c * c * f(x), None), c, jnp.arange(1.0, 4))[0]  # noqa: E731
        return jax.jvp(jax.grad(run), (0.3,), (1.0,))

    jax.config.update("jax_remat3", True)
    try:
        np.testing.assert_allclose(second(checkpointed_scan), second(lax.scan), rtol=1e-6)
    finally:
        jax.config.update("jax_remat3", False)


def test_a_primitive_of_a_user_that_has_reverse_mode_alone() -> None:
    """It was asked for its forward mode, which it does not have."""
    hijax = pytest.importorskip("jax.experimental.hijax")
    if not hasattr(hijax, "HiPrim"):
        pytest.skip("this JAX has such primitives under another name")

    class Sine(hijax.HiPrim):
        def __init__(self, aval: Any) -> None:
            self.in_avals, self.out_aval, self.params = (aval,), aval, {}
            super().__init__()

        def expand(self, x: Any) -> Any:
            return jnp.sin(x)

        def vjp_fwd(self, _: Any, x: Any) -> Any:
            return 1.5 * jnp.sin(x), x

        def vjp_bwd_retval(self, x: Any, ct: Any) -> Any:
            return (2 * ct * jnp.cos(x),)

        def batch(self, _: Any, args: Any, dims: Any) -> Any:
            return Sine(jax.typeof(args[0]))(*args), dims[0]

    def loss(scan: Any, x: Any) -> Any:
        return scan(lambda c, _: (Sine(jax.typeof(c))(c) * x, None), x, length=5)[0]

    def derivatives(scan: Any) -> Any:
        one = partial(loss, scan)
        of_one = [jax.jit(f)(0.7) for f in (one, jax.grad(one), jax.grad(jax.grad(one)))]
        return of_one, jax.vmap(jax.grad(one))(jnp.array([0.7, 0.6]))

    for options in OPTIONS:
        equal(derivatives(partial(checkpointed_scan, **options)), derivatives(lax.scan))


def test_a_rule_that_returns_python_numbers() -> None:
    @jax.custom_vjp
    def same(pair: Any) -> Any:
        return pair

    same.defvjp(lambda pair: (pair, None), lambda _, ct: ((2.0, np.zeros((), float0)),))

    def grad(scan: Any) -> Any:
        def loss(x: Any, n: Any) -> Any:
            return scan(lambda pair, _: (same(pair), None), (x, n), None, 1)[0][0]

        return jax.grad(loss, (0, 1), allow_int=True)(3.0, 4)

    assert grad(checkpointed_scan) == grad(lax.scan) == (2, np.zeros((), float0))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_gradient_that_a_scan_takes_at_each_step(options: dict[str, Any]) -> None:
    """The gradient is linearized again with the scan around it, and its residuals are others."""

    def run(scan: Any, w: Any) -> Any:
        inner = partial(scan, **options) if scan is checkpointed_scan else scan
        step = lambda u, _: (jnp.sin(other_value(u) * recomputed(u * w)), None)  # noqa: E731
        inside = lambda u, w: jnp.sum(inner(step, u * w, None, length=4)[0])  # noqa: E731

        def body(u: Any, _: Any) -> Any:
            return jnp.tanh(u + 0.3 * jax.grad(inside)(u, w)), None

        return jnp.sum(lax.scan(body, jnp.array([0.4, 0.9]), None, length=2)[0] ** 2)

    w = jnp.array([0.8, 1.2])
    by_rules = by_python if jax.__version_info__ < (0, 12) else lax.scan
    equal(jax.grad(partial(run, checkpointed_scan))(w), jax.grad(partial(run, by_rules))(w))
