"""`certify`: estimates beside true errors, and what a certificate costs."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.compiled import WIDTH, compiled, stencil, temporaries

from jax_revolve import bounded_while_loop, certify, checkpointed_scan
from jax_revolve.typing import Certificate

KEYS = jax.random.key(7)


def until(x: Any, loop: Any = lax.while_loop) -> Any:
    far = lambda state: (state[0] < 40) & (jnp.sum(state[1] ** 2) < 1e6)  # noqa: E731
    grow = lambda state: (state[0] + 1, state[1] + 0.1 * jnp.sin(state[1]))  # noqa: E731
    return jnp.sum(loop(far, grow, (0, x))[1] ** 2)


exact_of_until = jax.grad(partial(until, loop=partial(bounded_while_loop, max_steps=50)))


def pendulum(params: Any, steps: int, scan: Any = lax.scan) -> Any:
    def step(state: Any, _: Any) -> Any:
        angle, speed = state
        speed = speed - 0.1 * params["gravity"] * jnp.sin(angle) - params["drag"][0] * speed
        return (angle + 0.1 * speed, speed), None

    angle, speed = scan(step, (params["start"], 0 * params["start"]), None, steps)[0]
    return jnp.sum(angle**2 + speed)


PARAMS = {
    "start": jnp.linspace(0.1, 1.0, 12),
    "gravity": jnp.array(0.3),
    "drag": (jnp.array(0.02), "a name"),
}


def gradient_of(fun: Any) -> Any:
    """Of all leaves but names."""

    def gradient(params: Any, *args: Any) -> Any:
        of = lambda p: fun({**p, "drag": (p["drag"], "")}, *args)  # noqa: E731
        found = jax.grad(of)({**params, "drag": params["drag"][0]})
        return {**found, "drag": (found["drag"], None)}

    return gradient


def relative(wrong: Any, exact: Any) -> Any:
    return jnp.linalg.norm(wrong - exact) / jnp.linalg.norm(wrong)


@pytest.mark.parametrize("x64", [False, True])
def test_an_exact_gradient(x64: bool) -> None:
    with jax.enable_x64(x64):
        most, x = (1e-12, 1e-6)[not x64], jnp.linspace(0.1, 1.0, 30)
        assert 0 < certify(until, exact_of_until)(x).error < most
        params = jax.tree.map(
            lambda p: p if isinstance(p, str) else jnp.asarray(p, x.dtype), PARAMS
        )
        exact = gradient_of(partial(pendulum, scan=partial(checkpointed_scan, checkpoints=5)))
        found = certify(pendulum, exact)(params, 50)
        assert found.error < most
        assert max(part.error for part in found.parts.values()) < 10 * most
        assert abs(found.cosine - 1) < most


def test_the_interval_holds_the_error_in_95_of_100_cases() -> None:
    x = jnp.linspace(0.1, 1.0, 30)
    exact = exact_of_until(x)
    wrong = exact + 0.1 * jnp.roll(exact, 5)
    found = jax.jit(jax.vmap(lambda key: certify(until, lambda _: wrong, key=key)(x)))
    found = jax.tree.map(np.asarray, found(jax.random.split(KEYS, 2000)))
    error = float(relative(wrong, exact))
    inside = (found.low < error) & (error < found.high)
    assert 0.94 < np.mean(inside) < 0.96
    assert np.mean(found.error**2) == pytest.approx(error**2, rel=0.05)
    assert np.mean(error < found.low) == pytest.approx(0.025, abs=0.01)
    cosine = jnp.vdot(wrong, exact) / (jnp.linalg.norm(wrong) * jnp.linalg.norm(exact))
    assert np.median(found.cosine) == pytest.approx(float(cosine), abs=2e-3)


@pytest.mark.parametrize("leaf", ["['start']", "['gravity']", "['drag'][0]"])
def test_a_wrong_leaf_is_named(leaf: str) -> None:
    exact = gradient_of(pendulum)(PARAMS, 50)
    double = lambda p, g: 2 * g if jax.tree_util.keystr(p) == leaf else g  # noqa: E731
    wrong = jax.tree_util.tree_map_with_path(double, exact)
    found = certify(pendulum, lambda *_: wrong)(PARAMS, 50)
    errors = {name: float(part.error) for name, part in found.parts.items()}
    assert errors.pop(f"argument 0{leaf}") == pytest.approx(0.5, rel=0.7)
    assert errors.pop("argument 0") == pytest.approx(float(found.error))
    assert max(errors.values()) < 1e-6
    assert f"argument 0{leaf}: error" in str(found)


def test_arguments() -> None:
    def fun(a: Any, n: int, b: Any, *, scale: float = 1.0) -> Any:
        return jnp.sum(jnp.tanh(a["w"] @ b) * scale) ** n

    args = {"w": jax.random.normal(KEYS, (4, 5))}, 2, jnp.linspace(0, 1, 5)
    exact = jax.grad(fun, (2, 0))
    wrong = lambda *args, **how: (jnp.zeros(5), exact(*args, **how)[1])  # noqa: E731
    found = certify(fun, wrong, (-1, 0))(*args, scale=0.5)
    assert list(found.parts) == ["argument 2", "argument 0", "argument 0['w']"]
    assert found.parts["argument 0"].error < 1e-6
    assert np.isinf(found.parts["argument 2"].error)  # of a norm of 0
    assert certify(lambda x: 0.0 * x, jax.grad(lambda x: 0.0 * x))(1.0).error == 0


def test_complex_leaves() -> None:
    def fun(z: Any) -> Any:
        return jnp.sum(jnp.abs(jnp.sin(z)) ** 2)

    z = jnp.linspace(0, 1, 9) + 1j
    exact = jax.grad(fun)(z)
    assert certify(fun, jax.grad(fun))(z).error < 1e-6
    found = certify(fun, lambda z: jax.grad(fun)(z).conj(), probes=500)(z)
    assert found.low < relative(exact.conj(), exact) < found.high


def counted(fun: Any) -> tuple[Any, list[None]]:
    """A function of a scan, with a count of the steps that run."""
    count: list[None] = []

    def scan(f: Any, *args: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            jax.debug.callback(lambda: count.append(None))
            return f(carry, x)

        return lax.scan(step, *args)

    return partial(fun, scan=scan), count


@pytest.mark.parametrize("memory", [None, "1B"])
def test_evaluations(memory: Any) -> None:
    fun, count = counted(pendulum)
    certify(fun, lambda *_: PARAMS, memory=memory)(PARAMS, 10)
    jax.effects_barrier()
    assert len(count) == 8 * 10 * (1 if memory is None else 3)
    count.clear()
    certify(fun, lambda *_: PARAMS, memory="1GB")(PARAMS, 10)
    jax.effects_barrier()
    assert len(count) == 10


def test_temporaries() -> None:
    fun, state = stencil(lax.scan, 100), jax.ShapeDtypeStruct((WIDTH,), jnp.float32)
    certificate = lambda u, g: certify(fun, lambda _: g)(u)  # noqa: E731
    forward = temporaries(lambda u, v: jax.jvp(fun, (u,), (v,)), state, state)
    assert temporaries(certificate, state, state) <= forward + 4 * WIDTH + 1000
    assert compiled(jax.grad(fun), state).memory_analysis().temp_size_in_bytes > 20 * forward


def test_transformations() -> None:
    x = jnp.linspace(0.1, 1.0, 6).reshape(2, 3)
    one = certify(until, lambda x: 1.1 * exact_of_until(x))
    each = jax.jit(jax.vmap(one))(x)
    assert isinstance(each, Certificate)
    assert "error" in repr(each)
    for i in range(2):
        np.testing.assert_allclose(each.error[i], one(x[i]).error, rtol=1e-4)
    assert jax.grad(lambda x: one(x).norm)(x[0]).shape == (3,)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (partial(certify, 3, until), TypeError, "fun must be a function, but is 3"),
        (
            lambda: certify(until, until, probes=0),
            ValueError,
            "probes must be an int >= 1, but is 0",
        ),
        (
            lambda: certify(until, lambda x: x[1:])(jnp.ones(3)),
            TypeError,
            r"gradient must return an array of shape \(3,\) for argument 0, .* has \(2,\)",
        ),
        (
            lambda: certify(pendulum, lambda *_: {})(PARAMS, 3),
            TypeError,
            r"for argument 0\['drag'\]\[0\], .* has none",
        ),
        (
            lambda: certify(jnp.sin, jnp.cos)(jnp.ones(3)),
            TypeError,
            "fun must return a real scalar",
        ),
        (lambda: certify(until, until)(3), TypeError, "argnums must name floating-point arguments"),
        (
            lambda: jax.jit(certify(until, exact_of_until, memory="1kB"))(jnp.ones(3)),
            ValueError,
            "memory must be None where the arguments of a certificate are traced",
        ),
    ],
)
def test_errors(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()
