"""Barriers on what arithmetic computes and several windows read, for XLA's CPU backend."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.calls import equations

from jax_revolve import bounded_while_loop, checkpointed_scan
from jax_revolve.step import cpu

pytestmark = pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="XLA removes barriers")


def rhs(w: Any, x: Any) -> Any:
    return (jnp.roll(x, -1) - jnp.roll(x, 2)) * jnp.roll(x, 1) - x + w


def two_stages(w: Any, x: Any) -> Any:
    return x + 0.02 * rhs(w, x + 0.01 * rhs(w, x))


def inside(w: Any, x: Any) -> Any:
    return lax.fori_loop(0, 2, lambda _, x: two_stages(w, x), x)


def padded(w: Any, x: Any) -> Any:
    y = jnp.pad(jnp.sin(w * x), 1)
    return 0.5 * (y[2:] + y[:-2]) + 0.1 * x[::-1]


@pytest.mark.parametrize(("step", "count"), [(two_stages, 1), (inside, 1), (padded, 1)])
def test_a_barrier_on_each_value_that_windows_read(step: Any, count: int) -> None:
    def run(scan: Any, w: Any, x: Any) -> Any:
        return jnp.sum(scan(lambda x, _: (step(w, x), None), x, None, 6)[0] ** 2)

    x = jnp.sin(jnp.arange(8.0))
    loop = jax.make_jaxpr(
        lambda x: checkpointed_scan(lambda x, _: (step(1.5, x), None), x, None, 6)
    )
    barriers = [e for e in equations(loop(x)) if e.primitive.name == "optimization_barrier"]
    assert len(barriers) == count

    for derivative in (jax.grad, lambda f, n: jax.jacfwd(jax.grad(f, n), n)):
        ours, theirs = (
            derivative(lambda w, x, s=s: run(s, w, x), (0, 1))(1.5, x)
            for s in (checkpointed_scan, lax.scan)
        )
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), ours, theirs)


def test_windows_in_a_batch_and_in_a_while_loop() -> None:
    def run(loop: Any, x: Any, bound: Any) -> Any:
        step = lambda s: (s[0] + 1, two_stages(1.5, s[1]))  # noqa: E731
        return jnp.sum(loop(lambda s: s[0] < bound, step, (0, x))[1] ** 2)

    xs, bounds = jnp.sin(jnp.arange(24.0)).reshape(3, 8), jnp.array([4, 1, 6])
    grads = jax.vmap(
        jax.grad(lambda x, n: run(lambda *a: bounded_while_loop(*a, max_steps=6), x, n))
    )
    for x, bound, grad in zip(xs, bounds, grads(xs, bounds), strict=True):
        by_python = lambda cond, body, s, n=int(bound): [s := body(s) for _ in range(n)][-1]  # noqa: E731
        expected = jax.grad(lambda x, n=bound, f=by_python: run(f, x, n))(x)
        np.testing.assert_allclose(grad, expected, rtol=1e-9)


def test_a_program_without_such_values_stays_the_same_object() -> None:
    closed = jax.make_jaxpr(lambda x: jnp.roll(x, 1) * jnp.sin(x))(jnp.ones(3))
    assert cpu._rewritten(closed, cpu._windows_apart) is closed
