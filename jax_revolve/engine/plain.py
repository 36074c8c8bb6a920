"""The plain engine: `lax.scan` or `lax.while_loop` itself. It runs a loop that nobody
differentiates in reverse."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve.engine.loop import Loop, Operands


def run_plain(loop: Loop, operands: Operands) -> list[Any]:
    """Final carry and ys, at exactly lax's cost."""
    consts, init, xs = operands
    if loop.condition is not None:
        return _run_while(loop, consts, init)
    carry, ys = lax.scan(
        lambda carry, x: loop.step(consts, carry, x),
        init,
        xs,
        loop.length,
        loop.reverse,
        loop.unroll,
        loop.split_transpose,
    )
    return [*carry, *ys]


def _run_while(loop: Loop, consts: list[Any], init: list[Any]) -> list[Any]:
    bound = loop.length

    def advance(carry: list[Any]) -> list[Any]:
        return loop.step(consts, carry, [])[0]

    if bound is None:
        return lax.while_loop(lambda carry: loop.holds(consts, carry), advance, init)

    def go_on(state: tuple[jax.Array, list[Any]]) -> jax.Array:
        count, carry = state
        return (count < bound) & loop.holds(consts, carry)

    def counted(state: tuple[jax.Array, list[Any]]) -> tuple[jax.Array, list[Any]]:
        count, carry = state
        return count + 1, advance(carry)

    return lax.while_loop(go_on, counted, (jnp.int32(0), init))[1]
