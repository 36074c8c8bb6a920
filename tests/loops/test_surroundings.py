"""Settings and classes around the loops, with which lax's own loops work."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax_revolve import (
    bounded_while_loop,
    checkpointed_fori_loop,
    checkpointed_scan,
    host_scan,
)

X = jnp.linspace(0.1, 1.0, 5)


@jax.tree_util.register_pytree_node_class
class Checked:
    """A pytree whose constructor takes arrays alone, and makes another."""

    def __init__(self, array: Any) -> None:
        assert jnp.issubdtype(array.dtype, jnp.floating)
        self.array = array * 1

    def tree_flatten(self) -> Any:
        return (self.array,), None

    @classmethod
    def tree_unflatten(cls, _: Any, children: Any) -> "Checked":
        return cls(*children)


def scanned(scan: Any, x: Any) -> Any:
    f = lambda c, _: (Checked(jnp.sin(c.array)), Checked(c.array))  # noqa: E731
    carry, ys = scan(f, Checked(x), None, length=6)
    return jnp.sum(carry.array) + jnp.sum(ys.array**2)


def repeated(loop: Any, x: Any) -> Any:
    return jnp.sum(loop(0, 6, lambda _, c: Checked(jnp.sin(c.array)), Checked(x)).array)


def bounded(loop: Any, x: Any) -> Any:
    body = lambda s: (s[0] + 1, Checked(jnp.sin(s[1].array)))  # noqa: E731
    return jnp.sum(loop(lambda s: s[0] < 6, body, (0, Checked(x)))[1].array)


@pytest.mark.parametrize(
    ("fun", "ours", "theirs"),
    [
        (scanned, checkpointed_scan, lax.scan),
        (repeated, checkpointed_fori_loop, lax.fori_loop),
        (bounded, partial(bounded_while_loop, max_steps=9), lax.while_loop),
    ],
)
def test_classes_whose_constructors_take_arrays_alone(fun: Any, ours: Any, theirs: Any) -> None:
    """They were built of types."""
    mode = jax.jacfwd if theirs is lax.while_loop else jax.grad
    np.testing.assert_allclose(
        jax.grad(partial(fun, ours))(X), mode(partial(fun, theirs))(X), rtol=1e-12
    )
    np.testing.assert_allclose(fun(ours, X), fun(theirs, X), rtol=1e-12)


def test_such_classes_in_a_loop_of_the_host() -> None:
    np.testing.assert_allclose(scanned(host_scan, X), scanned(lax.scan, X), rtol=1e-12)


@pytest.mark.parametrize("derivative", [jax.grad, jax.hessian])
def test_a_scalar_that_is_written_and_read_at_no_index(derivative: Any) -> None:
    def f(scan: Any, c: Any) -> Any:
        return scan(
            lambda c, _: (lax.dynamic_update_slice(c, jnp.sin(c), ()), None), c, None, length=5
        )[0]

    found, expected = (derivative(partial(f, s))(0.3) for s in (checkpointed_scan, lax.scan))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def doubled(inverse: bool, x: Any) -> Any:
    """A while loop that is strict about types."""
    two = jnp.asarray(2, x.dtype)
    back = (lambda s: (s[0] - 1, s[1] / two)) if inverse else None
    body = lambda s: (s[0] + 1, s[1] * two)  # noqa: E731
    init = (jnp.int32(0), x)
    return bounded_while_loop(lambda s: s[0] < 5, body, init, max_steps=9, inverse=back)[1]


def walked_back(inverse: bool, x: Any) -> Any:
    two = jnp.asarray(2, x.dtype)
    how: Any = {"inverse": lambda c, *_: c / two} if inverse else {"memory": "1kB"}
    return checkpointed_scan(lambda c, _: (c * two, None), x, length=5, **how)[0]


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("loop", [doubled, walked_back])
@pytest.mark.parametrize(
    "setting",
    [lambda: jax.enable_checks(True), lambda: jax.numpy_dtype_promotion("strict"), nullcontext],
    ids=["checks", "strict", "none"],
)
def test_settings(setting: Callable[[], Any], loop: Any, inverse: bool) -> None:
    run = partial(loop, inverse)
    with setting():
        np.testing.assert_allclose(jax.jacrev(run)(X), 32 * np.eye(5), rtol=1e-12)
        np.testing.assert_allclose(jax.vmap(run)(X[None]), 32 * X[None], rtol=1e-12)


XS = jnp.linspace(0.5, 1.0, 4)
GUARDED: dict[str, Callable[[Any], Any]] = {
    "while": lambda x: bounded_while_loop(
        lambda c: jnp.all(c < 5), lambda c: c + c, x, max_steps=6
    ),
    "scan": lambda x: checkpointed_scan(lambda c, a: (jnp.sin(c) * a, c), x, XS)[0],
    "blocks": lambda x: checkpointed_scan(
        lambda c, a: (jnp.sin(c) * a, c), x, XS, checkpoints=2, block_size=2
    )[1],
    "inverse": lambda x: checkpointed_scan(
        lambda c, a: (c * a, None), x, XS, inverse=lambda c, a, _: c / a
    )[0],
}


def _pulled_back(fun: Callable[[Any], Any], x: Any) -> Any:
    value, pull = jax.vjp(fun, x)
    return value, pull(value)


TRANSFORMED: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "value": lambda f: f(X),
    "jvp": lambda f: jax.jvp(f, (X,), (X,)),
    "vjp": lambda f: _pulled_back(f, X),
    "vmap": lambda f: jax.vmap(f)(EXAMPLES),
    "vjp_of_vmap": lambda f: _pulled_back(jax.vmap(f), EXAMPLES),
    "vmap_of_vjp": lambda f: jax.vmap(partial(_pulled_back, f))(EXAMPLES),
    "forward_over_reverse": lambda f: jax.jvp(partial(_pulled_back, f), (X,), (X,)),
}
EXAMPLES = jnp.stack([X, X / 2])


@pytest.mark.parametrize("how", TRANSFORMED)
@pytest.mark.parametrize("loop", GUARDED)
def test_nothing_is_sent_to_the_device(loop: str, how: str) -> None:
    """Outside `jax.jit`, a constant would be. (`lax.fori_loop` itself sends its counter.)"""
    run = lambda: jax.tree.leaves(TRANSFORMED[how](GUARDED[loop]))  # noqa: E731
    with jax.transfer_guard("disallow"):
        found = run()
    for a, b in zip(found, jax.tree.leaves(jax.jit(run)()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_an_error_at_the_bound_under_a_transfer_guard() -> None:
    run = lambda x: bounded_while_loop(lambda c: jnp.all(c < 5), jnp.sin, x, max_steps=6)  # noqa: E731
    with jax.transfer_guard("disallow"), pytest.raises(RuntimeError, match="max_steps=6"):
        run(X)


def test_a_traced_unroll_is_the_error_of_lax() -> None:
    for scan in (lax.scan, checkpointed_scan):
        run = lambda n: scan(lambda c, _: (c, None), X, None, length=4, unroll=n)[0]  # noqa: B023, E731
        with pytest.raises(jax.errors.ConcretizationTypeError, match="unroll"):
            jax.jit(run)(2)


@pytest.mark.parametrize("unroll", [None, 2, True])
def test_a_fori_loop_takes_the_arguments_of_lax(unroll: Any) -> None:
    f = lambda loop, x: jnp.sum(loop(0, 6, lambda i, c: jnp.sin(c) + i, x, unroll=unroll))  # noqa: E731
    for derivative in (lambda f: f, jax.grad):
        found, expected = (
            derivative(partial(f, loop))(X) for loop in (checkpointed_fori_loop, lax.fori_loop)
        )
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    with pytest.raises(ValueError, match="unroll"):
        jax.jit(lambda n: checkpointed_fori_loop(0, n, lambda _, c: c, X, unroll=2))(3)


@pytest.mark.parametrize("inverse", [None, lambda _, c: c / 2])
def test_a_fori_loop_to_a_bound_that_is_no_error(inverse: Any) -> None:
    how: Any = {"max_steps": 4, "inverse": inverse}
    run = lambda n, **more: checkpointed_fori_loop(0, n, lambda _, c: 2 * c, X, **how, **more)  # noqa: E731
    np.testing.assert_allclose(jax.jit(partial(run, throw=False))(9), 16 * X, rtol=1e-12)
    with pytest.raises(RuntimeError, match="max_steps=4"):
        jax.block_until_ready(jax.jit(run)(9))
    exported = jax.export.export(jax.jit(partial(run, throw=False)))(9)
    np.testing.assert_allclose(exported.call(3), 8 * X, rtol=1e-12)
