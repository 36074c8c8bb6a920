"""Calls that `lax.scan` rejects."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

Scan = Callable[..., Any]

same = lambda c, x: (c, x)  # noqa: E731
xs = np.arange(3.0, dtype=np.float32)
REJECTED: dict[str, Callable[[Scan], Any]] = {
    "two_lengths": lambda scan: scan(same, 1.0, (xs, jnp.arange(4.0))),
    "length_of_xs": lambda scan: scan(same, 1.0, xs, 4),
    "scalar_xs": lambda scan: scan(same, 1.0, 3.0),
    "negative_length": lambda scan: scan(same, 1.0, None, -1),
    "traced_length": lambda scan: jax.jit(lambda n: scan(same, 1.0, None, n))(3),
    "not_callable": lambda scan: scan(3, 1.0, xs),
    "three_results": lambda scan: scan(lambda c, x: (c, x, x), 1.0, xs),
    "carry_structure": lambda scan: scan(lambda c, x: ((c, c), x), 1.0, xs),
    "carry_shape": lambda scan: scan(lambda c, x: (jnp.stack([c, c]), x), 1.0, xs),
    "carry_dtype": lambda scan: scan(lambda c, x: (c + 1.5, x), jnp.int32(1), xs),
    "carry_in_tree": lambda scan: scan(
        lambda c, x: ({"a": c["a"], "b": [c["b"][0] + x]}, x), {"a": 1.0, "b": [jnp.int8(2)]}, xs
    ),
    "unroll": lambda scan: scan(same, 1.0, xs, unroll=-1),
    "branch_on_tracer": lambda scan: scan(lambda c, x: (c if c > 0 else x, x), 1.0, xs),
    "own_exception": lambda scan: scan(lambda c, x: 1 // 0, 1.0, xs),
    "disable_jit_of_no_step": jax.disable_jit()(lambda scan: scan(same, 1.0, None, 0)),
}


def check_same_error(call: Callable[..., Any], theirs: Any, ours: Any) -> None:
    """But for what differs between two calls of the same function: the ids of traces."""
    try:
        call(theirs)
    except Exception as error:
        expected = error
    else:
        pytest.skip("this version of lax accepts it")
    with pytest.raises(type(expected)) as raised:
        call(ours)
    assert raised.type is type(expected)
    messages = [str(error).split("\n-----", maxsplit=1)[0] for error in (raised.value, expected)]
    assert messages[0] == messages[1]
