"""Programs in programs: what the walk enters, and what it says of what it does not enter."""

import re
from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import mlir
from support.calls import CALLS, LENGTH, NEW, X, option, ruled, sines
from support.compiled import compiled
from support.oracles import assert_like_lax

from jax_revolve import checkpoint_loops, checkpointed_chain, checkpointed_scan, explain


def temporary_bytes(fun: Callable[[Any], Any]) -> int:
    return compiled(jax.grad(lambda x: jnp.sum(fun(x))), X).memory_analysis().temp_size_in_bytes


def check_calls(fun: Callable[[Any], Any]) -> None:
    report = explain(fun)(X)
    assert [loop.plan.length for loop in report.loops] == [LENGTH]
    assert all("does not differentiate" in reason for reason in report.not_entered.values())
    ours = checkpoint_loops(fun, checkpoints=5)
    assert temporary_bytes(ours) < temporary_bytes(fun) / 10
    gradients = (jax.grad(lambda x, f=f: jnp.sum(f(x)))(X) for f in (ours, fun))
    np.testing.assert_allclose(*gradients, rtol=1e-10)


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_entered(name: str) -> None:
    check_calls(CALLS[name])


def test_new_remat_is_entered() -> None:
    with option("jax_remat3"):
        check_calls(CALLS["remat"])


# What nobody knows


class Pair(NamedTuple):
    first: Any
    second: Any


class Box:
    def __init__(self, inside: Any) -> None:
        self.inside = inside


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda jaxpr: jaxpr,
    "open": lambda jaxpr: jaxpr.jaxpr,
    "tuples": lambda jaxpr: (1, ("a", (jaxpr,))),
    "named tuple and dict": lambda jaxpr: Pair(1, {"a": [jaxpr]}),
    "object": lambda jaxpr: Box((Box(jaxpr),)),
}

nobody_knows_p = Primitive("nobody_knows")
nobody_knows_p.multiple_results = True


def _run(*operands: Any, holder: Any, run: Any) -> list[Any]:
    return run(*operands)


nobody_knows_p.def_impl(_run)
nobody_knows_p.def_abstract_eval(lambda *avals, holder, run: list(avals))
mlir.register_lowering(nobody_knows_p, mlir.lower_fun(_run, multiple_results=True))


def nobody_knows(fun: Callable[[Any], Any], hold: Callable[[Any], Any], x: Any) -> Any:
    jaxpr = jax.make_jaxpr(fun)(x)
    (result,) = nobody_knows_p.bind(x, holder=Box(hold(jaxpr)), run=jaxpr_as_fun(jaxpr))
    return result


@pytest.mark.parametrize("holder", HOLDERS)
def test_an_unknown_equation_with_loops_is_named(holder: str) -> None:
    def fun(x: Any) -> Any:
        return jax.jit(lambda x: nobody_knows(sines, HOLDERS[holder], x))(x)

    where = r"nobody_knows of test_walk\.py:\d+"
    reason = "jax_revolve does not know what the equation nobody_knows does"
    with pytest.warns(UserWarning, match=f"leaves the loops in .*{where} .*because {reason}"):
        result = checkpoint_loops(fun)(X)
    np.testing.assert_allclose(result, sines(X))
    report = explain(fun)(X)
    ((name, why),) = report.not_entered.items()
    assert re.search(where, name)
    assert why == reason
    assert f"The loops in {name} are left alone: {reason}." in str(report)


def test_an_unknown_equation_without_long_loops_is_not_named() -> None:
    short = lambda x: lax.scan(lambda c, _: (jnp.sin(c), None), x, length=3)[0]  # noqa: E731
    checkpoint_loops(lambda x: nobody_knows(short, HOLDERS["itself"], x))(X)
    checkpoint_loops(lambda x: nobody_knows(jnp.sin, HOLDERS["itself"], x))(X)
    with pytest.warns(UserWarning, match="nobody_knows"):
        checkpoint_loops(lambda x: nobody_knows(short, HOLDERS["itself"], x), min_length=2)(X)


