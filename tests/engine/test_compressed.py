"""Gradients with checkpoints in fewer bits, beside `lax.scan`'s and `lax.while_loop`'s."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.compiled import temporaries
from support.evaluations import executed

from jax_revolve import (
    Compressed,
    Disk,
    HostMemory,
    bounded_while_loop,
    checkpointed_scan,
    drift,
    explain,
    host_scan,
    plan,
)

pytestmark = [pytest.mark.usefixtures("default_precision"), pytest.mark.unchecked]

U = jnp.linspace(0.1, 2.0, 128, dtype=jnp.float32)
LENGTH = 30
ERRORS = {"bfloat16": 5e-3, "float16": 1e-3, "int8": 2e-2}
IDENTITY = (lambda x: x, lambda code: code)


def step(u: Any, _: Any) -> Any:
    return u + 0.1 * jnp.sin(u) + 0.05 * (jnp.roll(u, 1) - u), None


def loss(u: Any, scan: Any = lax.scan) -> Any:
    return jnp.sum(scan(step, u, None, LENGTH)[0] ** 2)


def of_while(u: Any, **how: Any) -> Any:
    """A loop of 27 steps, less than its bound."""
    body = lambda s: (s[0] + 1, step(s[1], None)[0])  # noqa: E731
    goes_on = lambda s: s[0] < LENGTH - 3  # noqa: E731
    return jnp.sum(bounded_while_loop(goes_on, body, (0, u), max_steps=LENGTH, **how)[1] ** 2)


def encoded(format: Any, place: Any = None, **how: Any) -> Any:
    how = {"checkpoints": 4} | how
    storage = Compressed(format, place, drift_tol=None if isinstance(format, str) else 0.1)
    return partial(checkpointed_scan, storage=storage, **how)


def error(found: Any, exact: Any) -> float:
    return float(jnp.linalg.norm(found - exact) / jnp.linalg.norm(exact))


@pytest.mark.parametrize("format", ERRORS)
@pytest.mark.parametrize("how", [{}, {"checkpoints": "all"}, {"block_size": 4}], ids=str)
def test_a_gradient(format: Any, how: Any) -> None:
    of = partial(loss, scan=encoded(format, **how))
    value, found = jax.jit(jax.value_and_grad(of))(U)
    assert value == jax.jit(loss)(U)
    assert 1e-5 < error(found, jax.grad(loss)(U)) < ERRORS[format]


@pytest.mark.parametrize("place", [HostMemory(transfer=1), Disk], ids=["host", "disk"])
def test_in_a_storage(place: Any, tmp_path: Any) -> None:
    place = place(tmp_path, transfer=1) if place is Disk else place
    of = partial(loss, scan=encoded("int8", place, checkpoints=2))
    assert 1e-5 < error(jax.jit(jax.grad(of))(U), jax.grad(loss)(U)) < 2e-2
    how = {"storage": Compressed("int8", place), "checkpoints": 2}
    found = jax.jit(jax.grad(partial(of_while, **how)))(U)
    assert 1e-5 < error(found, jax.grad(of_while)(U)) < 2e-2
    if isinstance(place, HostMemory):
        of = partial(loss, scan=encoded("int8", place, checkpoints=0))
        assert 1e-5 < error(jax.jit(jax.grad(of))(U), jax.grad(loss)(U)) < 2e-2


def test_without_loss_nothing_changes() -> None:
    """A pair of functions that keeps all bits."""
    exact = jax.jit(jax.grad(partial(loss, scan=partial(checkpointed_scan, checkpoints=4))))(U)
    for how in ({}, {"block_size": 3}):
        found = jax.jit(jax.grad(partial(loss, scan=encoded(IDENTITY, **how))))(U)
        np.testing.assert_allclose(found, exact, rtol=2e-6)
    how = {"storage": Compressed(IDENTITY), "checkpoints": 4}
    np.testing.assert_allclose(
        jax.jit(jax.grad(partial(of_while, **how)))(U), jax.grad(of_while)(U), rtol=2e-6
    )


@pytest.mark.parametrize("k", [1, 4])
def test_the_last_step_is_exact(k: int) -> None:
    def of(weights: Any, scan: Any = lax.scan) -> Any:
        return jnp.sum(scan(lambda u, w: (step(u, w)[0] * w, None), U, weights)[0] ** 2)

    weights = jnp.ones(LENGTH)
    found = jax.grad(partial(of, scan=encoded("int8", block_size=k)))(weights)
    exact = jax.grad(of)(weights)
    assert float(found[-1]) == pytest.approx(float(exact[-1]), rel=1e-6)
    assert float(found[1]) != pytest.approx(float(exact[1]), rel=1e-6)
    assert float(found[1]) == pytest.approx(float(exact[1]), rel=2e-2)


def test_derivatives_of_any_order() -> None:
    of, v = partial(loss, scan=encoded("int8")), jnp.cos(U)
    exact = jax.jvp(jax.grad(loss), (U,), (v,))[1]
    for found in (
        jax.jvp(jax.grad(of), (U,), (v,))[1],
        jax.grad(lambda u: jnp.vdot(jax.grad(of)(u), v))(U),
        jax.grad(lambda u: jax.jvp(of, (u,), (v,))[1])(U),
    ):
        assert 1e-5 < error(found, exact) < 2e-2


def test_under_vmap() -> None:
    """Blocks lie within examples."""
    of, many = partial(loss, scan=encoded("int8")), jnp.stack([U, 1e-4 * U, 5 - U])
    one_by_one = jnp.stack([jax.grad(of)(u) for u in many])
    exact = jax.vmap(jax.grad(loss))(many)
    for found in (jax.vmap(jax.grad(of))(many), jax.grad(lambda u: jnp.sum(jax.vmap(of)(u)))(many)):
        np.testing.assert_allclose(found, one_by_one, rtol=1e-4)
        assert max(map(error, found, exact)) < 5e-2


def test_evaluations_are_those_of_the_plan() -> None:
    def of(a: Any, note: Any) -> Any:
        noted = lambda u, i: (note(i) or step(u, None)[0], None)  # noqa: E731
        return jnp.sum(encoded("int8")(noted, a * U, jnp.arange(LENGTH))[0])

    assert len(executed(of)) == plan(LENGTH, 4).evaluations


def test_bytes_of_slots() -> None:
    width, length = 64 * 256, 60
    state = jax.ShapeDtypeStruct((width,), jnp.float32)

    def taken(format: Any, checkpoints: int) -> int:
        storage = None if format is None else Compressed(format)
        how = {"checkpoints": checkpoints, "storage": storage}
        of = lambda u: jnp.sum(checkpointed_scan(step, u, length=length, **how)[0])  # noqa: E731
        return temporaries(jax.grad(of), state)

    per_slot = {f: (taken(f, 20) - taken(f, 10)) / 10 for f in (None, "bfloat16", "int8")}
    assert per_slot[None] == pytest.approx(4 * width, abs=100)
    assert per_slot["bfloat16"] == pytest.approx(2 * width, abs=100)
    assert per_slot["int8"] == pytest.approx(width * 17 / 16, abs=100)
    # Planning counts these bytes.
    how = {"storage": Compressed("int8"), "checkpoints": 10}
    of = lambda u: jnp.sum(checkpointed_scan(step, u, length=length, **how)[0])  # noqa: E731
    assert explain(of)(state).loops[0].sizes.checkpoint == width * 17 // 16 + 4


@pytest.mark.parametrize("format", [*ERRORS, IDENTITY], ids=[*ERRORS, "functions"])
def test_leaves_of_zeros_are_exact(format: Any) -> None:
    """A simulation begins at rest. Their drift was 0/0, and the gradient NaN."""
    grad = jax.grad(partial(loss, scan=encoded(format)))
    np.testing.assert_array_equal(grad(0 * U), jax.grad(loss)(0 * U))
    moved = partial(of_while, storage=Compressed("int8", throw=True), checkpoints=4)
    assert jnp.isfinite(jax.grad(lambda u: moved(u) + jnp.sum(u))(0 * U)).all()


def test_an_overflow_is_nan_or_an_error() -> None:
    def of(u: Any, **how: Any) -> Any:
        storage = Compressed("float16", **how)
        return loss(1e5 * u, partial(checkpointed_scan, storage=storage, checkpoints=4))

    assert jnp.isnan(jax.grad(of)(U)).all()
    with pytest.raises(jax.errors.JaxRuntimeError, match="Checkpoints in float16"):
        jax.block_until_ready(jax.jit(jax.grad(partial(of, throw=True)))(U))


def test_drift() -> None:
    logistic = lambda x, _: (3.7 * x * (1 - x), None)  # noqa: E731
    start = jnp.linspace(0.1, 0.2, 64)
    found = drift(logistic, Compressed("int8"), start, length=100, block_size=20)
    assert found.drift.shape == (5,)
    assert found.drift.min() > 0.1
    fall = lambda x, _: (0.9 * x, None)  # noqa: E731
    found = drift(fall, Compressed("int8"), start, length=100, block_size=20)
    assert 1e-5 < found.drift.max() < 1.01 / 254
    assert found.largest_block == 20
    tight = Compressed("int8", drift_tol=1e-6)
    assert drift(fall, tight, start, length=100, block_size=20).largest_block == 0


def test_what_is_refused() -> None:
    with pytest.raises(
        ValueError, match="storage must not be Compressed where an inverse is given"
    ):
        encoded("int8")(step, U, length=9, inverse=lambda u, *_: u)
    with pytest.raises(NotImplementedError, match="storage must not be Compressed for host_scan"):
        host_scan(step, U, length=9, storage=Compressed("int8"))
