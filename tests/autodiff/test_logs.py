"""What derivative rules log in the reverse sweep, which a pullback's `with_logs` returns."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.calls import option

from jax_revolve import (
    bounded_while_loop,
    checkpoint_loops,
    checkpointed_fori_loop,
    checkpointed_scan,
    host_scan,
)

pytestmark = [
    pytest.mark.usefixtures("compile_quickly"),
    pytest.mark.skipif(
        not hasattr(jax.custom_vjp, "defvjp_with_logs"), reason="rules of this JAX log nothing"
    ),
]

X = jnp.linspace(0.3, 0.7, 3)
CHECKPOINTED = partial(checkpointed_scan, checkpoints=2)
BLOCKS = partial(checkpointed_scan, checkpoints=2, block_size=2)


def sine() -> Any:
    """Logs a number that is not linear in the cotangents, and an integer."""
    f: Any = jax.custom_vjp(jnp.sin)

    def backward(x: Any, ct: Any) -> Any:
        return (jnp.cos(x) * ct,), {"norm": {"ct": jnp.sum(ct**2), "x": x}, "three": 3}

    f.defvjp_with_logs(lambda x: (jnp.sin(x), x), backward)
    return f


def final(scan: Any, x: Any, step: Any = None, **options: Any) -> Any:
    step = step or sine()
    c, ys = scan(lambda c, t: (step(c * t), c), x, jnp.linspace(1.0, 2.0, 5), **options)
    return jnp.sum(c) + jnp.sum(jnp.sin(ys))


def with_branches(scan: Any, x: Any) -> Any:
    f = sine()
    return final(scan, x, lambda c: lax.cond(c[0] > 0.5, f, lambda c: 2 * c, c))


def rewritten(scan: Any, x: Any, **budget: Any) -> Any:
    fun = partial(final, lax.scan)
    return fun(x) if scan is lax.scan else checkpoint_loops(fun, min_length=2, **budget)(x)


PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "scan": final,
    "reversed": partial(final, reverse=True),
    "in a scan": lambda scan, x: final(scan, x, lambda c: c * final(scan, c)),
    "in lax.scan": lambda scan, x: final(lax.scan, x, lambda c: c * final(scan, c)),
    "branches": with_branches,
    "checkpoint": lambda scan, x: jax.checkpoint(partial(final, scan))(x),
    "found": partial(rewritten, checkpoints=2),
    "sharing": partial(rewritten, memory="1kB"),
}


def pulled(fun: Any, x: Any, ct: Any = 1.0) -> Any:
    pullback: Any = jax.vjp(fun, x)[1]
    return pullback.with_logs(ct)


def assert_equal(found: Any, expected: Any) -> None:
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-10), found, expected)


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_they_are_stacked(program: Any, is_new: bool) -> None:
    with option("jax_custom_vjp3") if is_new else nullcontext():
        expected = pulled(partial(program, lax.scan), X)
        assert expected[1]["norm"] is not None
        for scan in [checkpointed_scan, BLOCKS] if program is final else [CHECKPOINTED]:
            assert_equal(pulled(partial(program, scan), X), expected)


TRANSFORMED: dict[str, Callable[[Any, Any], Any]] = {
    "jit": lambda f, x: jax.jit(partial(pulled, f))(x),
    "vmap": lambda f, x: jax.vmap(partial(pulled, f))(jnp.stack([x, 2 * x])),
    "vmap of the pullback": lambda f, x: jax.vmap(partial(pulled, f, x))(jnp.arange(1.0, 3)),
    "jvp": lambda f, x: jax.jvp(lambda x: floats(pulled(f, x)), (x,), (x,)),
    "grad": lambda f, x: jax.grad(lambda x: sum(jnp.sum(v**2) for v in floats(pulled(f, x))))(x),
    "grad of the logs": lambda f, x: jax.grad(lambda x: jnp.sum(pulled(f, x)[1]["norm"]["ct"]))(x),
}


def floats(tree: Any) -> Any:
    return [x for x in jax.tree.leaves(tree) if jnp.issubdtype(jnp.asarray(x).dtype, jnp.inexact)]


@pytest.mark.parametrize("transform", TRANSFORMED.values(), ids=TRANSFORMED)
def test_they_are_transformed(transform: Any) -> None:
    ours, expected = (transform(partial(final, scan), X) for scan in (CHECKPOINTED, lax.scan))
    assert_equal(ours, expected)


def test_a_fori_loop() -> None:
    f = sine()
    ours, expected = (
        pulled(lambda x, loop=loop: jnp.sum(loop(0, 4, lambda _, c: f(c), x)), X)
        for loop in (checkpointed_fori_loop, lax.fori_loop)
    )
    assert_equal(ours, expected)


def test_a_loop_of_the_host() -> None:
    assert_equal(pulled(partial(final, host_scan), X), pulled(partial(final, lax.scan), X))


def test_a_while_loop_refuses_them_where_they_are_used() -> None:
    """Its number of steps is unknown. A gradient, which asks for none, is right."""
    f = sine()

    def run(x: Any) -> Any:
        body = lambda s: (s[0] + 1, f(s[1]))  # noqa: E731
        return jnp.sum(bounded_while_loop(lambda s: s[0] < 3, body, (0, x), max_steps=5)[1])

    _, logs = pulled(lambda x: final(CHECKPOINTED, x, lambda c: c + run(c)), X)
    assert_equal(jax.grad(lambda x: jnp.sum(jnp.sin(jnp.sin(jnp.sin(x)))))(X), jax.grad(run)(X))
    with pytest.raises(NotImplementedError, match="with_logs cannot give 'norm' of the steps of"):
        jnp.sum(logs["norm"])
    with pytest.raises(NotImplementedError, match="number is not known when it is traced"):
        logs["norm"]["ct"]
