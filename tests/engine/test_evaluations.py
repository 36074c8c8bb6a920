"""Body evaluations, counted while the program runs, against the optimum."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from support.evaluations import steps_executed, steps_of

from jax_revolve import checkpointed_scan, plan
from jax_revolve.engine.split import SplitTable
from jax_revolve.step import linearized
from jax_revolve.step.loop import Loop
from jax_revolve.storage.buffers import read, write

pytestmark = pytest.mark.usefixtures("compile_quickly", "default_precision")


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("length", "checkpoints"),
    [
        *[(1, 1), (2, 1), (2, 2), (5, 7), (13, 3), (5, 1)],
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in [(100, 5), (1000, 10), (997, 30), (225, 15), (2689, 116)]
        ),
    ],
)
def test_executed_order_is_the_schedule(length: int, checkpoints: int) -> None:
    """Also for a body that reads xs by the step number, replayed out of order."""
    chosen = plan(length, checkpoints)
    order = steps_executed(length, checkpoints, jax.value_and_grad)
    assert order == steps_of(chosen)
    assert len(order) == chosen.evaluations


def test_values_and_forward_mode_run_every_step_once() -> None:
    for transform in (lambda loss: loss, lambda loss: lambda a: jax.jvp(loss, (a,), (a,))):
        assert steps_executed(20, 3, transform) == list(range(20))


@pytest.mark.unchecked
@pytest.mark.parametrize(
    "transform",
    [
        lambda loss: jax.grad(jax.jit(loss)),
        lambda loss: lambda a: jax.vmap(jax.grad(loss))(jnp.stack([a, a])),
        lambda loss: jax.grad(lambda a: lax.cond(a > 0, loss, lambda a: a, a)),
        lambda loss: jax.grad(lambda a: lax.scan(lambda u, _: (loss(u), None), a, None, 1)[0]),
        lambda loss: lambda a: jax.linear_transpose(jax.linearize(loss, a)[1], a)(1.0),
    ],
    ids=["jit", "vmap", "cond", "scan", "linearize"],
)
def test_the_slots_engine_runs_inside(transform: Callable[..., Any]) -> None:
    executed = steps_executed(30, 4, transform)
    assert len(set(executed)) == 30
    assert len(executed) % plan(30, 4).evaluations == 0


def test_an_entry_is_one_operation() -> None:
    """No index is negative, so nothing has to look whether one is."""
    buffer, index = jnp.zeros((4, 3)), jnp.int32(2)

    def entry(buffer: Any, index: Any) -> Any:
        (value,) = read([buffer], index)
        return write([buffer], [value], index)

    names = {eqn.primitive.name for eqn in jax.make_jaxpr(entry)(buffer, index).eqns}
    assert not names.intersection({"lt", "select_n", "jit", "pjit"})


def counted(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """A note for each call of a function."""
    calls, function = list[None](), getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args: calls.append(None) or function(*args))
    return calls


def test_f_is_traced_once() -> None:
    traces = []

    def loss(a: Any) -> Any:
        step = lambda u, _: (jnp.sin(u) * a, traces.append(u) or u)  # noqa: E731
        u, ys = checkpointed_scan(step, a, length=10)
        return u + ys.sum()

    jax.jit(jax.hessian(loss))(1.0)
    assert len(traces) == 1


@pytest.mark.parametrize(
    ("options", "most"),
    [({}, 7), ({"checkpoints": 4}, 7), ({"block_size": 5}, 7), ({"memory": "1MB"}, 6)],
    ids=str,
)
def test_a_step_is_linearized_once(
    options: dict[str, Any], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gradient once traced a step about a dozen times, most of them with its derivative. The way
    to a block is looked for before the loop over blocks, in it, and at every checkpoint on the way,
    and traced once."""
    derivatives = counted(linearized, "Linearized", monkeypatch)
    steps = counted(Loop, "step", monkeypatch)
    splits = counted(SplitTable, "__call__", monkeypatch)

    def loss(a: Any) -> Any:
        return checkpointed_scan(lambda u, _: (jnp.sin(u) * a, u), a, length=40, **options)[0]

    jax.jit(jax.grad(loss)).lower(1.0)
    assert len(derivatives) == 1
    assert len(steps) <= most
    assert len(splits) <= 1
    assert splits or options != {"checkpoints": 4}


def test_a_batched_scan_is_linearized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    derivatives = counted(linearized, "Linearized", monkeypatch)
    loss = lambda a: checkpointed_scan(lambda u, _: (jnp.sin(u) * a, None), a, length=9)[0]  # noqa: E731
    jax.jit(jax.vmap(jax.grad(loss))).lower(jnp.ones(3))
    assert len(derivatives) == 1
