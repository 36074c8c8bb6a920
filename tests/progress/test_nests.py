"""Loops in loops that show their progress: the reports of inner loops change no checkpoint, no tape
and no derivative."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.record import Record

from jax_revolve import bounded_while_loop, checkpointed_scan

pytestmark = pytest.mark.usefixtures("compile_quickly")

Body = Callable[[Any], Any]


def scanned(body: Body, **options: Any) -> Body:
    def step(c: Any, x: Any) -> Any:
        return body(c) + x, c

    return lambda c: checkpointed_scan(step, c, jnp.ones((4, 3)) / 9, **options)[0]


def until(body: Body, **options: Any) -> Body:
    def run(c: Any) -> Any:
        going = lambda s: (jnp.sum(s[1] ** 2) < 0.6) | (s[0] < 1)  # noqa: E731
        start, limits = (jnp.int32(0), c), {"max_steps": 3, "throw": False}
        advance = lambda s: (s[0] + 1, body(s[1]))  # noqa: E731
        return bounded_while_loop(going, advance, start, **limits, **options)[1]

    return run


NESTS = {
    "while in scan": (scanned, until),
    "scan in while": (until, scanned),
    "while in while": (until, until),
    "scan in scan in scan": (scanned, scanned, scanned),
}
DERIVATIVES = {"grad": jax.grad, "grad of grad": lambda f: jax.grad(lambda x: jax.grad(f)(x).sum())}


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"checkpoints": 2}, marks=pytest.mark.slow),
        {"checkpoints": 1, "block_size": 2},
    ],
)
@pytest.mark.parametrize(
    "derivative", ["grad", pytest.param("grad of grad", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("nest", NESTS)
def test_progress_of_every_loop(nest: str, derivative: str, options: dict[str, Any]) -> None:
    def loss(x: Any, progress: Any) -> Any:
        run: Body = lambda c: jnp.sin(c) * 0.9 + 0.1 * jnp.tanh(c)  # noqa: E731
        for loop in reversed(NESTS[nest]):
            run = loop(lambda c, run=run: jnp.tanh(run(c)), progress=progress, **options)
        return jnp.sum(run(x))

    x = jnp.linspace(0.1, 1.0, 3)
    found, expected = (
        jax.jit(DERIVATIVES[derivative](lambda x, p=p: loss(x, p)))(x) for p in (Record(), False)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-10)
