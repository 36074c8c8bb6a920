"""One step, linearized and pulled back, for both engines that reverse a loop."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax

from jax_revolve._compat.jaxprs import call_jaxpr
from jax_revolve._compat.values import tangent_type, zeros
from jax_revolve.step.activity import Activity
from jax_revolve.step.cpu import with_reads_first
from jax_revolve.step.loop import Operands, Step, pick, substitute
from jax_revolve.storage.buffers import write


class Cotangents(NamedTuple):
    """Cotangents of a loop's results: of every active carry, and of every active y, with `None` for
    a y whose cotangent is zero at every step."""

    carry: list[Any]
    ys: list[Any]


class Linearized(NamedTuple):
    """One linearized step: its results, its residuals, the tree that makes the pullback from the
    residuals, and the types of its cotangents."""

    results: list[Any]
    residuals: list[Any]
    pullback: Any
    types: list[Any]

    def filled(self, cotangents: Cotangents) -> list[Any]:
        """The cotangents of all active results, zeros included."""
        given = [*cotangents.carry, *cotangents.ys]
        return [zeros(t) if ct is None else ct for t, ct in zip(self.types, given, strict=True)]

    def without_values(self) -> "Linearized":
        """The part without tracers, which may leave its trace."""
        return self._replace(results=[], residuals=[])


def linearize(step: Step, activity: Activity, inputs: Operands) -> Linearized:
    """One step, linearized in its active inputs."""
    masks = (activity.consts, activity.carry, activity.xs)

    def active_step(*chosen: list[Any]) -> tuple[list[Any], list[Any]]:
        carry, y = step(*map(substitute, inputs, masks, chosen))
        results = [*carry, *y]
        return pick(results, activity.results), results

    active, pullback, results = jax.vjp(active_step, *map(pick, inputs, masks), has_aux=True)
    return Linearized(results, *jax.tree.flatten(pullback), [tangent_type(r) for r in active])


def pull_back(linearized: Linearized, residuals: list[Any], cotangents: Cotangents) -> Operands:
    """The cotangents of a step's active inputs, from its active results'. Residuals may be
    from another step of the same loop."""
    pullback = jax.tree.unflatten(linearized.pullback, residuals)
    return Operands(*pullback(linearized.filled(cotangents)))


def pull_back_step(
    step: Step,
    activity: Activity,
    inputs: Operands,
    cotangents: Cotangents,
) -> Operands:
    """`pull_back` with the residuals of this step."""
    linearized = linearize(step, activity, inputs)
    run = partial(pull_back, linearized, linearized.residuals)
    traced, shape = jax.make_jaxpr(run, return_shape=True)(cotangents)
    flat = call_jaxpr(with_reads_first(traced))(*jax.tree.leaves(cotangents))
    return jax.tree.unflatten(jax.tree.structure(shape), flat)


def zero_cotangents(values: list[Any], active: Sequence[bool]) -> list[Any]:
    """Zero cotangents of the active values, to which cotangents are added."""
    return [zeros(tangent_type(v)) for v in pick(values, active)]


def add(total: list[Any], more: list[Any]) -> list[Any]:
    return [a + b for a, b in zip(total, more, strict=True)]


def accumulate(gradient: Operands, of_step: Operands, at: Any) -> Operands:
    """The cotangents before a step, which reads xs at index `at`, from those after it."""
    return Operands(
        consts=add(gradient.consts, of_step.consts),
        carry=of_step.carry,
        xs=write(gradient.xs, of_step.xs, at),
    )


def of_init(ct_carry: list[Any], activity: Activity) -> list[Any]:
    """The cotangents of the differentiated initial carries, from all active carries' cotangents."""
    return pick(ct_carry, pick(activity.init, activity.carry))
