"""The estimate of a step's work, which plans are compared by."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jax_revolve.profiles.profile import CPU
from jax_revolve.step import work

pytestmark = pytest.mark.usefixtures("default_precision")


def estimate(fun: Any, *shapes: tuple[int, ...]) -> float:
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return work.work_of(jax.make_jaxpr(fun)(*arguments), CPU)


def test_products_count_by_their_operations() -> None:
    expected = CPU.kernel + 2 * 3 * 4 * 5 * CPU.product_operation
    assert estimate(jnp.matmul, (3, 4), (4, 5)) == pytest.approx(expected)
    convolved = estimate(lambda x, k: lax.conv(x, k, (1, 1), "SAME"), (1, 3, 8, 8), (5, 3, 2, 2))
    assert convolved == pytest.approx(
        CPU.kernel + 2 * (5 * 8 * 8) * (3 * 2 * 2) * CPU.product_operation
    )


def test_elementwise_operations_count_by_what_they_make() -> None:
    assert estimate(lambda x: x + x, (100,)) == pytest.approx(400 * CPU.byte)
    assert estimate(jnp.tanh, (100,)) == pytest.approx(400 * CPU.transcendental_byte)
    assert estimate(jnp.sin, (100,)) == pytest.approx(400 * CPU.slow_byte)
    assert estimate(jnp.sum, (100,)) == pytest.approx(400 * CPU.byte)
    assert estimate(lambda x: x.reshape(10, 10), (100,)) == 0


def test_inner_loops_count_as_often_as_they_run() -> None:
    once = estimate(jnp.sin, (100,))
    repeated = lambda x: lax.scan(lambda x, _: (jnp.sin(x), None), x, None, 7)[0]  # noqa: E731
    assert estimate(repeated, (100,)) == pytest.approx(7 * once)
    assert estimate(jax.jit(jnp.sin), (100,)) == pytest.approx(once)


def test_of_branches_the_longest_counts() -> None:
    def branches(x: Any) -> Any:
        return lax.cond(x[0] > 0, jnp.sin, lambda x: jnp.sin(jnp.sin(x)), x)

    twice = estimate(lambda x: jnp.sin(jnp.sin(x)), (100,))
    assert twice <= estimate(branches, (100,)) <= 1.1 * twice
