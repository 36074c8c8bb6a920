"""Derivative rules that are no derivatives, that close over tracers or that have effects: a loop's
derivatives are `jax.lax.scan`'s, entry by entry, at every order."""

from collections.abc import Callable
from functools import partial
from itertools import product
from tempfile import gettempdir
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from support.oracles import assert_close

from jax_revolve import Disk, HostMemory, bounded_while_loop, checkpointed_scan
from jax_revolve._compat.interpreters import linearizations

pytestmark = pytest.mark.usefixtures("compile_quickly")

X = np.array([0.3, 0.4, 0.5])


def while_scan(f: Any, init: Any, xs: None, length: int) -> tuple[Any, None]:
    """A while loop called as a scan without xs."""

    def step(state: Any) -> Any:
        return f(state[0], xs)[0], state[1] + 1

    def goes_on(state: Any) -> Any:
        return state[1] < length

    start = (init, 0)
    return bounded_while_loop(goes_on, step, start, max_steps=length, checkpoints=2)[0], None


def in_python(f: Any, x: Any, xs: None, length: int) -> tuple[Any, None]:
    """`jax.lax.scan` loses some of these tracers itself."""
    for _ in range(length):
        x, _ = f(x, xs)
    return x, None


in_host_memory = partial(
    checkpointed_scan, checkpoints=1, storage=HostMemory(checkpoints=2, transfer=0.1)
)

SCANS = [
    pytest.param(partial(checkpointed_scan, checkpoints=2), id="checkpoints"),
    pytest.param(while_scan, id="while"),
    pytest.param(checkpointed_scan, id="default", marks=pytest.mark.slow),
    pytest.param(
        partial(checkpointed_scan, checkpoints=2, block_size=3), id="blocks", marks=pytest.mark.slow
    ),
]


AND_HOST = [*SCANS, pytest.param(in_host_memory, id="host", marks=pytest.mark.slow)]


on_disk = partial(
    checkpointed_scan, checkpoints=1, storage=Disk(gettempdir(), checkpoints=2, transfer=0.1)
)
AND_DISK = [*AND_HOST, pytest.param(on_disk, id="disk")]


def all_but_few(scans: list[Any], *names: list[str], few: str) -> list[Any]:
    """All combinations of names with these scans, of which only those in `few` are quick: with the
    first scan, and, where it ends with a star, with the second, too. Slow are the others with the
    first scan, and each with one more, in turn."""
    quick = {tuple(word.strip("*").split("-")): word.endswith("*") for word in few.split()}
    cases = []
    for turn, chosen in enumerate(product(*names)):
        for i, scan in enumerate(scans):
            is_quick = (i == 0 and chosen in quick) or (i == 1 and quick.get(chosen, False))
            is_slow = i in (0, 1 + turn % (len(scans) - 1))
            marks = () if is_quick else (pytest.mark.slow if is_slow else pytest.mark.exhaustive,)
            id_ = "-".join([*chosen, str(scan.id)])
            cases.append(pytest.param(*chosen, *scan.values, id=id_, marks=marks))
    return cases


def equal(ours: Any, theirs: Any) -> None:
    assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def total(rule: Any, scan: Any, x: Any) -> Any:
    c, _ = scan(lambda c, _: (rule(c) * 0.9, None), x, None, 5)
    return jnp.sum(c**2)


# Rules that are no derivatives

odd_p = Primitive("odd")
odd_p.def_impl(jnp.sin)
odd_p.def_abstract_eval(lambda x: x)
mlir.register_lowering(odd_p, mlir.lower_fun(jnp.sin, multiple_results=False))
batching.defvectorized(odd_p)
ad.primitive_jvps[odd_p] = lambda xs, ts: (
    odd_p.bind(*xs),
    (jnp.roll(xs[0], 1) ** 2 + 0.3) * ts[0],
)


linear_p = Primitive("linear")
linear_p.def_impl(lambda x: 0.9 * x)
linear_p.def_abstract_eval(lambda x: x)
mlir.register_lowering(linear_p, mlir.lower_fun(lambda x: 0.9 * x, multiple_results=False))
batching.defvectorized(linear_p)
ad.deflinear2(linear_p, lambda ct, _: [0.7 * jnp.roll(ct, 1)])


def unmatched(x: Any) -> Any:
    """The transpose of its linear part is another map's, as in tomography."""
    return jnp.sin(2 * linear_p.bind(x)) + 0.5 * x