# Options that JAX is about to turn on


@pytest.mark.parametrize("kind", ["custom_vjp", "custom_jvp", "generic_batching"])
@pytest.mark.parametrize("new", [False, True])
def test_derivative_rules_are_left_alone(kind: str, new: bool) -> None:
    def check() -> None:
        fun = ruled(kind)
        (name, reason), *others = explain(fun)(X).not_entered.items()
        assert (name, others) == ("sines", [])
        assert reason == "a derivative rule of its own determines its residuals"
        gradients = (
            jax.grad(lambda x, f=f: jnp.sum(f(x)))(X) for f in (checkpoint_loops(fun), fun)
        )
        np.testing.assert_allclose(*gradients, rtol=1e-10)

    if kind == "generic_batching" and (new or not NEW):
        pytest.skip("an argument, of jax 0.12")
    if new:
        with option(f"jax_{kind}3"):
            check()
    else:
        check()


@pytest.mark.parametrize("kind", ["generic_batching", "jax_custom_vjp3"])
@pytest.mark.usefixtures("compile_quickly")
def test_second_derivatives_of_steps_with_new_rules(kind: str) -> None:
    def check() -> None:
        clipped = jax.custom_vjp(jnp.sin)
        options = {"generic_batching": True} if kind == "generic_batching" else {}
        clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * jnp.cos(x) * x,), **options)

        def program(scan: Any, a: Any) -> Any:
            return jnp.sum(scan(lambda c, _: (clipped(c * a), c**2), a, None, 5)[1])

        loops = partial(checkpointed_scan, checkpoints=2)
        for derivative in (jax.hessian, lambda f: jax.grad(lambda a: jnp.sum(jax.grad(f)(a) ** 2))):
            assert_like_lax(program, derivative, X[::80], scan=loops)

    if kind != "generic_batching":
        with option(kind):
            check()
    elif NEW:
        check()
    else:
        pytest.skip("an argument, of jax 0.12")


@pytest.mark.parametrize("name", ["jax_custom_jvp3", "jax_remat3"])
def test_chains_of_functions_with_new_rules(name: str) -> None:
    with option(name):
        functions = [jax.checkpoint(lambda x: jnp.sin(jax.nn.relu(x) * x))] * 4
        ours = lambda x: jnp.sum(checkpointed_chain(functions, x, checkpoints=1))  # noqa: E731
        plain = lambda x: jnp.sum(reduce(lambda x, f: f(x), functions, x))  # noqa: E731
        for derivative in (jax.grad, lambda f: jax.grad(lambda x: jnp.sum(jax.grad(f)(x) ** 2))):
            results = (jax.jit(derivative(f))(X) for f in (ours, plain))
            np.testing.assert_allclose(*results, rtol=1e-10)


def test_new_scans_are_named() -> None:
    with option("jax_scan3"):
        with pytest.warns(UserWarning, match="Scan3 of calls.*because JAX's new scans"):
            jax.eval_shape(checkpoint_loops(sines), X)
        with pytest.raises(NotImplementedError, match="jax_scan3=True"):
            jax.jit(lambda x: checkpointed_scan(lambda c, _: (jnp.sin(c), None), x, length=3))(X)


def test_rules_of_functions_without_a_module() -> None:
    """As of code that `exec` runs."""

    @jax.custom_vjp
    def twice(x: Any) -> Any:
        return 2 * jnp.sin(x)

    def backward(x: Any, ct: Any) -> Any:
        return (2 * jnp.cos(x) * ct,)

    backward.__module__ = cast(Any, None)
    twice.defvjp(lambda x: (twice(x), x), backward)
    step = lambda c, _: (twice(c), None)  # noqa: E731
    loss = lambda x, scan: scan(step, x, None, 4)[0]  # noqa: E731
    for run in (
        lambda x: loss(x, checkpointed_scan),
        checkpoint_loops(lambda x: loss(x, lax.scan)),
    ):
        assert jnp.allclose(jax.grad(run)(0.3), jax.grad(loss)(0.3, lax.scan))
