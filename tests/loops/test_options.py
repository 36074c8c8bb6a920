"""What all loops can be asked for, by the same names."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from inspect import signature
from typing import Any, cast

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.asked import explained_scan
from support.evaluations import repeat

from jax_revolve import (
    Disk,
    HostMemory,
    bounded_while_loop,
    checkpointed_chain,
    checkpointed_fori_loop,
    checkpointed_scan,
    explain,
    host_scan,
    plan,
)
from jax_revolve.integrations.diffrax import RevolveAdjoint
from jax_revolve.integrations.equinox import filter_bounded_while_loop, filter_checkpointed_scan
from jax_revolve.loops.options import LoopOptions

pytestmark = pytest.mark.usefixtures("default_precision")

N = 12
X = np.linspace(0.1, 0.9, 5, dtype=np.float32)
LOOPS = [
    *(checkpointed_scan, bounded_while_loop, checkpointed_fori_loop, checkpointed_chain),
    *(filter_checkpointed_scan, filter_bounded_while_loop, RevolveAdjoint),
]


class Scale(eqx.Module):
    by: Any

    def __call__(self, x: Any) -> Any:
        return jnp.sin(self.by * x)


def scan(**asked: Any) -> Any:
    return lambda x: checkpointed_scan(lambda x, _: (jnp.sin(x), None), x, length=N, **asked)[0]


def while_loop(max_steps: Any = N, **asked: Any) -> Any:
    return lambda x: repeat(jnp.sin, 7, x, max_steps=max_steps, **asked)


def stack(**asked: Any) -> Any:
    return lambda x: checkpointed_chain(Scale(jnp.linspace(0.9, 1.1, N)), x, **asked)


def solve(**asked: Any) -> Any:
    term, options = diffrax.ODETerm(lambda t, y, _: -y), {"max_steps": N}
    run = partial(diffrax.diffeqsolve, term, diffrax.Euler(), 0.0, 1.0, 0.1, **options)
    return lambda x: cast(Any, run(x, adjoint=RevolveAdjoint(**asked)).ys)[-1]


def gradient(loop: Callable[..., Any], **asked: Any) -> Any:
    return jax.make_jaxpr(jax.grad(lambda x: jnp.sum(loop(**asked)(x))))(X)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_names_and_defaults_are_the_same(loop: Any) -> None:
    taken = signature(loop).parameters
    defaults = {f.name: f.default for f in fields(LoopOptions) if not f.kw_only}
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
def test_plans_that_do_not_fit(loop: Any) -> None:
    for asked, error, message in (
        ({"plan": plan(9, 3)}, ValueError, r"plan must be for a loop of 12 steps, but is for 9: "),
        ({"plan": plan(N, 3), "memory": "1MB"}, ValueError, "memory must be None where a plan is"),
        ({"plan": 3}, TypeError, r"plan must be a Plan"),
    ):
        with pytest.raises(error, match=message):
            loop(**asked)(X)
    if loop is while_loop:
        with pytest.raises(ValueError, match=r"plan must be None where max_steps is None.*h=12"):
            loop(max_steps=None, plan=plan(N, 3))(X)


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


def test_a_list_of_layers_has_a_schedule_of_its_own() -> None:
    given = {"block_size": 2, "storage": HostMemory(), "plan": plan(2, 1), "progress": True}
    for name, value in given.items():
        with pytest.raises(ValueError, match=f"^{name} must not be given for a list of layers"):
            checkpointed_chain([jnp.sin, jnp.cos], X, **{name: cast(Any, value)})


def run_with(**options: Any) -> Any:
    step = lambda u, _: (jnp.sin(u), None)  # noqa: E731
    return jax.grad(lambda u: jnp.sum(checkpointed_scan(step, u, length=N, **options)[0]))(X)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: run_with(memory=2e9), TypeError, r"memory .* but is 2\d+\.0 .* Pass 2000000000\."),
        (lambda: run_with(memory="10%"), ValueError, r"memory .* but is '10%'\. .*\.fit finds"),
        (lambda: run_with(memory="5M"), ValueError, r"memory .* but is '5M'\. Units are B, kB, MB"),
        (lambda: cast(Any, HostMemory)(30), TypeError, "positional argument"),
        (lambda: cast(Any, Disk)("/", 3), TypeError, "positional argument"),
        (
            lambda: run_with(unroll=2.5),
            TypeError,
            r"unroll must be a bool or an int >= 0, but is 2",
        ),
        (
            lambda: run_with(checkpoints=1, storage=Disk("/proc", transfer=0)),
            FileNotFoundError,
            r"'/proc/jax_revolve-.*' cannot be made: .*\. Pass the name of a folder",
        ),
        (
            lambda: host_scan(lambda u, x: (u, None), X, length=N, directory="/dev/null/run"),
            NotADirectoryError,
            r"The directory '/dev/null/run/process-0' cannot be made: Not a directory",
        ),
    ],
)
def test_errors_say_what_to_do(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call()
