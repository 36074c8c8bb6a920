"""A simulator with contacts, whose solver is a while loop: MuJoCo's MJX, with no bound by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compiled import compiled

from jax_revolve import checkpoint_loops, explain

mujoco = pytest.importorskip("mujoco")
mjx = pytest.importorskip("mujoco.mjx")

pytestmark = pytest.mark.slow

BALL = """
<mujoco>
  <option timestep="0.01" iterations="5" ls_iterations="7"/>
  <worldbody>
    <geom type="plane" size="2 2 .1"/>
    <body pos="0 0 .12"><joint type="slide" axis="0 0 1"/><geom type="sphere" size=".1"/></body>
  </worldbody>
</mujoco>
"""
BUDGET = 20_000


def test_a_rollout_with_contacts() -> None:
    model = mjx.put_model(mujoco.MjModel.from_xml_string(BALL))
    start = mjx.make_data(model)

    def height(speed: jax.Array) -> jax.Array:
        step = lambda data, _: (mjx.step(model, data), None)  # noqa: E731
        data = start.replace(qvel=start.qvel.at[0].set(speed))
        return jax.lax.scan(step, data, length=20)[0].qpos[0]

    speed = jnp.asarray(-1.0)  # the ball touches the ground after two steps
    fun = checkpoint_loops(height, max_steps="loop", memory=BUDGET)
    explanation = explain(fun)(speed)
    assert [loop.plan.length for loop in explanation.loops] == [20, 5, 7]
    assert explanation.memory <= BUDGET
    gradient, value = compiled(jax.value_and_grad(fun), speed), compiled(height, speed)
    (final, slope), h = gradient(speed), 1e-6
    np.testing.assert_allclose(final, value(speed), rtol=1e-9)
    np.testing.assert_allclose(slope, (value(speed + h) - value(speed - h)) / (2 * h), rtol=1e-4)
