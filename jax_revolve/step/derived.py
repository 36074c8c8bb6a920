"""The loop of values and tangents, and the loop with further carries."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from jax_revolve._compat.jaxprs import call_jaxpr
from jax_revolve._compat.values import pick, substitute, tangent_type, with_weak_type, zeros
from jax_revolve.jaxprs.parts import without_dead_code
from jax_revolve.step.linearized import Activity
from jax_revolve.step.loop import Loop, Mask, Operands, once


class Paired(NamedTuple):
    """The loop of values and tangents, and the activity of the original loop in these directions.

    It carries the values and the tangents of active carries, and has the condition of the values.
    In each group of its operands and results, the values come first, then tangents of active ones.
    """

    loop: Loop
    activity: Activity

    def operands(
        self,
        operands: Operands,
        tangents: Sequence[Any],
        start: Callable[[Any], Any] = lambda x: zeros(tangent_type(x)),
    ) -> list[Any]:
        """Its operands, from the original loop's and the tangents of active ones. `start` is the
        tangent of an initial carry without one."""
        given = iter(tangents)
        consts, init, xs = (
            [next(given) for active in mask if active]
            for mask in (self.activity.consts, self.activity.init, self.activity.xs)
        )
        assert not list(given)  # or tangents would silently belong to other operands
        is_given = pick(self.activity.init, self.activity.carry)
        starts = map(start, pick(operands.carry, self.activity.carry))
        dots = substitute(list(starts), is_given, init)
        return [*operands.consts, *consts, *operands.carry, *dots, *operands.xs, *xs]

    def halves(self, results: Sequence[Any], num_ys: int) -> tuple[list[Any], list[Any]]:
        """The values, with `num_ys` ys, and the tangents, from the results of the loop of both."""
        num_carry = len(self.activity.carry)
        carry, ys = self.loop.results(results)
        return [*carry[:num_carry], *ys[:num_ys]], [*carry[num_carry:], *ys[num_ys:]]


def paired(loop: Loop, activity: Activity) -> Paired:
    """The loop of values and tangents, in the directions of active operands. The derivative of an
    inverse inverts the derivative, because `g(f(c)) = c` also holds for pairs."""
    return once(loop, ("paired", activity), lambda: Paired(_pair(loop, activity), activity))


def _pair(loop: Loop, activity: Activity) -> Loop:
    first = loop.num_condition_consts
    masks = (activity.consts[first:], activity.carry, activity.xs, activity.ys)
    operands = loop.operands([*[None] * first, *loop.jaxpr.in_avals])
    types = [operands.consts[first:], operands.carry, operands.xs]
    if loop.inverse is not None:  # which takes the ys, too
        types.append(loop.inverse.in_avals[len(loop.jaxpr.in_avals) :])
    tangents = list(map(_tangent_types, types, masks))

    def derivative(jaxpr: Any, *parts: list[Any]) -> tuple[list[Any], list[Any]]:
        values, dots = parts[::2], parts[1::2]

        def run(*chosen: list[Any]) -> list[Any]:
            inputs = map(substitute, values, masks, chosen)
            return call_jaxpr(jaxpr)(*(x for part in inputs for x in part))

        return jax.jvp(run, tuple(map(pick, values, masks)), dots)

    def step(*parts: list[Any]) -> list[Any]:
        (carry, ys), (carry_dot, ys_dot) = map(loop.results, derivative(loop.jaxpr, *parts))
        carry_dot = map(with_weak_type, pick(carry_dot, activity.carry), tangents[1])
        return [*carry, *carry_dot, *ys, *pick(ys_dot, activity.ys)]

    def inverse(*parts: list[Any]) -> list[Any]:
        carry, carry_dot = derivative(loop.inverse, *parts)
        return [*carry, *map(with_weak_type, pick(carry_dot, activity.carry), tangents[1])]

    pairs = [part for both in zip(types, tangents, strict=False) for part in both]
    reversible = {}
    if loop.inverse is not None and (trust := loop.trust) is not None:
        names = (f"the tangent of {name}" for name in pick(trust.leaves, activity.carry))
        examples = (*trust.examples, *pick(trust.examples, activity.carry))
        reversible = {
            "inverse": without_dead_code(jax.make_jaxpr(inverse)(*pairs)),
            "trust": trust._replace(leaves=(*trust.leaves, *names), examples=examples),
        }
    carry, ys = loop.results(loop.output_types)
    condition = loop.condition
    if condition is not None:
        holds = lambda carry, _: call_jaxpr(condition)(*carry)  # noqa: E731
        condition = jax.make_jaxpr(holds)(condition.in_avals, tangents[1])
    return loop._replace(
        **reversible,
        jaxpr=without_dead_code(jax.make_jaxpr(step)(*pairs[:6])),
        condition=condition,
        num_consts=loop.num_consts + len(tangents[0]),
        num_carry=loop.num_carry + len(tangents[1]),
        output_types=(
            *(*carry, *_tangent_types(carry, activity.carry)),
            *(*ys, *_tangent_types(ys, activity.ys)),
        ),
    )


def _tangent_types(types: Sequence[Any], active: Mask) -> list[Any]:
    return [t.to_tangent_aval() for t in pick(types, active)]
