"""`host_scan` takes and returns what `lax.scan` does: trees, types, keys, no carry, no steps."""

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax_revolve import HostMemory, host_scan

Scan = Callable[..., Any]
CASES: dict[str, Callable[[Scan], Any]] = {}


def case(run: Callable[[Scan], Any]) -> Callable[[Scan], Any]:
    CASES[run.__name__.removeprefix("_")] = run
    return run


def assert_same(ours: Any, theirs: Any) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            assert (jax.random.key_data(a) == jax.random.key_data(b)).all()
        elif a.dtype != jax.dtypes.float0:
            np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize(
    "options",
    [{}, {"checkpoints": 1}, {"checkpoints": 0, "storage": HostMemory(checkpoints=2)}],
    ids=str,
)
@pytest.mark.parametrize("length", [0, 1, 2, 5])
def test_lengths(length: int, options: dict[str, Any]) -> None:
    """Of nested trees, with a step that ignores a part of them."""

    def loss(scan: Any, inputs: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            product, (total,) = carry["a"]
            return {"a": (product * inputs["w"], [total + x])}, (carry, None)

        init = {"a": (inputs["init"], [0.5])}
        carry, (ys, _) = scan(step, init, np.linspace(0, 1, length))
        return jnp.sum(carry["a"][0]) + carry["a"][1][0] + jnp.sum(ys["a"][0])

    inputs = {"w": jnp.asarray(0.3), "init": jnp.ones(2)}
    ours, theirs = (
        jax.value_and_grad(partial(loss, scan))(inputs)
        for scan in (partial(host_scan, **options), lax.scan)
    )
    assert_same(ours, theirs)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 6])
