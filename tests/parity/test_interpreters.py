"""What JAX's interpreters of programs make of our equations: the same as of lax's loops."""

import importlib
import sys
import traceback
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify, io_callback, sparse

from jax_revolve import bounded_while_loop, checkpointed_chain, checkpointed_scan
from jax_revolve.autodiff.loop import loop_p

pytestmark = pytest.mark.usefixtures("compile_quickly")

CHECKPOINTED = partial(checkpointed_scan, checkpoints=2)


# checkify


def checked_scan(scan: Any, x: Any, xs: Any) -> Any:
    """NaN if an x is negative, division by zero at 0, out of bounds at 9, and a check of the
    carry's size."""

    def step(u: Any, t: Any) -> Any:
        checkify.check(~(u >= 30), "u is {u}", u=u)
        return jnp.sin(u) * jnp.sqrt(t + 1) + xs[jnp.int32(t)], u / t

    return scan(step, x, xs)[0]


STARTS = {
    "nothing wrong": (0.5, [1.0, 1.0, 2.0, 1.0]),
    "nan": (0.5, [1.0, -2.0, 1.0, 1.0]),
    "index": (0.5, [1.0, 1.0, 9.0, 1.0]),
    "zero": (0.5, [1.0, 0.0, 1.0, 1.0]),
}
DERIVATIVES: dict[str, Callable[[Any], Any]] = {
    "value": lambda fun: fun,
    "grad": jax.grad,
    "second": lambda fun: jax.grad(lambda *at: jax.grad(fun)(*at) ** 2),
    "jvp of grad": lambda fun: lambda x, xs: jax.jvp(lambda x: jax.grad(fun)(x, xs), (x,), (x,)),
}


def errors(fun: Any, *starts: Any, of: Any = checkify.all_checks) -> list[str | None]:
    """The error from each of these arguments. It is compiled once."""
    checked = jax.jit(checkify.checkify(fun, errors=of))
    messages = (checked(*map(jnp.asarray, start))[0].get() for start in starts)
    return [message and message.partition(" (`check`")[0] for message in messages]


@cache
def errors_of_lax(derivative: str) -> list[str | None]:
    return errors(DERIVATIVES[derivative](partial(checked_scan, lax.scan)), *STARTS.values())


@pytest.mark.parametrize("scan", [checkpointed_scan, CHECKPOINTED])
@pytest.mark.parametrize("derivative", DERIVATIVES)
def test_errors(scan: Any, derivative: str) -> None:
    ours = errors(DERIVATIVES[derivative](partial(checked_scan, scan)), *STARTS.values())
    assert ours == errors_of_lax(derivative)
    assert ours[0] is None
    assert None not in ours[1:]


@pytest.mark.parametrize("derivative", DERIVATIVES)
def test_checks_of_the_user(derivative: str) -> None:
    """Under `jax.grad`, `lax.scan` forgets them."""
    fun = DERIVATIVES[derivative](partial(checked_scan, CHECKPOINTED))
    assert errors(fun, (50.0, [1.0, 2.0]), of=checkify.user_checks) == ["u is 50.0"]


def test_gradient_of_checked_function() -> None:
    """Interpreted, it is still a loop with checkpoints."""
    checked = checkify.checkify(partial(checked_scan, CHECKPOINTED), errors=checkify.all_checks)
    xs = jnp.ones(5)
    assert "checkpointed_loop" in str(jax.make_jaxpr(checked)(0.5, xs))
    gradient = jax.grad(lambda x: checked(x, xs)[1])(0.5)
    expected = jax.grad(lambda x: checked_scan(lax.scan, x, xs))(0.5)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)


@pytest.mark.parametrize("start", [0.5, 3.5, 5.0])
def test_checks_in_a_condition(start: float) -> None:
    def run(loop: Any, x: Any) -> Any:
        def cond(state: Any) -> Any:
            checkify.check(state[1] < 4, "the condition saw {x}", x=state[1])
            return state[0] < 3

        return loop(cond, lambda state: (state[0] + 1, state[1] + 0.3), (0, x))[1]

    ours = partial(run, partial(bounded_while_loop, max_steps=9))
    expected = errors(partial(run, lax.while_loop), (start,))
    assert errors(ours, (start,)) == expected
    assert errors(jax.grad(ours), (start,)) == expected


def test_checks_in_a_chain() -> None:
    def layer(x: Any) -> Any:
        checkify.check(x < 2, "x is {x}", x=x)
        return x * 1.5

    run = lambda x: checkpointed_chain([layer, layer], x, checkpoints=1)  # noqa: E731
    for fun in (run, jax.grad(run)):
        assert (errors(fun, (1.8,))[0] or "").startswith("x is 2.7")


def test_checks_of_examples_are_refused() -> None:
    """As by lax: a step of an example that is done would be checked, too."""

    def run(x: Any) -> Any:
        def body(x: Any) -> Any:
            checkify.check(x < 3, "x is {x}", x=x)
            return x + 1.0

        return bounded_while_loop(lambda x: x < 3, body, x, max_steps=9)

    for fun in (jax.vmap(run), jax.vmap(jax.grad(run))):
        with pytest.raises(ValueError, match="checkify-of-vmap-of-while"):
            errors(fun, ([0.0, 1.0],))
    if jax.__version_info__ >= (0, 12):  # before, it is an error of lax's loop, too
        checked = jax.vmap(checkify.checkify(run))
        assert checked(jnp.array([0.0, 1.0]))[0].get() is None


# Key reuse


