"""Whatever lax's loops reject, ours reject with the same error and message."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from support.rejected import REJECTED, check_same_error, same, xs

from jax_revolve import bounded_while_loop, checkpointed_fori_loop, checkpointed_scan, plan

pytestmark = pytest.mark.usefixtures("default_precision")

double = lambda x: 2 * x  # noqa: E731
small = lambda x: x < 9.0  # noqa: E731
always = lambda x: True  # noqa: E731


@pytest.mark.parametrize("name", REJECTED)
def test_same_error_as_lax_scan(name: str) -> None:
    check_same_error(REJECTED[name], lax.scan, checkpointed_scan)


@pytest.mark.parametrize(
    ("checkpoints", "error"),
    [(0, ValueError), (-1, ValueError), (2.0, TypeError), (True, TypeError), ("most", ValueError)],
)
def test_bad_checkpoints(checkpoints: Any, error: type[Exception]) -> None:
    for loop in (
        partial(checkpointed_scan, same, 1.0, xs),
        partial(bounded_while_loop, small, double, 1.0, max_steps=3),
        partial(checkpointed_fori_loop, 0, 3, lambda _, x: x, 1.0),
        partial(plan, 10),
    ):
        with pytest.raises(error, match=r'checkpoints must be an int >= 1 .*"all" or None') as e:
            loop(checkpoints=checkpoints)
        assert repr(checkpoints) in str(e.value)


def test_too_long() -> None:
    with pytest.raises(ValueError, match="length must be at most 2147483646"):
        jax.eval_shape(lambda: checkpointed_scan(same, 1.0, None, 2**31 - 1, checkpoints=3))


def test_same_signature_as_lax_scan() -> None:
    """Called by position: f, init, xs, length, reverse, unroll, _split_transpose."""
    carry, ys = checkpointed_scan(lambda c, x: (c + x, jnp.array(c)), 0.0, xs, 3, True, 2, False)
    assert (carry, ys.tolist()) == (3.0, [3.0, 2.0, 0.0])


# while_loop and fori_loop

COUNTED_REJECTED: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "not_callable_condition": lambda loop: loop(3, double, 1.0),
    "float_condition": lambda loop: loop(double, double, 1.0),
    "vector_condition": lambda loop: loop(lambda x: jnp.array([True]), double, 1.0),
    "no_condition": lambda loop: loop(lambda x: None, double, 1.0),
    "structure": lambda loop: loop(always, lambda x: (x, x), 1.0),
    "dtype": lambda loop: loop(always, lambda x: x + 1.5, jnp.int32(1)),
    "in_tree": lambda loop: loop(
        always, lambda x: {"a": x["a"], "b": [x["b"][0] + 1j]}, {"a": 1.0, "b": [jnp.ones(2)]}
    ),
    "own_exception": lambda loop: loop(always, lambda x: 1 // 0, 1.0),
    "too_many_arguments": lambda loop: loop(always, lambda: 1.0, 1.0),
    "fori_float_bounds": lambda loop: loop(0, 2.5, lambda i, x: x, 1.0),
    "fori_unequal_bounds": lambda loop: loop(jnp.int8(0), jnp.int32(3), lambda i, x: x, 1.0),
    "fori_not_callable": lambda loop: loop(0, 3, 3, 1.0),
    "fori_structure": lambda loop: loop(0, 3, lambda i, x: (x, x), 1.0),
    "fori_dtype": lambda loop: loop(0, 3, lambda i, x: x + 1.5, jnp.int32(1)),
}


@pytest.mark.parametrize("name", COUNTED_REJECTED)
def test_same_error_as_while_loop_and_fori_loop(name: str) -> None:
    theirs, ours = lax.while_loop, partial(bounded_while_loop, max_steps=3)
    if name.startswith("fori"):
        theirs, ours = lax.fori_loop, checkpointed_fori_loop
    call = COUNTED_REJECTED[name]
    check_same_error(lambda loop: jax.make_jaxpr(lambda: call(loop))(), theirs, ours)
