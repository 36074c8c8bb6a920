"""One step, transposed: what both engines that reverse a loop do at each of its steps."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from jax_revolve._compat import tangent_type, zeros
from jax_revolve.engine.activity import Activity
from jax_revolve.engine.loop import Operands, Step, choose, substitute


class Cotangents(NamedTuple):
    """Cotangents of a loop's results: of every active carry, and of every active y or, where the
    cotangent is zero all along, `None`."""

    carry: list[Any]
    ys: list[Any]


class Linearised(NamedTuple):
    """One step, linearised: the values that its pullback needs, how to put the pullback together
    from them, and the types of its cotangents."""

    residuals: list[Any]
    pullback: Any
    types: list[Any]


def linearise(step: Step, activity: Activity, inputs: Operands) -> Linearised:
    """One step, linearised in its active inputs."""
    masks = (activity.consts, activity.carry, activity.xs)

    def active_step(*chosen: list[Any]) -> list[Any]:
        carry, y = step(*map(substitute, inputs, masks, chosen))
        return choose([*carry, *y], activity.results)

    results, pullback = jax.vjp(active_step, *map(choose, inputs, masks))
    return Linearised(*jax.tree.flatten(pullback), [tangent_type(result) for result in results])


def pull_back_step(
    step: Step,
    activity: Activity,
    inputs: Operands,
    cotangents: Cotangents,
    compute: Callable[[Callable[[], list[Any]]], list[Any]] = lambda residuals: residuals(),
) -> Operands:
    """The cotangents of one step's active inputs, from those of its active results.

    `compute` runs the function that linearises the step, which takes nothing and returns residuals.
    """
    known: list[Linearised] = []

    def residuals() -> list[Any]:
        known[:] = [linearise(step, activity, inputs)]
        return known[0].residuals

    values = compute(residuals)
    _, pullback, types = known[0]
    cotangents_in = [
        zeros(aval) if ct is None else ct
        for aval, ct in zip(types, [*cotangents.carry, *cotangents.ys], strict=True)
    ]
    return Operands(*jax.tree.unflatten(pullback, values)(cotangents_in))


def zero_cotangents(values: list[Any], active: Sequence[bool]) -> list[Any]:
    """Where the cotangents of the active values are added up."""
    return [zeros(tangent_type(v)) for v in choose(values, active)]


def add(total: list[Any], more: list[Any]) -> list[Any]:
    return [a + b for a, b in zip(total, more, strict=True)]


def of_init(ct_carry: list[Any], activity: Activity) -> list[Any]:
    """Of the cotangents of every active carry, those of the differentiated initial carries."""
    return choose(ct_carry, choose(activity.init, activity.carry))
