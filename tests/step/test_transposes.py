"""Weight gradients as one product, rather than the transpose of one, for XLA's CPU backend."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.calls import equations

from jax_revolve import checkpointed_scan
from jax_revolve._compat.jaxprs import call_jaxpr
from jax_revolve.step.cpu import without_transposes

x, w = jnp.sin(jnp.arange(6.0)).reshape(2, 3), jnp.cos(jnp.arange(9.0)).reshape(3, 3)


def plain(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w)


def in_a_loop(w: Any, x: Any) -> Any:
    return lax.scan(lambda x, _: (plain(w, x), None), x, None, 2)[0]


def batched(w: Any, x: Any) -> Any:
    return plain(w, jnp.einsum("bij,bkj->bik", x[:, None] * w, w[None] + x[:, :, None])[:, 0])


@pytest.mark.parametrize("step", [plain, in_a_loop, batched])
def test_derivatives_are_those_of_jax(step: Any) -> None:
    def run(scan: Any, w: Any, x: Any) -> Any:
        return jnp.sum(scan(lambda x, _: (step(w, x), None), x, None, 5)[0] ** 2)

    for derivative in (jax.grad, lambda f, n: jax.jacfwd(jax.grad(f, n), n)):
        ours, theirs = (
            derivative(lambda w, x, s=s: run(s, w, x), (0, 1))(w, x)
            for s in (checkpointed_scan, lax.scan)
        )
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), ours, theirs)


def test_a_loop_of_ours_in_a_step_keeps_its_own_step() -> None:
    """Its forward and its reverse sweep hold the same residuals."""

    def run(scan: Any, w: Any, x: Any) -> Any:
        inner = lambda x, _: (jnp.tanh((w @ x.T).T), x)  # noqa: E731
        outer = lambda x, _: ((w @ scan(inner, x, None, 3)[1].sum(0).T).T, None)  # noqa: E731
        return jnp.sum(scan(outer, x, None, 4)[0] ** 2)

    ours, theirs = (jax.grad(run, (1, 2))(scan, w, x) for scan in (checkpointed_scan, lax.scan))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), ours, theirs)


@pytest.mark.parametrize(
    ("product", "left"),
    [
        (lambda a, b: (a @ b).T, 0),
        (lambda a, b: lax.dot_general(a, b, (((0,), (1,)), ((), ()))).T, 0),
        (lambda a, b: jnp.swapaxes(jnp.stack([a, b]) @ jnp.stack([b, a]), 1, 2), 0),
        (lambda a, b: jnp.swapaxes(jnp.tensordot(a, jnp.stack([b, a]), (1, 1)), 0, 1), 1),
        (lambda a, b: (a @ b).T + a @ b, 0),
        (lambda a, b: jnp.stack(((c := a @ b), c.T)), 1),
        (lambda a, b: jnp.dot(a, b, precision=("highest", "default")).T, 1),
        (lambda a, b: a.T, 1),
    ],
)
def test_which_transposes_go(product: Any, left: int) -> None:
    closed = jax.make_jaxpr(product)(w, w + 1)
    changed = without_transposes(closed)
    assert [e.primitive.name for e in equations(changed)].count("transpose") == left
    assert (changed is closed) == bool(left)
    assert list(map(str, changed.out_avals)) == list(map(str, closed.out_avals))
    (made,) = call_jaxpr(changed)(w, w + 1)
    np.testing.assert_allclose(made, product(w, w + 1), rtol=1e-12)


def test_a_product_that_is_a_result_itself_stays() -> None:
    closed = jax.make_jaxpr(lambda a: ((c := a @ a), c.T))(w)
    assert without_transposes(closed) is closed
