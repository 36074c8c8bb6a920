"""The values of a loop that have derivatives: those that depend on a differentiated operand."""

from typing import Any, NamedTuple

import jax

from jax_revolve._compat import SymbolicZero, tangent_type, zeros
from jax_revolve.step.loop import Loop, Operands, pick, substitute

Mask = tuple[bool, ...]


class Activity(NamedTuple):
    """One flag per value. `init` flags the initial carries that are differentiated; `carry` flags
    the carries that depend on any differentiated operand, after any number of steps."""

    consts: Mask
    init: Mask
    xs: Mask
    carry: Mask
    ys: Mask

    @property
    def operands(self) -> Mask:
        return (*self.consts, *self.init, *self.xs)

    @property
    def results(self) -> Mask:
        return (*self.carry, *self.ys)


def find_activity(loop: Loop, operands: Operands, differentiated: list[bool]) -> Activity:
    """The least fixed point over the carry, given which operands are differentiated."""
    consts, init, xs = loop.operands(differentiated)
    carry = init
    while True:
        carry_out, ys = _step_activity(loop, operands, [*consts, *carry, *xs])
        grown = [a or b for a, b in zip(carry, carry_out, strict=True)]
        if grown == carry:
            return Activity(*map(tuple, (consts, init, xs, carry, ys)))
        carry = grown


def _step_activity(
    loop: Loop, operands: Operands, active: list[bool]
) -> tuple[list[bool], list[bool]]:
    """Which results of one step have a derivative that is not symbolically zero.

    JAX answers, as in `lax.scan`: the derivative of the step is traced, and nothing runs.
    """
    # JAX calls the rule below only if something has a derivative.
    found = [False] * len(loop.output_types)

    @jax.custom_jvp
    def look(results: list[Any]) -> list[Any]:
        return results

    def look_jvp(primals: tuple[list[Any]], tangents: tuple[list[Any]]) -> tuple[Any, Any]:
        found[:] = [not isinstance(t, SymbolicZero) for t in tangents[0]]
        return primals[0], tangents[0]

    look.defjvp(look_jvp, symbolic_zeros=True)

    def derivative() -> Any:
        inputs = [*operands.consts, *operands.carry, *(x[0] for x in operands.xs)]

        def step(chosen: list[Any]) -> list[Any]:
            carry, y = loop.step(*loop.operands(substitute(inputs, active, chosen)))
            return look([*carry, *y])

        chosen = pick(inputs, active)
        return jax.jvp(step, (chosen,), ([zeros(tangent_type(v)) for v in chosen],))

    jax.eval_shape(derivative)
    return loop.results(found)
