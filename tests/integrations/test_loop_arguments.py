"""Libraries that take a loop as an argument: small copies of how they call it, given ours."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax_revolve import bounded_while_loop, checkpointed_fori_loop, checkpointed_scan
from jax_revolve.integrations.equinox import filter_bounded_while_loop, filter_checkpointed_scan

pytestmark = pytest.mark.usefixtures("compile_quickly")

close = partial(np.testing.assert_allclose, rtol=1e-9)
X = np.array([0.3, 0.8])
XS = np.linspace(0.0, 1.0, 12)


def step(x: Any, y: Any) -> Any:
    x = jnp.sin(x) + 0.1 * y
    return x, jnp.sum(x)


def nested(x: Any, scan_fn: Any = lax.scan) -> Any:
    """Scans in scans of given lengths, as simulators of weather and of neurons take them."""

    def scanned(f: Any, init: Any, xs: Any, lengths: Any) -> Any:
        if len(lengths) == 1:
            return scan_fn(f, init, xs, lengths[0])
        inner = jax.checkpoint(lambda carry, xs: scanned(f, carry, xs, lengths[1:]))
        xs = jax.tree.map(lambda x: x.reshape(lengths[0], -1, *x.shape[1:]), xs)
        final, ys = scan_fn(inner, init, xs, lengths[0])
        return final, jax.tree.map(lambda y: y.reshape(-1, *y.shape[2:]), ys)

    final, ys = scanned(step, x, XS, (3, 4))
    return jnp.sum(final) + jnp.sum(ys**2)


def trajectory(x: Any, scan_fn: Any = lax.scan) -> Any:
    """All arguments by name, backward, with `xs=None`."""
    final, ys = scan_fn(f=step, init=x, xs=XS, length=None, reverse=True, unroll=2)
    final, _ = scan_fn(lambda x, _: (jnp.cos(x), None), final, xs=None, length=3)
    return jnp.sum(final) + jnp.sum(ys**2)


def adaptive(x: Any, while_loop: Any = lax.while_loop) -> Any:
    """A solver of ODEs that steps until the end: three positions, or names."""
    cond = lambda state: state[1] < 1.0  # noqa: E731
    advance = lambda state: (state[0] - 0.2 * state[0] ** 2, state[1] + 0.2)  # noqa: E731
    y, t = while_loop(cond, advance, (x, 0.0))
    y, _ = while_loop(cond_fun=cond, body_fun=advance, init_val=(y, t - 0.5))
    return jnp.sum(y)


def plain(cond: Any, body: Any, init: Any, max_steps: Any, buffers: Any) -> Any:
    """`lax.while_loop` for the solver below."""
    del max_steps, buffers
    f, *start = init
    final = lax.while_loop(lambda s: cond((f, *s)), lambda s: body((f, *s))[1:], tuple(start))
    return f, *final


def iterative(x: Any, while_loop: Any = plain) -> Any:
    """A solver that gives the loop its bound and its buffers, and carries a function."""

    def body(state: Any) -> Any:
        f, x, i, record = state
        x = f(x) + 0.1
        return f, x, i + 1, record.at[i].set(jnp.sum(x))

    init = (jnp.sin, x, 0, jnp.zeros(8))
    options: Any = {"max_steps": 8, "buffers": lambda state: state[3]}
    return jnp.sum(while_loop(lambda state: state[2] < 5, body, init, **options)[-1])


def counted(x: Any, fori_loop: Any = lax.fori_loop) -> Any:
    return jnp.sum(fori_loop(0, 6, lambda i, x: jnp.sin(x) + 0.1 * i, x))


CASES: dict[str, tuple[Callable[..., Any], Any]] = {
    "nested scans": (nested, checkpointed_scan),
    "nested scans of modules": (nested, filter_checkpointed_scan),
    "scan by names": (trajectory, partial(checkpointed_scan, checkpoints=3)),
    "while": (adaptive, partial(bounded_while_loop, max_steps=20)),
    "while without a bound": (adaptive, partial(bounded_while_loop, max_steps=None, checkpoints=3)),
    "while with its options": (iterative, partial(filter_bounded_while_loop, throw=False)),
    "fori": (counted, checkpointed_fori_loop),
}


@pytest.mark.parametrize("name", CASES)
def test_the_loop_is_taken_as_it_is(name: str) -> None:
    fun, loop = CASES[name]
    close(jax.grad(fun)(X, loop), jax.jacfwd(fun)(X))
