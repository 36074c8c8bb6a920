"""The part of a loop whose results are used, and the part that depends on known operands."""

from collections.abc import Sequence
from typing import Any

from jax_revolve._compat.jaxprs import ClosedJaxpr, pruned
from jax_revolve.step.linearized import Activity, either, needed_by
from jax_revolve.step.loop import Loop, Mask, pick

Part = tuple[Mask, Mask, dict[str, Any]]
"""Which results are computed, which operands they need, and the parameters of the primitive."""


def prune_loop(used: Sequence[bool], function: Loop) -> Part:
    """The dead-code rule of the loop primitive."""
    if all(used):
        num_operands = function.num_condition_consts + len(function.jaxpr.in_avals)
        return tuple(used), (True,) * num_operands, {"function": function}
    smaller, results, operands = _live(function, used)
    return results, operands, {"function": smaller}


def prune_jvp(used: Sequence[bool], function: Loop, activity: Activity) -> Part:
    """`prune_loop` for the loop with its tangents. A result is kept if its tangent is used. A y
    whose tangent is not used has no tangent."""
    loop = function
    if all(used):
        num_operands = len(activity.operands) + sum(activity.operands)
        return tuple(used), (True,) * num_operands, {"function": loop, "activity": activity}
    active = [i for i, is_active in enumerate(activity.results) if is_active]
    tangents = dict(zip(active, used[len(loop.output_types) :], strict=True))
    wanted = [u or tangents.get(i, False) for i, u in enumerate(used[: len(activity.results)])]
    smaller, results, operands = _live(loop, wanted)

    kept = loop.operands(operands)
    carry, ys = loop.results(results)
    _, active_ys = loop.results([tangents.get(i, False) for i in range(len(results))])
    init = loop.operands(activity.operands).carry
    parts = ((activity.consts, kept.consts), (init, carry), (activity.xs, kept.xs))
    consts, init, xs = (tuple(pick(mask, keep)) for mask, keep in parts)
    rest = Activity(
        consts, init, xs, tuple(pick(activity.carry, carry)), tuple(pick(active_ys, ys))
    )
    of_tangents = [results[i] if i < loop.num_carry else tangents[i] and results[i] for i in active]
    return (
        (*results, *of_tangents),
        (*operands, *pick(operands, activity.operands)),
        {"function": smaller, "activity": rest},
    )


def known_part(given: Sequence[bool], function: Loop) -> Part:
    """The part whose results depend on given operands alone. It runs before the other operands are
    known, as in `lax.scan`: what is linear in the others may divide by those results."""
    loop = function
    none = (False,) * len(loop.output_types), (), {"function": loop}
    consts, carry, xs = loop.operands(given)
    of_condition = consts[: loop.num_condition_consts]
    if loop.effects:
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
    smaller, results, operands = _live(loop, [*carry, *ys])
    return results, operands, {"function": smaller._replace(progress=None)}


def _follow(jaxpr: ClosedJaxpr, given: Sequence[bool]) -> list[bool]:
    """Which outputs depend on given inputs alone."""
    count = len(jaxpr.out_avals)
    needs = (needed_by(jaxpr, [i == j for j in range(count)]) for i in range(count))
    return [all(pick(given, each)) for each in needs]


def _live(loop: Loop, used: Sequence[bool]) -> tuple[Loop, Mask, Mask]:
    """The loop that computes the used results, and which results and operands it has. Carries that
    no used result depends on are dropped, as by `lax.scan`."""
    first = loop.num_condition_consts
    num_xs = first + len(loop.jaxpr.in_avals) - loop.num_consts - loop.num_carry
    carry, ys = loop.results(list(used))
    condition = loop.condition
    if condition is not None:
        carry = either(carry, needed_by(condition, [True])[first:])
    while True:
        kept = [*[False] * (loop.num_consts - first), *carry, *[False] * num_xs]
        jaxpr, taken = pruned(loop.jaxpr, [*carry, *ys], kept)
        inputs = loop.operands([*[True] * first, *taken])
        if inputs.carry == carry:
            break
        carry = either(carry, inputs.carry)
    if condition is not None:
        condition, _ = pruned(condition, [True], [*[True] * first, *carry])
    results, operands = (*carry, *ys), (*inputs.consts, *carry, *inputs.xs)
    smaller = loop._replace(
        jaxpr=jaxpr,
        condition=condition,
        num_consts=sum(inputs.consts),
        num_carry=sum(carry),
        output_types=tuple(pick(loop.output_types, results)),
    )
    return smaller, results, operands
