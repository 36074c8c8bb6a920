"""Parts of a step on another mesh: functions under `jax.sharding.auto_axes`.

Their values have types of their own mesh, of which we cannot make buffers under the explicit mesh.
So each such function goes under `jax.checkpoint`, and its residuals are its operands.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax

from jax_revolve._compat.jaxprs import ClosedJaxpr, eval_jaxpr, is_literal, variables
from jax_revolve._compat.values import is_outside_the_mesh
from jax_revolve.jaxprs.equations import is_shard_map
from jax_revolve.jaxprs.evaluate import run_in_place
from jax_revolve.jaxprs.walk import inner_jaxprs


def recomputed_outside(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The jaxpr with all computation outside the mesh under `jax.checkpoint`; the same object if
    there is none."""
    if not jax.sharding.get_abstract_mesh().axis_types:
        return closed
    groups = _groups(closed.eqns)
    recomputed = [len(eqns) > 1 or _computes_outside(eqns[0]) for eqns in groups]
    if not any(recomputed):
        return closed
    jaxpr = closed.jaxpr

    def run(*inputs: Any) -> list[Any]:
        variables_in = [*jaxpr.constvars, *jaxpr.invars]
        values = dict(zip(variables_in, [*closed.consts, *inputs], strict=True))
        value = lambda atom: atom.val if is_literal(atom) else values[atom]  # noqa: E731
        for eqns, is_recomputed in zip(groups, recomputed, strict=True):
            if not is_recomputed:
                results = run_in_place(eqns[0], list(map(value, eqns[0].invars)))
                values.update(zip(eqns[0].outvars, results, strict=True))
                continue
            made = [v for eqn in eqns for v in eqn.outvars]
            used = dict.fromkeys(v for eqn in eqns for v in variables(eqn.invars))
            operands = [v for v in used if v not in made]
            given = [v for v in made if not is_outside_the_mesh([v.aval])]
            program = jaxpr.replace(constvars=[], invars=operands, outvars=given, eqns=list(eqns))
            values_in = map(_on_mesh_of(eqns), operands, map(value, operands))
            results = jax.checkpoint(partial(eval_jaxpr, program, []))(*values_in)
            values.update(zip(given, results, strict=True))
        return list(map(value, jaxpr.outvars))

    return jax.make_jaxpr(run)(*closed.in_avals)


def _on_mesh_of(eqns: Sequence[Any]) -> Callable[[Any, Any], Any]:
    """A function that puts values that the equations close over on their mesh. Such a value's type
    has no mesh, but the loop has laid the value out over the explicit mesh."""
    mesh = eqns[0].outvars[0].aval.sharding.mesh
    if len(eqns) == 1:  # a call, which puts them there itself
        return lambda _, value: value
    closed_over = {v for e in eqns if e.primitive.name != "reshard" for v in variables(e.invars)}

    def moved(variable: Any, value: Any) -> Any:
        if variable not in closed_over or not variable.aval.sharding.mesh.empty:
            return value
        return jax.reshard(value, jax.NamedSharding(mesh, jax.P(*[None] * variable.aval.ndim)))

    return moved


def _computes_outside(eqn: Any) -> bool:
    """Whether an equation calls a program that computes outside the mesh."""
    inside = () if is_shard_map(eqn) else inner_jaxprs(eqn)
    return any(
        is_outside_the_mesh(v.aval for v in e.outvars) or _computes_outside(e)
        for jaxpr in inside
        for e in jaxpr.eqns
    )


def _groups(eqns: Sequence[Any]) -> list[list[Any]]:
    """The equations, one by one, except that those from the first that makes a value outside the
    mesh to the last that takes it are together."""
    groups: list[list[Any]] = []
    until = -1
    for i, eqn in enumerate(eqns):
        if i <= until:
            groups[-1].append(eqn)
        else:
            groups.append([eqn])
        for v in eqn.outvars:
            if is_outside_the_mesh([v.aval]):
                until = max(until, *(j for j, e in enumerate(eqns) if v in e.invars), i)
    return groups