def few_iterations(a: Any) -> Any:
    matrix = jnp.array([[2.0, 0.3, 0.1], [0.5, 1.5, 0.2], [0.1, 0.0, 1.2]])

    def solve(f: Any, x: Any) -> Any:
        for _ in range(3):
            x = x - 0.3 * f(x)
        return x

    def tangent_solve(g: Any, y: Any) -> Any:
        return solve(lambda x: (g(x) - y) / 0.75, y)

    return jnp.sin(lax.custom_root(lambda x: matrix @ x + 0.1 * x**3 - a, a, solve, tangent_solve))


scaled = jax.custom_jvp(jnp.sin)
scaled.defjvp(lambda xs, ts: (jnp.sin(xs[0]), 1.1 * jnp.roll(jnp.cos(xs[0]), 1) * ts[0]))

linearized_p = Primitive("linearized")
linearized_p.def_impl(jnp.sin)
linearized_p.def_abstract_eval(lambda x: x)
mlir.register_lowering(linearized_p, mlir.lower_fun(jnp.sin, multiple_results=False))
batching.defvectorized(linearized_p)


def _linearization(_: bool, nonzero: Any, x: Any) -> Any:
    run = lambda cos, _, t: t * cos  # noqa: E731
    return 1.1 * jnp.sin(x), nonzero[0], jnp.cos(x), None, run


linearizations[linearized_p] = _linearization


WORDS: dict[str, Callable[[Any], Any]] = {
    "fr": jax.hessian,
    "rr": lambda f: jax.jacrev(jax.grad(f)),
    "ffr": lambda f: jax.jacfwd(jax.hessian(f)),
    "rfr": lambda f: jax.jacrev(jax.hessian(f)),
    "frr": lambda f: jax.jacfwd(jax.jacrev(jax.grad(f))),
}


RULES = {"odd": odd_p.bind, "root": few_iterations, "jvp": scaled, "linear": unmatched}
FEW_WORDS = "fr-odd* fr-root rr-odd rr-jvp* rr-linear ffr-jvp rfr-odd* rfr-jvp rfr-linear"


@pytest.mark.parametrize(
    ("word", "name", "scan"), all_but_few(AND_HOST, [*WORDS], [*RULES], few=FEW_WORDS)
)
def test_a_rule_that_is_no_derivative(word: str, name: str, scan: Any) -> None:
    """The Hessian was transposed. It is not symmetric, so that the order of its axes counts."""
    rule = RULES[name]
    if rule is few_iterations and jax.__version_info__ < (0, 12):
        pytest.skip("JAX 0.10 transposes the solve, whose matrix is a gradient")
    ours, theirs = (jax.jit(WORDS[word](partial(total, rule, s)))(X) for s in (scan, lax.scan))
    equal(ours, theirs)
    if word == "fr" or (word == "rr" and rule is not unmatched):
        assert not np.allclose(theirs, theirs.T, rtol=1e-4)


@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="such rules have other arguments here")
@pytest.mark.parametrize("scan", [checkpointed_scan, partial(checkpointed_scan, checkpoints=2)])
def test_a_primitive_with_a_rule_for_reverse_mode_alone(scan: Any) -> None:
    """Its value is the rule's, too."""
    of_lax, ours = (partial(total, linearized_p.bind, s) for s in (lax.scan, scan))
    equal(jax.value_and_grad(ours)(X), jax.value_and_grad(of_lax)(X))
    equal(ours(X), of_lax(X))
    batch = jnp.stack([X, 2 * X])
    equal(jax.vmap(jax.grad(ours))(batch), jax.vmap(jax.grad(of_lax))(batch))
    twice = [jax.grad(lambda x, f=f: jnp.sum(jnp.sin(jax.grad(f)(x))))(X) for f in (ours, of_lax)]
    equal(*twice)
    for each in (ours, of_lax):
        with pytest.raises(NotImplementedError, match="Differentiation rule for 'linearized'"):
            jax.jvp(each, (X,), (X,))


OF_WHAT: dict[str, Callable[[Any], Any]] = {
    "gradient": jax.grad,
    "product": lambda f: lambda x: jax.jvp(jax.grad(f), (x,), (jnp.cos(x),))[1],
    "twice": lambda f: jax.grad(lambda x: jnp.sum(jnp.sin(jax.grad(f)(x)))),
}
FEW_LINEAR = "gradient-jvp product-jvp product-odd* twice-jvp"


