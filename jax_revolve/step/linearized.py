"""A step, linearized: which of its values have derivatives, its residuals as one jaxpr, what a
checkpoint must hold, and its pullback."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
from jax import lax

from jax_revolve._compat.inlining import inlined
from jax_revolve._compat.jaxprs import (
    ClosedJaxpr,
    call_jaxpr,
    num_equations,
    pruned,
    varying_variables,
    without_dead_code,
)
from jax_revolve._compat.values import AbstractValue, SymbolicZero, tangent_type, zeros
from jax_revolve.step.examples import guarded
from jax_revolve.step.loop import (
    Loop,
    Mask,
    Operands,
    Step,
    once,
    pick,
    spread,
    substitute,
    with_layout,
)
from jax_revolve.storage.buffers import read

Variable = Any
"""A variable of a jaxpr."""

# Which values have derivatives


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


def find_reached(loop: Loop, activity: Activity, nonzero: Sequence[bool]) -> Activity:
    """The part of an activity that the cotangents of these active results reach. The whole, if the
    step computes nothing for the others alone."""
    given = spread(nonzero, activity.results)
    carry, ys = ([bool(flag) for flag in flags] for flags in loop.results(given))

    def find() -> Activity:
        live = live_carry(loop, carry, ys)
        results = [*live, *ys]
        if all(pick(results, activity.results)):
            return activity
        kept = [r or not a for r, a in zip(results, activity.results, strict=True)]
        smaller, _ = pruned(loop.jaxpr, kept, [True] * len(loop.jaxpr.in_avals))
        if num_equations(smaller) == num_equations(without_dead_code(loop.jaxpr)):
            return activity
        part = [r and a for r, a in zip(results, activity.results, strict=True)]
        of_carry, of_ys = loop.results(part)
        init = [i and c for i, c in zip(activity.init, of_carry, strict=True)]
        return activity._replace(init=tuple(init), carry=tuple(of_carry), ys=tuple(of_ys))

    return once(loop.bare, ("reached", activity, tuple(nonzero)), find)


def active_results(
    fun: Callable[..., Sequence[Any]], types: Sequence[Any], active: Sequence[bool]
) -> list[bool]:
    """Which results of a function have a derivative in its active inputs that is not symbolically
    zero.

    JAX answers, as in `lax.scan`: the derivative is traced, and nothing runs.
    """
    found: list[bool] = []

    @jax.custom_jvp
    def look(results: list[Any]) -> list[Any]:
        found[:] = [False] * len(results)  # JAX calls the rule below only if one has a derivative
        return results

    @partial(look.defjvp, symbolic_zeros=True)
    def _(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
        found[:] = [not isinstance(t, SymbolicZero) for t in tangents[0]]
        return primals[0], tangents[0]

    def derivative(*inputs: Any) -> Any:
        run = lambda chosen: look(list(fun(*substitute(inputs, active, chosen))))  # noqa: E731
        chosen = pick(inputs, active)
        return jax.jvp(run, (chosen,), ([zeros(tangent_type(v)) for v in chosen],))

    jax.make_jaxpr(derivative)(*types)
    return found


# One step and its residuals


class Cotangents(NamedTuple):
    """Cotangents of a loop's results: of every active carry, and of every active y, with `None` for
    a y whose cotangent is zero at every step."""

    carry: list[Any]
    ys: list[Any]


def linearize(
    step: Step, activity: Activity, inputs: Operands
) -> tuple[list[Any], Callable[..., Any], list[AbstractValue]]:
    """One step, linearized in its active inputs: its results, the pullback of the active ones, and
    the types of their cotangents."""
    masks = (activity.consts, activity.carry, activity.xs)

    def active_step(*chosen: list[Any]) -> tuple[list[Any], list[Any]]:
        carry, y = step(*map(substitute, inputs, masks, chosen))
        results = [*carry, *y]
        return pick(results, activity.results), results

    active, pullback, results = jax.vjp(active_step, *map(pick, inputs, masks), has_aux=True)
    return results, pullback, [tangent_type(r) for r in active]


def filled(cotangents: Cotangents, types: list[AbstractValue]) -> list[Any]:
    """The cotangents of all active results, zeros included."""
    given = [*cotangents.carry, *cotangents.ys]
    return [zeros(t) if ct is None else ct for t, ct in zip(types, given, strict=True)]


class TracedStep(NamedTuple):
    """A step and its residuals. The inputs of the jaxpr are what all steps share, the carry, and a
    slice of the xs; its outputs are the step's results and residuals.

    Steps share the operands' consts, and the consts and the carry with which the step of an example
    that is done can be computed.
    """

    closed: ClosedJaxpr
    shared: list[Variable]
    carry: list[Variable]
    x: list[Variable]
    results: list[Variable]
    residuals: list[Variable]
    varying: set[Variable]
    """What differs from step to step."""
    pullback: Any
    """The tree that makes the pullback from the residuals."""
    types: list[AbstractValue]
    """The types of its cotangents."""

    def in_order(self, chosen: Collection[Variable]) -> list[Variable]:
        """Variables as they stand in the jaxpr."""
        jaxpr = self.closed.jaxpr
        made = (v for eqn in jaxpr.eqns for v in eqn.outvars)
        return [v for v in (*jaxpr.invars, *made) if v in chosen]


def traced_step(loop: Loop, activity: Activity, operands: Operands) -> TracedStep:
    """The step of a loop with these operands, linearized in its active inputs."""
    found: list[tuple[Any, list[AbstractValue]]] = []  # no tracers, which must not leave the trace

    def run(consts: Any, safe_consts: Any, safe_carry: Any, carry: Any, x: Any) -> list[Any]:
        step = guarded(loop, consts, safe_carry, carry)
        results, pullback, types = linearize(step, activity, Operands(safe_consts, carry, x))
        residuals, tree = jax.tree.flatten(pullback)
        found.append((tree, types))
        return [*results, *residuals]

    def trace() -> TracedStep:
        consts, carry, xs = with_layout(loop, operands)
        closed = jax.make_jaxpr(run)(consts, consts, carry, carry, read(xs, 0))
        closed, num_shared = inlined(closed), 2 * len(consts) + len(carry)
        inputs, outputs = closed.jaxpr.invars, closed.jaxpr.outvars
        carry, x = inputs[num_shared:][: len(carry)], inputs[num_shared + len(carry) :]
        varying = varying_variables(closed.jaxpr, [*carry, *x])
        results, residuals = outputs[: len(loop.output_types)], outputs[len(loop.output_types) :]
        shared = inputs[:num_shared]
        return TracedStep(closed, shared, carry, x, results, residuals, varying, *found[0])

    return once(loop.bare, ("traced step", activity, operands.types), trace)


# What a checkpoint holds


def find_restart(loop: Loop, activity: Activity, operands: Operands) -> Mask:
    """Which leaves of the carry are needed to run steps again: those that the condition and the
    linearized step depend on, and those that these depend on, after however many steps. A running
    sum or a trajectory that is written but not read is not among them: its linearization does not
    depend on its value.

    This is the classical to-be-recorded analysis (A. Griewank and A. Walther, "Evaluating
    Derivatives", SIAM, 2nd edition 2008, section 6.3), by dead-code elimination of the step as JAX
    traces it.
    """

    def find() -> Mask:
        traced = traced_step(loop, activity, operands)
        residuals = [*[False] * len(traced.results), *[True] * len(traced.residuals)]
        needed = needed_by(traced.closed, residuals)[len(traced.shared) :][: loop.num_carry]
        _, ys = loop.results([False] * len(loop.output_types))
        return tuple(live_carry(loop, needed, ys))

    return once(loop.bare, ("restart", activity, operands.types), find)


def needed_by(jaxpr: ClosedJaxpr, outputs: Sequence[bool]) -> list[bool]:
    """The inputs that these outputs depend on."""
    return pruned(jaxpr, outputs, [False] * len(jaxpr.in_avals))[1]


def live_carry(loop: Loop, carry: Sequence[bool], ys: Sequence[bool]) -> list[bool]:
    """The leaves of the carry that these leaves and ys depend on, and the condition, after however
    many steps."""
    first, needed = loop.num_condition_consts, list(carry)
    if loop.condition is not None:
        needed = either(needed, needed_by(loop.condition, [True])[first:])
    while True:
        used = needed_by(loop.jaxpr, [*needed, *ys])
        if (grown := either(needed, loop.operands([*[False] * first, *used]).carry)) == needed:
            return needed
        needed = grown


def either(a: Sequence[bool], b: Sequence[bool]) -> list[bool]:
    return [x or y for x, y in zip(a, b, strict=True)]


# The pullback


def pull_back_step(
    step: Step, activity: Activity, inputs: Operands, cotangents: Cotangents
) -> Operands:
    """The cotangents of a step's active inputs, from its active results'."""
    _, pullback, types = linearize(step, activity, inputs)
    return Operands(*pullback(filled(cotangents, types)))


def zero_cotangents(values: list[Any], active: Sequence[bool]) -> list[Any]:
    """Zero cotangents of the active values, to which cotangents are added."""
    return [zeros(tangent_type(v)) for v in pick(values, active)]


def add(total: list[Any], more: list[Any]) -> list[Any]:
    return [lax.add(a, b) for a, b in zip(total, more, strict=True)]


def of_init(ct_carry: list[Any], activity: Activity) -> list[Any]:
    """The cotangents of the differentiated initial carries, from all active carries' cotangents."""
    return pick(ct_carry, pick(activity.init, activity.carry))
