"""What all loops can be asked for, by the same names."""

from collections.abc import Callable
from dataclasses import fields
from inspect import signature
from typing import Any, cast

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from asked import explained_scan

from jax_revolve import (
    HostMemory,
    bounded_while_loop,
    checkpointed_chain,
    checkpointed_fori_loop,
    checkpointed_scan,
    explain,
    plan,
)
from jax_revolve.integrations.diffrax import RevolveAdjoint
from jax_revolve.integrations.equinox import filter_bounded_while_loop, filter_checkpointed_scan
from jax_revolve.loops.options import Options

pytestmark = pytest.mark.usefixtures("default_precision")

N = 12
X = np.linspace(0.1, 0.9, 5, dtype=np.float32)
LOOPS = [
    checkpointed_scan,
    bounded_while_loop,
    checkpointed_fori_loop,
    filter_checkpointed_scan,
    filter_bounded_while_loop,
    checkpointed_chain,
    RevolveAdjoint,
]


class Scale(eqx.Module):
    by: Any

    def __call__(self, x: Any) -> Any:
        return jnp.sin(self.by * x)


def scan(**asked: Any) -> Any:
    return lambda x: checkpointed_scan(lambda x, _: (jnp.sin(x), None), x, length=N, **asked)[0]


def fori(**asked: Any) -> Any:
    return lambda x: checkpointed_fori_loop(0, N, lambda _, x: jnp.sin(x), x, **asked)


def while_loop(max_steps: Any = N, **asked: Any) -> Any:
    def run(x: Any) -> Any:
        body = lambda state: (state[0] + 1, jnp.sin(state[1]))  # noqa: E731
        start = (jnp.int32(0), x)
        return bounded_while_loop(lambda s: s[0] < 7, body, start, max_steps=max_steps, **asked)[1]

    return run


def stack(**asked: Any) -> Any:
    weights = jnp.linspace(0.9, 1.1, N)
    return lambda x: checkpointed_chain(Scale(weights), x, **asked)


def solve(max_steps: Any = N, **asked: Any) -> Any:
    def run(x: Any) -> Any:
        term, adjoint = diffrax.ODETerm(lambda t, y, _: -y), RevolveAdjoint(**asked)
        solution = diffrax.diffeqsolve(
            term, diffrax.Euler(), 0.0, 1.0, 0.1, x, max_steps=max_steps, adjoint=adjoint
        )
        return cast(Any, solution.ys)[-1]

    return run


def gradient(loop: Callable[..., Any], **asked: Any) -> Any:
    return jax.make_jaxpr(jax.grad(lambda x: jnp.sum(loop(**asked)(x))))(X)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_names_and_defaults_are_the_same(loop: Any) -> None:
    taken = signature(loop).parameters
    defaults = {f.name: f.default for f in fields(Options)}
    assert {name: taken[name].default for name in defaults} == defaults


@pytest.mark.parametrize(
    "loop", [scan, while_loop, stack, pytest.param(solve, marks=pytest.mark.slow)]
)
def test_a_plan_is_what_it_says(loop: Any) -> None:
    asked: dict[str, Any] = {"checkpoints": 3, "block_size": 2}
    assert str(gradient(loop, plan=plan(N, **asked))) == str(gradient(loop, **asked))
    assert str(gradient(loop, plan=plan(N, **asked))) != str(gradient(loop, checkpoints=2))
    asked = {"checkpoints": 2, "storage": HostMemory(checkpoints=3, transfer=5.0)}
    assert str(gradient(loop, plan=plan(N, **asked))) == str(gradient(loop, **asked))


@pytest.mark.parametrize("loop", [scan, while_loop, stack, solve])
@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"plan": plan(9, 3)}, r"plan must be for a loop of 12 steps, but is for 9: .*plan\(12,"),
        ({"plan": plan(N, 3), "checkpoints": 3}, "checkpoints must be None where a plan is given"),
        ({"plan": plan(N, 3), "memory": "1MB"}, "memory must be None where a plan is given"),
    ],
)
def test_plans_that_do_not_fit(loop: Any, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loop(**asked)(X)
    with pytest.raises(TypeError, match=r"plan must be a jax_revolve\.Plan"):
        loop(plan=3)(X)


def test_a_plan_is_for_a_bound() -> None:
    with pytest.raises(
        ValueError, match=r"plan must be None where max_steps is None.*max_steps=12"
    ):
        while_loop(max_steps=None, plan=plan(N, 3))(X)


def test_a_fori_loop_is_a_scan_or_a_while_loop() -> None:
    body = lambda i, x: jnp.sin(x) * i  # noqa: E731
    loop = checkpointed_fori_loop
    (known,) = explain(lambda x: loop(0, N, body, x))(1.0).loops
    step = lambda c, _: ((c[0] + 1, jnp.sin(c[1]) * c[0]), None)  # noqa: E731
    assert known.plan == explained_scan(step, (0, 1.0), length=N).plan
    assert not known.is_while
    n = jnp.int32(3)
    (unknown,) = explain(lambda x, n: loop(0, n, body, x, max_steps=N))(1.0, n).loops
    assert unknown.is_while
    assert unknown.plan.length == N
    assert "needs max_steps" in str(explain(lambda x, n: loop(0, n, body, x))(1.0, n))


@pytest.mark.parametrize(
    "asked",
    [{"block_size": 2}, {"storage": HostMemory()}, {"plan": plan(2, 1)}, {"progress": True}],
)
def test_a_list_of_layers_has_a_schedule_of_its_own(asked: dict[str, Any]) -> None:
    (name,) = asked
    with pytest.raises(ValueError, match=f"^{name} must not be given for a list of layers"):
        checkpointed_chain([jnp.sin, jnp.cos], X, **asked)