def test_trees_from_a_function(length: int, reverse: bool) -> None:
    xs = np.random.default_rng(0).normal(size=(length, 2))
    whole = (xs, None, {"number": np.arange(length, dtype=np.int32)})

    def loss(scan: Any, xs: Any, a: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            assert x[1] is None
            return jnp.sin(c * a + x[0] * x[2]["number"]), (c,)

        c, ys = scan(step, jnp.ones(2), xs, length, reverse)
        return jnp.sum(c) + jnp.sum(ys[0] * jnp.arange(length)[:, None]), ys

    def read(i: int) -> Any:
        return xs[i], None, {"number": np.int32(i)}

    theirs = jax.value_and_grad(partial(loss, lax.scan, whole), has_aux=True)(0.6)
    assert_same(jax.value_and_grad(partial(loss, host_scan, read), has_aux=True)(0.6), theirs)


@case
def _keys_as_xs(scan: Scan) -> Any:
    keys = jax.random.split(jax.random.key(3), 5)

    def loss(a: Any) -> Any:
        step = lambda c, key: (jnp.sin(c * a) + jax.random.normal(key), (key, c))  # noqa: E731
        c, ys = scan(step, a, keys)
        return c + jnp.sum(ys[1]), ys[0]

    return jax.value_and_grad(loss, has_aux=True)(0.5)


@case
def _integers_that_are_differentiated(scan: Scan) -> Any:
    def loss(inputs: Any) -> Any:
        step = lambda c, x: ((c[0] * jnp.sin(x), c[1] + 1), c[1] * 2)  # noqa: E731
        c, ys = scan(step, (inputs["a"], inputs["n"]), jnp.arange(4.0))
        return c[0] * c[1] + jnp.sum(ys)

    return jax.value_and_grad(loss, allow_int=True)({"a": 0.3, "n": 2})


@case
def _cotangents_of_integers(scan: Scan) -> Any:
    def run(a: Any) -> Any:
        step = lambda c, x: ((c[0] * jnp.sin(x), c[1] + 1), (c[1], c[0]))  # noqa: E731
        return scan(step, (a, 0), jnp.arange(4.0))

    def cotangent(x: Any) -> Any:
        is_float = jnp.issubdtype(x.dtype, jnp.floating)
        return np.ones(x.shape, x.dtype if is_float else jax.dtypes.float0)

    results, pullback = jax.vjp(run, 0.7)
    return results, pullback(jax.tree.map(cotangent, results))


@case
def _integers_among_the_xs(scan: Scan) -> Any:
    def loss(xs: Any) -> Any:
        c, ys = scan(lambda c, x: (c * jnp.sin(x["a"]) + x["b"], x), 1.0, xs)
        return c + jnp.sum(ys["a"])

    xs = {"a": jnp.arange(4.0), "b": jnp.arange(4), "empty": [jnp.ones((4, 0))]}
    return jax.value_and_grad(loss, allow_int=True)(xs)


@case
def _weak_types(scan: Scan) -> Any:
    doubled = jnp.array(1) * 2.0

    def loss(a: Any, s: Any) -> Any:
        step = lambda c, _: (c * 0.5 + doubled.astype(c.dtype) * s * a, c * s)  # noqa: E731
        c, ys = scan(step, jnp.float32(1), length=3)
        return c + jnp.sum(ys)

    assert doubled.weak_type
    return jax.value_and_grad(loss, (0, 1))(jnp.float32(1.5), jnp.float32(2))


@case
def _numbers(scan: Scan) -> Any:
    def loss(a: Any) -> Any:
        c, ys = scan(lambda c, _: (c * a, c), 1.0, length=3)
        return c + jnp.sum(ys)

    return jax.value_and_grad(loss)(2.0), jax.value_and_grad(loss)(np.float32(2))


@case
def _no_carry(scan: Scan) -> Any:
    def loss(a: Any) -> Any:
        _, ys = scan(lambda c, x: (c, jnp.sin(a * x)), (), jnp.arange(5.0))
        return jnp.sum(ys)

    return jax.value_and_grad(loss)(0.3)


@case
def _no_carry_in_a_directory(scan: Scan) -> Any:
    with tempfile.TemporaryDirectory() as directory:
        saved = {} if scan is lax.scan else {"directory": directory, "save_every": 0}
        return _no_carry(partial(scan, **saved))


@case
def _nothing_at_all(scan: Scan) -> Any:
    return scan(lambda c, x: (None, x), None, None, 3)


@case
def _complex_numbers(scan: Scan) -> Any:
    def loss(a: Any) -> Any:
        c, ys = scan(lambda c, x: (c * jnp.exp(1j * a) + x, jnp.abs(c)), 1 + 1j, jnp.arange(5.0))
        return jnp.abs(c) + jnp.sum(ys)

    return jax.value_and_grad(loss)(0.3)


@case
def _half_precision(scan: Scan) -> Any:
    def loss(a: Any, xs: Any) -> Any:
        c, ys = scan(lambda c, x: (c * a + x, c * x), jnp.bfloat16(1), xs)
        return c.astype(float) + jnp.sum(ys).astype(float)

    xs = np.asarray(jnp.arange(6, dtype=jnp.bfloat16))
    return jax.value_and_grad(loss, (0, 1))(jnp.bfloat16(0.5), xs)


@case
def _one_array_in_several_places(scan: Scan) -> Any:
    def loss(a: Any) -> Any:
        step = lambda c, _: ((c[0] * a, c[0]), (c[0], c[0], c[1]))  # noqa: E731
        (c, d), ys = scan(step, (a, a), length=4)
        return c + d + sum(map(jnp.sum, ys))

    return jax.value_and_grad(loss)(0.9)


class Pair(NamedTuple):
    a: Any
    b: Any


@case
def _named_tuples(scan: Scan) -> Any:
    def loss(pair: Any) -> Any:
        step = lambda c, x: (Pair(c.a * c.b, c.b), Pair(c, x))  # noqa: E731
        c, ys = scan(step, pair, xs=Pair(jnp.arange(3.0), np.arange(3.0)))
        return c.a + jnp.sum(ys.a.a) + jnp.sum(ys.b.b)

    return jax.value_and_grad(loss)(Pair(1.1, 0.5))


@pytest.mark.parametrize("name", CASES)
def test_same_as_lax_scan(name: str) -> None:
    assert_same(CASES[name](host_scan), CASES[name](lax.scan))
