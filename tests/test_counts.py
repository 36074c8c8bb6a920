"""Body evaluations, counted while the program runs, against the optimum."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jax_revolve import checkpointed_scan, plan
from jax_revolve.engine.split import SplitTable
from jax_revolve.schedule.actions import Advance, Tape
from jax_revolve.step import linearized
from jax_revolve.step.loop import Loop
from jax_revolve.storage.buffers import read, write

pytestmark = pytest.mark.usefixtures("compile_quickly", "default_precision")


def steps_executed(
    length: int, checkpoints: Any, transform: Callable[..., Any], **options: Any
) -> list[int]:
    """The numbers of the steps that the transformed loop runs, in the order in which it does."""
    executed: list[int] = []

    def loss(a: Any) -> Any:
        def step(u: Any, i: Any) -> Any:
            jax.debug.callback(lambda i: executed.append(int(i)), i, ordered=False)
            return jnp.sin(u), None

        xs = jnp.arange(length)
        return checkpointed_scan(step, a, xs, checkpoints=checkpoints, **options)[0]

    jax.block_until_ready(jax.jit(transform(loss))(1.0))
    jax.effects_barrier()
    return executed


def steps_of(chosen: Any) -> list[int]:
    """The numbers of the steps that a plan runs, in its order."""
    ran = [action for action in chosen if isinstance(action, Advance | Tape)]
    return [i for action in ran for i in range(action.start, action.stop)]


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


@pytest.mark.parametrize(
    ("name", "transform"),
    [
        ("jit", lambda loss: jax.grad(jax.jit(loss))),
        ("vmap", lambda loss: lambda a: jax.vmap(jax.grad(loss))(jnp.stack([a, a]))),
        ("cond", lambda loss: jax.grad(lambda a: jax.lax.cond(a > 0, loss, lambda a: a, a))),
        ("scan", lambda loss: jax.grad(_scanned(loss))),
        ("linearize", lambda loss: lambda a: _pull_back(loss, a)),
    ],
)
def test_the_slots_engine_runs_inside(name: str, transform: Callable[..., Any]) -> None:
    del name
    executed = steps_executed(30, 4, transform)
    assert len(set(executed)) == 30
    assert len(executed) % plan(30, 4).evaluations == 0


def _scanned(loss: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a: jax.lax.scan(lambda u, _: (loss(u), None), a, None, 1)[0]


def _pull_back(loss: Callable[..., Any], a: Any) -> Any:
    value, push = jax.linearize(loss, a)
    return jax.linear_transpose(push, a)(value)


def test_an_entry_is_one_operation() -> None:
    """No index is negative, so nothing has to look whether one is."""
    buffer, index = jnp.zeros((4, 3)), jnp.int32(2)

    def entry(buffer: Any, index: Any) -> Any:
        (value,) = read([buffer], index)
        return write([buffer], [value], index)

    names = {eqn.primitive.name for eqn in jax.make_jaxpr(entry)(buffer, index).eqns}
    assert not names.intersection({"lt", "select_n", "jit", "pjit"})


def test_the_way_to_a_block_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked for before the loop over blocks, in it, and at every checkpoint on the way."""
    splits = 0
    split = SplitTable.__call__

    def counted(*args: Any) -> Any:
        nonlocal splits
        splits += 1
        return split(*args)

    monkeypatch.setattr(SplitTable, "__call__", counted)

    def loss(a: Any) -> Any:
        return checkpointed_scan(lambda u, _: (jnp.sin(u), None), a, length=40, checkpoints=4)[0]

    jax.jit(jax.grad(loss)).lower(1.0)
    assert splits == 1


def test_f_is_traced_once() -> None:
    traces = 0

    def loss(a: Any) -> Any:
        def step(u: Any, _: Any) -> Any:
            nonlocal traces
            traces += 1
            return jnp.sin(u) * a, u

        u, ys = checkpointed_scan(step, a, length=10)
        return u + ys.sum()

    jax.jit(jax.hessian(loss))(1.0)
    assert traces == 1


@pytest.mark.parametrize(
    ("options", "most"),
    [({}, 7), ({"checkpoints": 4}, 7), ({"block_size": 5}, 7), ({"memory": "1MB"}, 6)],
    ids=str,
)
def test_a_step_is_linearized_once(
    options: Any, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gradient once traced a step about a dozen times, most of them with its derivative."""
    counts = {"linearized": 0, "traced": 0}

    def counting(name: str, function: Any) -> Any:
        def counted(*args: Any) -> Any:
            counts[name] += 1
            return function(*args)

        return counted

    monkeypatch.setattr(linearized, "linearize", counting("linearized", linearized.linearize))
    monkeypatch.setattr(Loop, "step", counting("traced", Loop.step))

    def loss(a: Any) -> Any:
        return checkpointed_scan(lambda u, _: (jnp.sin(u) * a, u), a, length=40, **options)[0]

    jax.jit(jax.grad(loss)).lower(1.0)
    assert counts["linearized"] == 1
    assert counts["traced"] <= most