@pytest.mark.parametrize(
    ("what", "name", "scan"), all_but_few(AND_HOST, [*OF_WHAT], [*RULES], few=FEW_LINEAR)
)
def test_linear_functions_of_derivatives(what: str, name: str, scan: Any) -> None:
    """That of a Hessian-vector product was another one's: what its forward sweep saved had no
    tangents, but its reverse sweep used them."""
    rule = RULES[name]
    if rule is few_iterations and jax.__version_info__ < (0, 12):
        pytest.skip("JAX 0.10 transposes the solve, whose matrix is a gradient")

    def both(scan: Any) -> Any:
        value, linear = jax.linearize(OF_WHAT[what](partial(total, rule, scan)), jnp.asarray(X))
        return value, linear(jnp.sin(X)), jax.vmap(linear)(np.eye(3))

    equal(both(scan), both(lax.scan))


@pytest.mark.parametrize("scan", SCANS)
def test_where_a_rule_of_jax_is_no_derivative(scan: Any) -> None:
    """JAX's rule for powers has no derivative at zero."""

    def power(scan: Any, v: Any) -> Any:
        return scan(lambda c, _: (c ** (v[1] * 1.0), None), v[0], None, 1)[0]

    at = jnp.array([0.0, 1.0])
    equal(*(jax.hessian(partial(power, s))(at) for s in (scan, lax.scan)))


@pytest.mark.parametrize("scan", AND_HOST)
def test_a_rule_of_what_only_the_next_derivative_differentiates(scan: Any) -> None:
    """In the third derivative, the first rule has been applied, and its own code is differentiated:
    the rule was applied once more."""
    rule = jax.custom_vjp(jnp.sin)
    rule.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (1.1 * ct * jnp.cos(x),))

    def of_gradient(scan: Any, x: Any) -> Any:
        def loss(b: Any) -> Any:
            step = lambda c, _: (jnp.tanh(0.5 * c + rule(x) * b), None)  # noqa: E731
            return jnp.sum(scan(step, jnp.cos(X), None, 3)[0] ** 2)

        return jnp.sum(jnp.sin(jax.grad(loss)(X)))

    equal(
        *(jax.jacrev(jax.grad(partial(of_gradient, s)))(jnp.asarray(X)) for s in (scan, lax.scan))
    )


# Several directions at one point


@pytest.mark.parametrize("scan", SCANS)
def test_a_rule_that_knows_its_example(scan: Any) -> None:
    """Every example got the value of the first."""
    rule = jax.custom_jvp(jnp.sin)
    rule.defjvp(
        lambda xs, ts: (jnp.sin(xs[0]), (1.0 + lax.axis_index("i")) * jnp.cos(xs[0]) * ts[0])
    )

    def directions(scan: Any) -> Any:
        loss = partial(total, rule, scan)
        of_each = (
            lambda t: jax.jvp(loss, (X,), (t,)),
            lambda t: jax.jvp(jax.grad(loss), (X,), (t,)),
            lambda t: jax.grad(lambda x: jnp.vdot(t, jax.grad(loss)(x)))(X),
        )
        return [jax.jit(jax.vmap(each, axis_name="i"))(np.eye(3)) for each in of_each]

    equal(directions(scan), directions(lax.scan))


@pytest.mark.parametrize(
    ("word", "scan"), all_but_few([*reversed(AND_DISK)], [*WORDS], few="fr rr")
)
def test_a_rule_that_knows_its_example_in_a_mapped_loss(word: str, scan: Any) -> None:
    """With files, the derivative of a sweep was traced when the axis was unbound again."""
    rule = jax.custom_jvp(jnp.sin)
    rule.defjvp(lambda xs, ts: (of_example(xs[0]), of_example(xs[0]) * jnp.cos(xs[0]) * ts[0]))

    def of_example(x: Any) -> Any:
        return (1.0 + lax.axis_index("i")) * jnp.tanh(x)

    def mapped(scan: Any, x: Any) -> Any:
        loss = lambda k: total(rule, scan, k * x[:2])  # noqa: E731
        return jnp.sum(jax.vmap(loss, axis_name="i")(jnp.arange(1.0, 3.0)))

    equal(*(jax.jit(WORDS[word](partial(mapped, s)))(X) for s in (scan, lax.scan)))


# Rules that close over tracers


def with_jvp(k: Any) -> Any:
    f = jax.custom_jvp(jnp.sin)
    f.defjvp(lambda xs, ts: (jnp.sin(xs[0]), k * jnp.cos(xs[0]) * ts[0]))
    return f


