"""`JAX_REVOLVE_CHECK=1` compares reverse sweeps, `JAX_REVOLVE_TRACE=1` writes what was decided."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jax_revolve import checkpointed_scan, plan
from jax_revolve._compat.jaxprs import call_jaxpr
from jax_revolve.step.linearized import Linearized

pytestmark = pytest.mark.usefixtures("compile_quickly")


def test_a_check_of_each_reverse_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_REVOLVE_CHECK", "1")

    def loss(x: jax.Array) -> jax.Array:
        step = lambda c, a: (jnp.sin(c) * 0.9 + a, jnp.sin(c * 0.5))  # noqa: E731
        carry, ys = checkpointed_scan(step, x, jnp.linspace(0.1, 0.5, 7))
        return jnp.sum(carry**2) + jnp.sum(ys)

    run = lambda: jax.grad(loss)(jnp.ones(2))  # noqa: E731
    run()
    right = Linearized.__dict__["transposed"].fget

    def wrong(step: Linearized) -> Any:
        closed = right(step)
        run = lambda *flat: [1.01 * x for x in call_jaxpr(closed)(*flat)]  # noqa: E731
        return jax.make_jaxpr(run)(*closed.in_avals)

    monkeypatch.setattr(Linearized, "transposed", property(wrong))
    with pytest.raises(Exception, match=r"(?s)JAX_REVOLVE_CHECK: carry\[0\] of the loop over .*"):
        jax.block_until_ready(run())
    monkeypatch.setenv("JAX_REVOLVE_CHECK", "yes")
    with pytest.raises(ValueError, match="must be 0 or 1, but is 'yes'"):
        run()


def test_what_was_decided_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def step(carry: Any, x: Any) -> Any:
        return (jnp.sin(carry[0]) * x, carry[1] + 1), None

    def loss(u: Any) -> Any:
        return checkpointed_scan(step, (u, 0), jnp.ones(100), checkpoints=5)[0][0]

    monkeypatch.setenv("JAX_REVOLVE_TRACE", "1")
    jax.grad(loss)(1.0)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(
        r"scan of 100 steps, step at .*test_check_and_log\.py:\d+; active: consts 0/0, ", line
    )
    assert "carry 1/2, xs 0/1, ys 0/0; checkpoint: 1/2 leaves, " in line
    assert line.endswith(f"engine: offline; plan: {plan(100, 5)}")
    monkeypatch.delenv("JAX_REVOLVE_TRACE")
    jax.grad(lambda u: loss(2 * u))(1.0)
    assert not capsys.readouterr().err