@pytest.mark.parametrize("scan", [checkpointed_scan, CHECKPOINTED])
def test_keys(scan: Any) -> None:
    def of_one(key: Any, x: Any) -> Any:
        return scan(lambda u, _: (u * x + jax.random.normal(key), None), x, length=3)[0]

    def of_many(key: Any, x: Any) -> Any:
        step = lambda u, key: (u * x + jax.random.normal(key), None)  # noqa: E731
        return scan(step, x, jax.random.split(key, 3))[0]

    def of_carry(key: Any, x: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            key, own = jax.random.split(state[0])
            return (key, state[1] * x + jax.random.normal(own)), None

        return scan(step, (key, x), length=3)[0][1]

    def twice(key: Any, x: Any) -> Any:
        return of_carry(key, x) + jax.random.normal(key)

    with jax.debug_key_reuse(True):
        for transform in (lambda fun: fun, lambda fun: jax.grad(fun, 1)):
            for good in (of_many, of_carry):
                jax.jit(transform(good))(jax.random.key(1), 0.5)
            for bad in (of_one, twice):
                with pytest.raises(jax.errors.KeyReuseError):
                    jax.jit(transform(bad))(jax.random.key(1), 0.5)


# Sparse arrays


def test_sparse_arrays() -> None:
    matrix = sparse.BCOO.fromdense(jnp.array([[0.0, 1.0], [2.0, 0.0]]))

    def run(scan: Any, data: Any, x: Any) -> Any:
        @sparse.sparsify
        def final(matrix: Any, x: Any) -> Any:
            return scan(lambda u, _: (jnp.sin(matrix @ u), None), x, length=5)[0]

        return final(sparse.BCOO((data, matrix.indices), shape=matrix.shape), x).sum()

    arguments = (matrix.data, jnp.array([0.3, 0.4]))
    assert "checkpointed_loop" in str(jax.make_jaxpr(partial(run, CHECKPOINTED))(*arguments))
    for derivative in (lambda fun: fun, lambda fun: jax.grad(fun, (0, 1))):
        ours, theirs = (derivative(partial(run, s))(*arguments) for s in (CHECKPOINTED, lax.scan))
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), ours, theirs)


# All of them


def tables_with(primitive: Any) -> dict[int, str]:
    """The tables of rules in JAX that have this primitive, by their identity."""
    return {
        id(value): f"{name}.{attribute}"
        for name, module in list(sys.modules.items())
        if name.startswith("jax.") and module is not None
        for attribute, value in vars(module).items()
        if isinstance(value, dict) and primitive in value
    }


REFUSING = {
    "jax._src.core": "checks of types, beside the abstract evaluation",
    "jax._src.interpreters": "rules beside those for the same transformation that we have",
    "jax.interpreters.partial_eval": "jax.checkpoint, which computes a loop again as it is",
    "jax._src.state.discharge": "references, which no equation of ours takes",
    "jax._src.pallas": "kernels, which refuse what they do not know",
    "jax._src.thunky": "another compiler, which refuses what it does not know",
}
"""Why a table may do without our equations: by the module that it is in."""


def test_no_interpreter_is_left_out() -> None:
    """Of those in JAX that mention a scan in their source."""
    root = Path(jax.__file__).parent
    for file in root.rglob("*.py"):
        if "scan_p" in file.read_text() and "pallas" not in file.parts:
            importlib.import_module(
                ".".join(("jax", *file.relative_to(root).with_suffix("").parts)).removesuffix(
                    ".__init__"
                )
            )
    checkpointed_scan(lambda u, _: (u, None), 0.0, length=2)  # registers in what was imported now
    known = tables_with(loop_p)
    left_out = [name for key, name in tables_with(lax.scan_p).items() if key not in known]
    assert not [name for name in left_out if not name.startswith(tuple(REFUSING))]
    assert {name.rpartition(".")[2] for name in known.values()} >= {
        *("error_checks", "key_reuse_signatures", "sparse_rules_bcoo"),
    }


# Loops that print, errors


def test_a_batched_condition_prints_as_in_lax() -> None:
    counts: list[int] = []

    def count(loop: Any) -> int:
        counts.clear()

        def cond(x: Any) -> Any:
            jax.debug.callback(lambda _: counts.append(1), x)
            return x < 3

        jax.vmap(lambda x: loop(cond, lambda x: x + 1, x))(jnp.arange(2))
        jax.effects_barrier()
        return len(counts)

    assert count(partial(bounded_while_loop, max_steps=9)) == count(lax.while_loop) > 0


@pytest.mark.parametrize("ordered", [False, True])
def test_a_batched_while_loop_refuses_effects_as_lax(ordered: bool) -> None:
    def run(loop: Any) -> Any:
        def body(x: Any) -> Any:
            io_callback(lambda _: None, None, x, ordered=ordered)
            return x + 1

        return jax.vmap(lambda x: loop(lambda x: x < 3, body, x))(jnp.arange(2))

    messages = []
    for loop in (lax.while_loop, partial(bounded_while_loop, max_steps=9)):
        with pytest.raises(Exception, match="not supported") as caught:
            run(loop)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("transform", [lambda fun: fun, jax.grad, jax.jit])
def test_tracebacks_show_the_frames_of_lax(transform: Any) -> None:
    def number_of_frames(scan: Any) -> int:
        def step(u: Any, _: Any) -> Any:
            return u + jnp.dot(jnp.ones(2), jnp.ones(3)), None

        with pytest.raises(TypeError) as caught:
            transform(lambda x: scan(step, x, length=3)[0])(1.0)
        return len(traceback.extract_tb(caught.value.__traceback__))

    assert number_of_frames(CHECKPOINTED) == number_of_frames(lax.scan)
