"""The values of a loop that have derivatives: those that depend on a differentiated operand."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from jax_revolve._compat.jaxprs import call_jaxpr
from jax_revolve._compat.values import SymbolicZero, tangent_type, zeros
from jax_revolve.step.loop import Loop, pick, substitute
from jax_revolve.step.once import once

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


def find_activity(loop: Loop, differentiated: Sequence[bool]) -> Activity:
    """The least fixed point over the carry, given which operands are differentiated. A predicate
    has no derivative, so consts of the condition have none."""
    first = loop.num_condition_consts
    mask = (*[False] * first, *differentiated[first:])

    def find() -> Activity:
        consts, init, xs = loop.operands(mask)
        carry = init
        while True:
            carry_out, ys = _step_activity(loop, [*consts, *carry, *xs])
            grown = [a or b for a, b in zip(carry, carry_out, strict=True)]
            if grown == carry:
                return Activity(*map(tuple, (consts, init, xs, carry, ys)))
            carry = grown

    return once(loop.bare, ("activity", mask), find)


def _step_activity(loop: Loop, active: list[bool]) -> tuple[list[bool], list[bool]]:
    """Which results of one step have a derivative that is not symbolically zero.

    JAX answers, as in `lax.scan`: the derivative of the step is traced, and nothing runs.
    """
    # JAX calls the rule below only if something has a derivative.
    found, active = [False] * len(loop.output_types), active[loop.num_condition_consts :]

    @jax.custom_jvp
    def look(results: list[Any]) -> list[Any]:
        return results

    def look_jvp(primals: tuple[list[Any]], tangents: tuple[list[Any]]) -> tuple[Any, Any]:
        found[:] = [not isinstance(t, SymbolicZero) for t in tangents[0]]
        return primals[0], tangents[0]

    look.defjvp(look_jvp, symbolic_zeros=True)

    def derivative(*inputs: Any) -> Any:
        def step(chosen: list[Any]) -> list[Any]:
            return look(call_jaxpr(loop.jaxpr)(*substitute(inputs, active, chosen)))

        chosen = pick(inputs, active)
        return jax.jvp(step, (chosen,), ([zeros(tangent_type(v)) for v in chosen],))

    jax.make_jaxpr(derivative)(*loop.jaxpr.in_avals)
    return loop.results(found)
