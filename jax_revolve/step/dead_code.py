"""The part of a loop whose results are used, and the part that depends on known operands alone."""

from collections.abc import Sequence
from typing import Any

from jax_revolve._compat.jaxprs import ClosedJaxpr, pruned
from jax_revolve._compat.values import pick, spread
from jax_revolve.jaxprs.equations import calls_rules
from jax_revolve.step.linearized import Activity, find_activity, live_carry, needed_by, union
from jax_revolve.step.loop import Loop, Mask

Part = tuple[Mask, Mask, dict[str, Any]]
"""Which results are computed, which operands they need, and the primitive's parameters."""


def prune_jvp(used: Sequence[bool], function: Loop, activity: Activity) -> Part:
    """`prune_loop` for the loop with its tangents. A result with a used tangent is kept."""
    loop = function
    if loop.inverse is not None:
        used = [True] * len(used)
    dots = list(map(bool, spread(used[len(activity.results) :], activity.results)))
    results, operands, params = prune_loop(union(used[: len(dots)], dots), loop)

    own = _of_tangents(loop, activity, dots)
    kept = loop.operands(operands)
    (carry, ys), (_, dots_of_ys) = loop.results(results), loop.results(dots)
    init = loop.operands(own.operands).carry
    parts = ((own.consts, kept.consts), (init, carry), (own.xs, kept.xs))
    parts = (*parts, (own.carry, carry), (dots_of_ys, ys))
    rest = Activity(*(tuple(pick(mask, keep)) for mask, keep in parts))
    carry = map(min, carry, own.carry)
    return (
        (*results, *pick([*carry, *dots_of_ys], activity.results)),
        (*operands, *pick(list(map(min, operands, own.operands)), activity.operands)),
        {**params, "activity": rest},
    )


def _of_tangents(loop: Loop, activity: Activity, dots: Sequence[bool]) -> Activity:
    """The part of the activity on which these tangents of results depend. It is all of it where the
    step has rules, because the values are theirs, and where an inverse reads any carry."""
    if all(pick(dots, activity.results)) or loop.inverse is not None or calls_rules(loop.jaxpr):
        return activity
    carry, ys = loop.results(dots)
    carry = live_carry(loop._replace(condition=None), carry, ys)
    inputs = needed_by(loop.jaxpr, [*carry, *ys])
    first = [False] * loop.num_condition_consts
    needed = loop.operands([*first, *inputs])._replace(carry=carry)
    mask = [*needed.consts, *needed.carry, *needed.xs]
    found = find_activity(loop, list(map(min, mask, activity.operands)))
    return found if all(pick(found.results, dots)) else activity


def known_part(given: Sequence[bool], function: Loop) -> Part:
    """The part whose results depend on given operands alone. As in `lax.scan`, it runs before the
    other operands are known, because a function linear in them may divide by those results."""
    loop = function
    none = (False,) * len(loop.output_types), (), {"function": loop}
    consts, carry, xs = loop.operands(given)
    of_condition = consts[: loop.num_condition_consts]
    if loop.effects or loop.inverse is not None:  # an inverse needs the whole carry
        return none
    while True:
        inputs = [*consts[loop.num_condition_consts :], *carry, *xs]
        now, ys = loop.results(_follow(loop.jaxpr, inputs))
        kept = [a and b for a, b in zip(carry, now, strict=True)]
        if kept == carry:
            break
        carry = kept
    goes_on = loop.condition is None or all(_follow(loop.condition, [*of_condition, *carry]))
    if not goes_on or not any([*carry, *ys]):
        return none
    return prune_loop([*carry, *ys], loop)


def _follow(jaxpr: ClosedJaxpr, given: Sequence[bool]) -> list[bool]:
    """Which outputs depend on the given inputs alone."""
    count = len(jaxpr.out_avals)
    needs = (needed_by(jaxpr, [i == j for j in range(count)]) for i in range(count))
    return [all(pick(given, each)) for each in needs]


def prune_loop(used: Sequence[bool], function: Loop) -> Part:
    """The dead-code rule of the loop primitive. Like `lax.scan`, it drops carries on which no used
    result depends."""
    loop, first = function, function.num_condition_consts
    if all(used) or loop.inverse is not None:  # an inverse may read any of them
        every = (True,) * len(used), (True,) * (first + len(loop.jaxpr.in_avals))
        return *every, {"function": loop}
    num_xs = first + len(loop.jaxpr.in_avals) - loop.num_consts - loop.num_carry
    carry, ys = loop.results(used)
    carry = live_carry(loop, carry, ys)
    kept = [*[False] * (loop.num_consts - first), *carry, *[False] * num_xs]
    jaxpr, used_inputs = pruned(loop.jaxpr, [*carry, *ys], kept)
    inputs = loop.operands([*[True] * first, *used_inputs])
    if (condition := loop.condition) is not None:
        condition, _ = pruned(condition, [True], [*[True] * first, *carry])
    results, operands = (*carry, *ys), (*inputs.consts, *carry, *inputs.xs)
    smaller = loop._replace(
        jaxpr=jaxpr,
        condition=condition,
        num_consts=sum(inputs.consts),
        num_carry=sum(carry),
        output_types=tuple(pick(loop.output_types, results)),
    )
    return results, operands, {"function": smaller}
