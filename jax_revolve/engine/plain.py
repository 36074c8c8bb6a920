"""The plain engine: `lax.scan` or `lax.while_loop` itself, unless the loop is differentiated in
reverse mode. A progress bar adds a counter to the loop, and nothing else changes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve._compat.values import with_weak_type
from jax_revolve.engine.nest import run_forward_offline
from jax_revolve.engine.reports import Reports
from jax_revolve.progress.listener import FORWARD
from jax_revolve.schedule.plan import Plan
from jax_revolve.step.equation import run_as_traced
from jax_revolve.step.loop import Loop, Operands
from jax_revolve.step.steps import Steps

LARGEST = np.iinfo(np.int32).max


def run_plain(loop: Loop, operands: Operands) -> list[Any]:
    """The final carry and the ys, at exactly the cost of `jax.lax` unless progress is shown."""
    consts, init, xs = operands
    if loop.progress is None:
        results = run_as_traced(loop, [*consts, *init, *xs])
        if results is not None:
            return results
    if loop.condition is not None:
        return _run_while(loop, consts, init)
    if Reports(loop, FORWARD, loop.steps).are_shown and loop.length:
        restart, plan = (False,) * loop.num_carry, Plan(loop.length, 1)  # nothing is stored
        steps = Steps.of(loop, restart, operands)
        results, _ = run_forward_offline(steps, plan, loop.all_ys, tapes=False)
        return list(map(with_weak_type, results, loop.output_types))
    carry, ys = lax.scan(
        lambda carry, x: loop.step(consts, carry, x),
        init,
        xs,
        loop.length,
        loop.reverse,
        loop.unroll,
    )
    return [*carry, *ys]


def _run_while(loop: Loop, consts: list[Any], init: list[Any]) -> list[Any]:
    bound, reports = loop.length, Reports(loop, FORWARD, None)

    def advance(carry: list[Any]) -> list[Any]:
        return loop.step(consts, carry, [])[0]

    if bound is None and not reports.are_shown:
        return lax.while_loop(lambda carry: loop.holds(consts, carry), advance, init)

    def go_on(state: tuple[jax.Array, list[Any]]) -> Any:
        count, carry = state
        holds = loop.holds(consts, carry)
        return holds if bound is None else (count < bound) & holds

    def counted(state: tuple[jax.Array, list[Any]]) -> tuple[jax.Array, list[Any]]:
        count, carry = state
        reports.before_step(count)
        more = 1 if bound is not None else (count < LARGEST).astype(jnp.int32)
        return count + more, advance(carry)

    count, carry = lax.while_loop(go_on, counted, (reports.begin(jnp.int32(0)), init))
    reports.end(count)
    return carry
