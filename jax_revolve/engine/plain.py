"""The plain engine: `lax.scan` or `lax.while_loop` itself, unless the loop is differentiated in
reverse mode."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve.step.equation import run_as_traced
from jax_revolve.step.loop import Loop, Operands


def run_plain(loop: Loop, operands: Operands) -> list[Any]:
    """The final carry and the ys, at exactly the cost of `jax.lax`."""
    consts, init, xs = operands
    results = run_as_traced(loop, [*consts, *init, *xs])
    if results is not None:
        return results
    if loop.condition is not None:
        return _run_while(loop, consts, init)
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
    bound = loop.length

    def advance(carry: list[Any]) -> list[Any]:
        return loop.step(consts, carry, [])[0]

    if bound is None:
        return lax.while_loop(lambda carry: loop.holds(consts, carry), advance, init)

    def go_on(state: tuple[jax.Array, list[Any]]) -> Any:
        return (state[0] < bound) & loop.holds(consts, state[1])

    def counted(state: tuple[jax.Array, list[Any]]) -> tuple[jax.Array, list[Any]]:
        return state[0] + 1, advance(state[1])

    return lax.while_loop(go_on, counted, (jnp.int32(0), init))[1]
