"""The loop of values and tangents."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from jax_revolve._compat.jaxprs import call_jaxpr
from jax_revolve._compat.values import tangent_type, with_weak_type, zeros
from jax_revolve.jaxprs.prune import without_dead_code
from jax_revolve.step.linearized import Activity
from jax_revolve.step.loop import Loop, Mask, Operands, once, pick, substitute


class Paired(NamedTuple):
    """The loop of values and tangents, and the activity of the loop in these directions.

    Its operands are the loop's and the tangents of some, its carry the values and the tangents of
    the active ones, and its condition the values'. In each group of its operands and results, the
    values come first.
    """

    loop: Loop
    activity: Activity

    def operands(self, operands: Operands, tangents: Sequence[Any]) -> list[Any]:
        """Its operands, from the loop's and the tangents of the active ones."""
        given = iter(tangents)
        consts, init, xs = (
            [next(given) for active in mask if active]
            for mask in (self.activity.consts, self.activity.init, self.activity.xs)
        )
        assert not list(given)  # or tangents would belong to other operands, without a word
        is_given = pick(self.activity.init, self.activity.carry)
        starts = list(map(zeros, map(tangent_type, pick(operands.carry, self.activity.carry))))
        dots = substitute(starts, is_given, init)
        return [*operands.consts, *consts, *operands.carry, *dots, *operands.xs, *xs]

    def of_operands(self, activity: Activity) -> Mask:
        """Which of its operands belong to active operands of an activity of the loop."""
        own = self.activity
        init = [a and b for a, b in zip(activity.init, own.init, strict=True)]
        return (
            *(*activity.consts, *pick(activity.consts, own.consts)),
            *(*activity.init, *pick(init, own.carry)),
            *(*activity.xs, *pick(activity.xs, own.xs)),
        )

    def of_carry(self, mask: Mask) -> Mask:
        """The mask of a carry's leaves, of values and tangents."""
        return (*mask, *pick(mask, self.activity.carry))

    def of_ys(self, mask: Mask) -> Mask:
        return (*mask, *pick(mask, self.activity.ys))


def paired(loop: Loop, activity: Activity) -> Paired:
    """The loop of values and tangents, in the directions of the active operands."""
    return once(loop, ("paired", activity), lambda: Paired(_pair(loop, activity), activity))


def _pair(loop: Loop, activity: Activity) -> Loop:
    first = loop.num_condition_consts
    masks = (activity.consts[first:], activity.carry, activity.xs)
    types = loop.operands([*[None] * first, *loop.jaxpr.in_avals])
    types = (types.consts[first:], types.carry, types.xs)
    tangents = list(map(_tangent_types, types, masks))

    def step(*parts: list[Any]) -> list[Any]:
        values, dots = parts[::2], parts[1::2]

        def run(*chosen: list[Any]) -> list[Any]:
            inputs = map(substitute, values, masks, chosen)
            return call_jaxpr(loop.jaxpr)(*(x for part in inputs for x in part))

        both = jax.jvp(run, tuple(map(pick, values, masks)), dots)
        (carry, ys), (carry_dot, ys_dot) = map(loop.results, both)
        carry_dot = map(with_weak_type, pick(carry_dot, activity.carry), tangents[1])
        return [*carry, *carry_dot, *ys, *pick(ys_dot, activity.ys)]

    pairs = (part for both in zip(types, tangents, strict=True) for part in both)
    carry, ys = loop.results(loop.output_types)
    condition = loop.condition
    if condition is not None:
        holds = lambda carry, _: call_jaxpr(condition)(*carry)  # noqa: E731
        condition = jax.make_jaxpr(holds)(condition.in_avals, tangents[1])
    return loop._replace(
        jaxpr=without_dead_code(jax.make_jaxpr(step)(*pairs)),
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
