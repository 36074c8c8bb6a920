"""Bounds of while loops, read from their conditions: what is read, what is not, and that it
holds."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax_revolve import checkpoint_loops, explain
from jax_revolve.programs.bounds import read_bounds

pytestmark = pytest.mark.usefixtures("default_precision")

SEVEN = np.int32(7)


def loop(condition: Callable[..., Any], change: Any = lambda x, i: i + 1, start: Any = 0) -> Any:
    """A loop over a number and a counter."""

    def run(x: Any, start: Any = start) -> Any:
        body = lambda s: (s[0] * 1.1, change(*s))  # noqa: E731
        return lax.while_loop(lambda s: condition(*s), body, (x, start))[0]

    return run


def far(x: Any) -> Any:
    return x < 9.0


within = loop(lambda x, i: far(x) & (i < 5))

BOUNDED: dict[str, tuple[Callable[..., Any], int]] = {
    "and": (within, 5),
    "the other order, two a step": (loop(lambda x, i: (i < 5) & far(x), lambda x, i: 2 + i), 3),
    "logical_and, constant first": (loop(lambda x, i: jnp.logical_and(far(x), i <= 5)), 6),
    "not or": (loop(lambda x, i: ~((i >= 5) | (x > 9.0))), 5),
    "not a nand": (loop(lambda x, i: ~jnp.logical_not(far(x) & ~(i > 4))), 5),
    "down": (loop(lambda x, i: i > 0, lambda x, i: i - 1, start=6), 6),
    "the smaller of two": (loop(lambda x, i: (i < SEVEN) & (i + 1 < 4)), 3),
    "already over": (loop(lambda x, i: i < 5, start=8), 1),
    "fori_loop": (lambda x: lax.fori_loop(2, jnp.minimum(7, 5), lambda i, x: x * 1.1, x), 3),
    "in scan": (lambda x: lax.scan(lambda x, _: (within(x), None), x, length=3)[0], 5),
    "under jit and cond": (
        lambda x: jax.jit(
            lambda x, n: lax.cond(x > 1, loop(lambda x, i: far(x) & (i < n)), lambda x: x, x)
        )(x, 4),
        4,
    ),
}

UNBOUNDED: dict[str, Callable[..., Any]] = {
    "no counter": lambda x: lax.while_loop(far, lambda x: x * 1.1, x),
    "or": loop(lambda x, i: far(x) | (i < 5)),
    "a counter that may stay": loop(lambda x, i: i < 5, lambda x, i: jnp.where(x > 2.0, i + 1, i)),
    "a counter that is reset": loop(lambda x, i: i < 5, lambda x, i: (i + 1) % 4),
    "away from the bound": loop(lambda x, i: far(x) & (i < 5), lambda x, i: i - 1),
    "not equal": loop(lambda x, i: i != 5),
    "another entry": loop(lambda x, i: i < 5, lambda x, i: x.astype(int) + 1),
    "start unknown": lambda x: within(x, x.astype(int)),
    "bound unknown": lambda x: loop(lambda y, i: i < x.astype(int))(x),
    "overflow": loop(lambda x, i: i < 120, lambda x, i: i + jnp.int8(100), start=np.int8(0)),
    "floats": loop(lambda x, i: i < 5.0, lambda x, i: i + 1.0, start=0.0),
}


def bounds(fun: Callable[..., Any]) -> list[int]:
    return [*read_bounds(jax.make_jaxpr(fun)(1.5)).values()]


@pytest.mark.parametrize("name", BOUNDED)
def test_what_is_read_holds(name: str) -> None:
    """A bound that were one step too small would change the result, without an error."""
    fun, bound = BOUNDED[name]
    assert bounds(fun) == [bound]
    entered = checkpoint_loops(fun, max_steps="loop")
    for x in (1.5, 7.0):
        np.testing.assert_allclose(jax.grad(entered)(x), jax.jacfwd(fun)(x), rtol=1e-6)


@pytest.mark.parametrize("name", UNBOUNDED)
def test_what_is_not_known_is_not_read(name: str) -> None:
    assert bounds(UNBOUNDED[name]) == []


def test_examples_of_vmap() -> None:
    """The written-out loop counts the steps. If an example's condition sees the others, it may go
    on after it has stopped, so its counter bounds nothing."""
    xs = jnp.array([1.0, 6.0, 20.0])
    total = lambda xs: jnp.sum(jax.vmap(within)(xs))  # noqa: E731
    entered = checkpoint_loops(total, max_steps="loop")
    np.testing.assert_allclose(jax.grad(entered)(xs), jax.jacfwd(total)(xs), rtol=1e-6)
    assert [report.plan.length for report in explain(entered)(xs).loops] == [5]
    sees = loop(lambda x, i: (i < 5) & far(x) & (lax.psum(x, "examples") < 90.0))
    seeing = lambda xs: jnp.sum(jax.vmap(sees, axis_name="examples")(xs))  # noqa: E731
    assert not explain(checkpoint_loops(seeing, max_steps="loop"))(xs).loops


def test_which_bound_is_taken() -> None:
    """Of the loop and of the user the smaller; without either, the loop stays as it is."""

    def fun(x: Any) -> Any:
        return UNBOUNDED["no counter"](within(x))

    def lengths(**options: Any) -> list[int | None]:
        found = explain(checkpoint_loops(fun, **options))(1.5)
        return [report.plan.length for report in found.loops]

    where = lambda loop: {"max_steps": 40} if loop.bound is None else True  # noqa: E731
    assert lengths() == []
    assert lengths(max_steps="loop") == [5]
    assert lengths(max_steps=50) == [5, 50]
    assert lengths(max_steps=3) == [3, 3]
    assert lengths(max_steps="loop", where=where) == [5, 40]
    with pytest.raises(ValueError, match=r"of test_bounds.py:.* in reverse mode"):
        jax.grad(checkpoint_loops(fun, max_steps="loop"))(1.5)
    with pytest.raises(ValueError, match=r"max_steps must be .loop., None or an int, but is 'lop'"):
        checkpoint_loops(fun, max_steps="lop")  # type: ignore[arg-type]