def with_vjp(k: Any) -> Any:
    f = jax.custom_vjp(jnp.sin)
    f.defvjp(lambda x: (k * jnp.sin(x), x), lambda x, ct: (k * ct * jnp.cos(x),))
    return f


def with_gradient(k: Any) -> Any:
    return jax.custom_gradient(lambda x: (jnp.sin(x), lambda ct: k * ct * jnp.cos(x)))


AROUND: dict[str, Callable[[Any], Any]] = {
    "jit": lambda g: jax.jit(g)(1.3),
    "vmap": lambda g: jax.vmap(g)(jnp.array([1.3, 0.6])),
    "jvp": lambda g: jax.jvp(g, (1.3,), (1.0,)),
    "vjp": lambda g: jax.vjp(g, 1.3)[1](jax.tree.map(jnp.ones_like, g(1.3))),
    "scan": lambda g: lax.scan(lambda s, k: (s, g(k)), 0.0, jnp.array([1.3, 0.6]))[1],
    "cond": lambda g: jax.jit(lambda k: lax.cond(k > 0, g, lambda k: g(-k), k))(1.3),
}


MAKE = {"jvp": with_jvp, "vjp": with_vjp, "gradient": with_gradient}
FEW_AROUND = "jit-jvp* jit-vjp vmap-jvp vmap-vjp jvp-jvp vjp-vjp scan-jvp cond-jvp"


@pytest.mark.parametrize(
    ("around", "name", "scan"), all_but_few(AND_HOST, [*AROUND], [*MAKE], few=FEW_AROUND)
)
def test_a_rule_that_closes_over_a_tracer(around: str, name: str, scan: Any) -> None:
    """It failed while it was lowered, when the tracer was dead."""
    make = MAKE[name]

    def all_of(scan: Any, k: Any) -> Any:
        loss = partial(total, make(k), scan)
        return [f(loss)(jnp.asarray(X)) for f in (jax.grad, WORDS["fr"], WORDS["rr"])]

    ours, theirs = (AROUND[around](partial(all_of, s)) for s in (scan, in_python))
    equal(ours, theirs)


# Effects


@pytest.mark.unchecked  # the check runs the pullbacks once more
@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("where", ["value", "pullback"])
@pytest.mark.parametrize("is_used", [True, False])
def test_effects_of_rules(is_used: bool, where: str, ordered: bool, scan: Any) -> None:
    """An ordered one was unknown to the equation, and an unordered one vanished with its result."""
    seen: list[float] = []

    def note(x: Any) -> None:
        io_callback(lambda x: seen.append(float(np.sum(x))), None, x, ordered=ordered)

    def forward(x: Any) -> Any:
        if where == "value":
            note(x)
        return jnp.sin(x), x

    def backward(x: Any, ct: Any) -> Any:
        if where == "pullback":
            note(ct)
        return (ct * jnp.cos(x),)

    rule = jax.custom_vjp(jnp.sin)
    rule.defvjp(forward, backward)
    gradient = jax.grad(partial(total, rule, scan))
    run = gradient if is_used else lambda x: (gradient(x), x)[1]
    jax.block_until_ready(jax.jit(run)(X))
    jax.effects_barrier()
    assert len(seen) == 5 if where == "pullback" else len(seen) >= 5


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("constant", [True, pytest.param(3, marks=pytest.mark.slow), 2.5])
def test_a_step_with_a_rule_that_returns_a_constant(constant: Any, scan: Any) -> None:
    def loss(scan: Any, x: Any) -> Any:
        c, y = scan(lambda c, _: (scaled(c), constant), x, None, 5)
        return jnp.sum(c**2) + (0 if y is None else jnp.sum(y))

    ours, theirs = ([WORDS[w](partial(loss, s))(X) for w in ("fr", "rr")] for s in (scan, lax.scan))
    equal(ours, theirs)


def test_an_operand_of_a_linear_loop_that_is_not_used() -> None:
    def linear(scan: Any, x: Any, xs: Any) -> Any:
        return scan(lambda c, a: (2.0 * c, None), x, xs)[0]

    at, xs = jnp.ones(3), jnp.ones((4, 3))
    for scan in (lax.scan, partial(checkpointed_scan, checkpoints=2)):
        back, unused = jax.linear_transpose(partial(linear, scan), at, xs)(at)
        equal((back, unused), (16 * at, 0 * xs))
