"""What is estimated of a step: its work, by a device's profile, and its bytes."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from support.asked import explained_scan

from jax_revolve import checkpointed_scan
from jax_revolve.profiles import in_force
from jax_revolve.profiles.profile import CPU, FOLDER, of_platform
from jax_revolve.schedule.cost import Sizes
from jax_revolve.step import work

pytestmark = pytest.mark.usefixtures("default_precision")


def test_any_plan_will_do_for_a_step_that_jax_cannot_transpose() -> None:
    """`jax.linearize` does not ask it to."""

    def step(u: jax.Array, _: Any) -> tuple[jax.Array, None]:
        return lax.while_loop(lambda v: v[0] < 3, lambda v: 2 * v, u), None

    def loss(u: jax.Array) -> jax.Array:
        return checkpointed_scan(step, u, None, 5)[0]

    _, tangent = jax.linearize(loss, jnp.ones(2))
    assert tangent(jnp.ones(2)).tolist() == [4, 4]
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work for"):
        jax.vjp(loss, jnp.ones(2))[1](jnp.ones(2))


def test_what_is_kept_of_a_step_does_not_follow_the_profile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sizes() -> Sizes:
        step = lambda u, _: (jnp.sin(u) * jnp.tanh(u), None)  # noqa: E731
        return explained_scan(step, jnp.ones(100), length=10).sizes

    before = sizes()
    monkeypatch.setenv(in_force.VARIABLE, str(FOLDER / "gpu.json"))
    after = sizes()
    assert (after.profile, before.profile) == (of_platform("gpu"), CPU)
    assert after.work != before.work
    for name in ("checkpoint", "residuals", "alone", "again", "factors"):
        assert getattr(after, name) == getattr(before, name)


# The work of a step

KERNEL, PRODUCT, SLOW = CPU.kernel, CPU.product_operation, 400 * CPU.slow_byte
LOOP = lambda x: lax.scan(lambda x, _: (jnp.sin(x), None), x, None, 7)[0]  # noqa: E731
BRANCH = lambda x: lax.cond(x[0] > 0, jnp.sin, lambda x: jnp.sin(jnp.sin(x)), x)  # noqa: E731


@pytest.mark.parametrize(
    ("fun", "shapes", "expected"),
    [
        (jnp.matmul, [(3, 4), (4, 5)], KERNEL + 2 * 3 * 4 * 5 * PRODUCT),
        (
            lambda x, k: lax.conv(x, k, (1, 1), "SAME"),
            [(1, 3, 8, 8), (5, 3, 2, 2)],
            KERNEL + 2 * (5 * 8 * 8) * (3 * 2 * 2) * PRODUCT,
        ),
        (lambda x: x + x, [(100,)], 400 * CPU.byte),
        (jnp.sum, [(100,)], 400 * CPU.byte),
        (jnp.tanh, [(100,)], 400 * CPU.transcendental_byte),
        (jnp.sin, [(100,)], SLOW),
        (jax.jit(jnp.sin), [(100,)], SLOW),
        (LOOP, [(100,)], 7 * SLOW),
        (BRANCH, [(100,)], pytest.approx(2.1 * SLOW, rel=0.05)),  # the longest counts
        (lambda x: x.reshape(10, 10), [(100,)], 0),
    ],
)
def test_the_work_of_a_step(fun: Any, shapes: Any, expected: Any) -> None:
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    found = work.work_of(jax.make_jaxpr(fun)(*arguments), CPU)
    assert found == (pytest.approx(expected) if isinstance(expected, float) else expected)
