"""The values of a loop that have derivatives: those that depend on a differentiated operand."""

from collections.abc import Callable, Sequence
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
            active = [*consts, *carry, *xs][first:]
            results = active_results(call_jaxpr(loop.jaxpr), loop.jaxpr.in_avals, active)
            carry_out, ys = loop.results(results)
            grown = [a or b for a, b in zip(carry, carry_out, strict=True)]
            if grown == carry:
                return Activity(*map(tuple, (consts, init, xs, carry, ys)))
            carry = grown

    return once(loop.bare, ("activity", mask), find)


def active_results(
    fun: Callable[..., Sequence[Any]], types: Sequence[Any], active: Sequence[bool]
) -> list[bool]:
    """Which results of a function have a derivative in its active inputs that is not symbolically
    zero.

    JAX answers, as in `lax.scan`: the derivative is traced, and nothing runs.
    """
    found: list[bool] | None = None

    @jax.custom_jvp
    def look(results: Sequence[Any]) -> Sequence[Any]:
        return results

    def look_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
        nonlocal found
        found = [not isinstance(t, SymbolicZero) for t in tangents[0]]
        return primals[0], tangents[0]

    look.defjvp(look_jvp, symbolic_zeros=True)

    def derivative(*inputs: Any) -> Any:
        def results(chosen: list[Any]) -> Sequence[Any]:
            results = list(fun(*substitute(inputs, active, chosen)))
            count.append(len(results))
            return look(results)

        chosen = pick(inputs, active)
        return jax.jvp(results, (chosen,), ([zeros(tangent_type(v)) for v in chosen],))

    count: list[int] = []
    jax.make_jaxpr(derivative)(*types)
    # JAX calls the rule only if something has a derivative.
    return [False] * count[0] if found is None else found
