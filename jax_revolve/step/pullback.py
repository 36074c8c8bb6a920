"""One step, linearized and pulled back, for both engines that reverse a loop."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat import (
    ClosedJaxpr,
    Uses,
    call_jaxpr,
    run_each,
    run_equation,
    run_in_place,
    tangent_type,
    updated,
    with_equations,
    with_slices,
    zeros,
)
from jax_revolve.step.activity import Activity
from jax_revolve.step.examples import any_example
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
    """The cotangents of a step's active inputs, from those of its active results. Residuals may be
    those of another step of the same loop."""
    cotangents_in = linearized.filled(cotangents)
    pullback = jax.tree.unflatten(linearized.pullback, residuals)
    traced, shape = jax.make_jaxpr(pullback, return_shape=True)(cotangents_in)
    flat = call_jaxpr(_with_reads_first(traced))(*cotangents_in)
    return Operands(*jax.tree.unflatten(jax.tree.structure(shape), flat))


def pull_back_step(
    step: Step,
    activity: Activity,
    inputs: Operands,
    cotangents: Cotangents,
) -> Operands:
    """`pull_back` with the residuals of this step."""
    linearized = linearize(step, activity, inputs)
    return pull_back(linearized, linearized.residuals, cotangents)


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
    """The cotangents of the differentiated initial carries, from those of all active carries."""
    return pick(ct_carry, pick(activity.init, activity.carry))


def _with_reads_first(pullback: ClosedJaxpr) -> ClosedJaxpr:
    """The pullback, of which XLA writes each array in place whose entries it reads as well.

    The cotangent of an array, of which the step writes some entries, is read there, and zero there
    before the step. XLA copies for CPU before it orders, and the read would be part of each kernel
    that needs it. So the read is a branch of its own, and the write depends on it.
    """
    closed = with_slices(pullback)
    pairs = Uses(closed).pairs()
    if not pairs:
        return pullback
    before = {id(writer): readers for writer, readers in pairs}
    readers = {id(reader) for readers in before.values() for reader in readers}
    equations: dict[int, Any] = {}
    for eqn in closed.eqns:
        for each in (*before.get(id(eqn), ()), eqn):
            equations.setdefault(id(each), each)

    def run_all(*inputs: Any) -> list[Any]:
        entries: dict[Any, jax.Array] = {}

        def run(eqn: Any, operands: list[Any]) -> list[Any]:
            if id(eqn) in readers:
                entries[eqn.outvars[0]] = value = _read_alone(eqn, operands)
                return [value]
            if id(eqn) in before:
                read = [entries[reader.outvars[0]] for reader in before[id(eqn)]]
                operands[updated(eqn)] = _after(read, operands[updated(eqn)])
                return [run_equation(eqn, operands)]
            return run_in_place(eqn, operands)

        return run_each(with_equations(closed, list(equations.values())), inputs, run)

    return jax.make_jaxpr(run_all)(*closed.in_avals)


def _read_alone(eqn: Any, operands: list[Any]) -> jax.Array:
    """What an equation reads, on CPU in a branch of its own. The other branch is the same."""

    def read() -> jax.Array:
        return run_in_place(eqn, operands)[0]

    def branch() -> jax.Array:
        return lax.cond(any_example(jnp.any(operands[1] >= 0)), read, read)

    return lax.platform_dependent(cpu=branch, default=read)


def _after(entries: list[jax.Array], update: jax.Array) -> jax.Array:
    """The update, as if it depended on these entries: no number is less than itself, which XLA does
    not know."""
    for entry in map(jnp.real, entries):
        update = lax.select(entry < entry, lax.full_like(update, 1), update)
    return update
