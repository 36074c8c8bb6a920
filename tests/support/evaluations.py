"""Which steps run, counted while a program runs, and which a plan says."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jax_revolve import bounded_while_loop, checkpointed_scan
from jax_revolve.schedule.actions import Advance, Tape


def repeat(step: Callable[[Any], Any], times: Any, x: Any, **options: Any) -> Any:
    """The step so many times, which nothing but the condition and the counter know."""
    body = lambda state: (state[0] + 1, step(state[1]))  # noqa: E731
    start = (jnp.int32(0), x)
    return bounded_while_loop(lambda state: state[0] < times, body, start, **options)[1]


def evaluations(steps: Any, transform: Any = jax.value_and_grad, **options: Any) -> int:
    """How often the body runs. Under `vmap` one run is for the whole batch."""
    executed: list[None] = []

    def step(u: Any) -> Any:
        jax.debug.callback(lambda: executed.append(None))
        return jnp.sin(u)

    loss = lambda a, limit: repeat(step, limit, a, **options)  # noqa: E731
    jax.block_until_ready(jax.jit(transform(loss))(jnp.ones(jnp.shape(steps)), steps))
    jax.effects_barrier()
    return len(executed)


def executed(
    loss: Callable[[Any, Callable[[Any], None]], Any], transform: Any = jax.value_and_grad
) -> list[int]:
    """The numbers of the steps that a transformed loss runs and notes, in their order."""
    order: list[int] = []

    def note(i: Any) -> None:
        jax.debug.callback(lambda i: order.append(int(i)), i, ordered=False)

    jax.block_until_ready(jax.jit(transform(lambda a: loss(a, note)))(1.0))
    jax.effects_barrier()
    return order


def steps_executed(length: int, checkpoints: Any, transform: Any, **options: Any) -> list[int]:
    def loss(a: Any, note: Any) -> Any:
        step = lambda u, i: (note(i) or jnp.sin(u), None)  # noqa: E731
        return checkpointed_scan(step, a, jnp.arange(length), checkpoints=checkpoints, **options)[0]

    return executed(loss, transform)


def steps_of(chosen: Any) -> list[int]:
    """The numbers of the steps that a plan runs, in its order."""
    ran = [action for action in chosen if isinstance(action, Advance | Tape)]
    return [i for action in ran for i in range(action.start, action.stop)]
