"""Dependencies in a jaxpr, and parts of it."""

from collections.abc import Callable, Sequence
from typing import Any

from jax_revolve._compat.jaxprs import (
    ClosedJaxpr,
    call_jaxpr,
    eval_jaxpr,
    facts_of,
    pruned,
    variables,
)
from jax_revolve.jaxprs.walk import inner_jaxprs


def without_dead_code(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The jaxpr without dead code at any depth; always the same object for the same jaxpr."""
    known = facts_of(closed)
    if "live" not in known:
        outputs, inputs = ([True] * len(vs) for vs in (closed.jaxpr.outvars, closed.jaxpr.invars))
        # Threads may compute it at once, and all get the result that is stored first.
        known.setdefault("live", pruned(closed, outputs, inputs)[0])
    return known["live"]


def varying_variables(jaxpr: Any, inputs: Sequence[Any]) -> set[Any]:
    """The variables of a jaxpr that depend on these inputs, and the inputs."""
    varying = set(inputs)
    for eqn in jaxpr.eqns:
        if not varying.isdisjoint(variables(eqn.invars)):
            varying.update(eqn.outvars)
    return varying


def made_by_effects(jaxpr: Any) -> list[Any]:
    """The results of equations with effects, which may be others each time that they run."""
    return [v for eqn in jaxpr.eqns if eqn.effects for v in eqn.outvars]


def with_outputs(closed: ClosedJaxpr, outputs: Sequence[Any]) -> Callable[..., list[Any]]:
    """A function of the inputs that computes these variables, and nothing else."""
    whole = ClosedJaxpr(closed.jaxpr.replace(outvars=list(outputs)), closed.consts)
    part, used = pruned(whole, [True] * len(outputs), [False] * len(closed.jaxpr.invars))
    return lambda values: call_jaxpr(part)(*(x for x, u in zip(values, used, strict=True) if u))


def part_of(
    closed: ClosedJaxpr, inputs: Sequence[Any], results: Sequence[Any]
) -> Callable[[Sequence[Any]], list[Any]]:
    """The function that computes results of the jaxpr from the values of the variables `inputs`."""
    some = between(closed.jaxpr, inputs, results)
    jaxpr = closed.jaxpr.replace(invars=list(inputs), eqns=some, outvars=list(results))
    return lambda values: eval_jaxpr(jaxpr, closed.consts, *values)


def between(
    jaxpr: Any, inputs: Sequence[Any], results: Sequence[Any], equations: Sequence[Any] = ()
) -> list[Any]:
    """The equations that compute results, and the operands of `equations`, from `inputs`; and the
    `equations` themselves."""
    wanted = set(variables(results)).difference(inputs)
    kept, always = list[Any](), set(map(id, equations))
    for eqn in reversed(jaxpr.eqns):
        if id(eqn) in always or not wanted.isdisjoint(eqn.outvars):
            kept.append(eqn)
            wanted.update(variables(eqn.invars))
            wanted.difference_update(inputs)
    return kept[::-1]


def without_consts(closed: ClosedJaxpr) -> tuple[ClosedJaxpr, list[Any]]:
    """The jaxpr with its consts as its first inputs, and those."""
    jaxpr = closed.jaxpr
    jaxpr = jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars])
    return ClosedJaxpr(jaxpr, []), list(closed.consts)


def num_equations(closed: ClosedJaxpr) -> int:
    """The equations in it, at any depth."""
    return sum(1 + sum(map(num_equations, inner_jaxprs(eqn))) for eqn in closed.eqns)
