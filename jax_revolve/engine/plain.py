"""The plain engine: `lax.scan` itself. It runs a loop that nobody differentiates."""

from typing import Any

from jax import lax

from jax_revolve.engine.loop import Loop, Operands, Step


def run_plain(loop: Loop, step: Step, operands: Operands) -> list[Any]:
    """Final carry and ys, at exactly lax's cost."""
    carry, ys = lax.scan(
        lambda carry, x: step(operands.consts, carry, x),
        operands.carry,
        operands.xs,
        loop.length,
        loop.reverse,
        loop.unroll,
        loop.split_transpose,
    )
    return [*carry, *ys]
