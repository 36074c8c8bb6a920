"""Jaxprs without calls, without tracing."""

from collections.abc import Collection, Sequence
from typing import Any

from jax_revolve._compat.jaxprs import ClosedJaxpr, Var, is_literal
from jax_revolve.jaxprs.walk import CALLS

WITHOUT_RULES = ("jit", "closed_call", "eval_jaxpr")
_INLINED = (*WITHOUT_RULES, "custom_jvp_call", "custom_vjp_call")

_LAYOUTS = ("in_shardings", "out_shardings", "in_layouts", "out_layouts")


def inlined(closed: ClosedJaxpr, calls: Collection[str] = _INLINED) -> ClosedJaxpr:
    """The jaxpr with its calls inlined; the same object if it has none. Calls that lay out operands
    or results over devices stay. If functions with derivative rules are among the `calls`, they
    lose them, so the result must not be differentiated."""
    if not any(_called(eqn, calls) for eqn in closed.eqns):
        return closed
    jaxpr, eqns = closed.jaxpr, []
    consts = dict(zip(jaxpr.constvars, closed.consts, strict=True))

    def add(jaxpr: Any, values: dict[Any, Any]) -> list[Any]:
        """Append the equations of an open jaxpr with these input values. Returns its results."""

        def read(atoms: Sequence[Any]) -> list[Any]:
            return [atom if is_literal(atom) else values[atom] for atom in atoms]

        for eqn in jaxpr.eqns:
            operands, call = read(eqn.invars), _called(eqn, calls)
            if call is not None:
                inside = dict(zip(call.jaxpr.invars, operands, strict=True))
                for v, const in zip(call.jaxpr.constvars, call.consts, strict=True):
                    inside[v] = new = Var(v.aval)
                    consts[new] = const
                values.update(zip(eqn.outvars, add(call.jaxpr, inside), strict=True))
                continue
            # Two calls of the same function have the same inner variables, so make new ones.
            results = [Var(v.aval) if isinstance(v, Var) else v for v in eqn.outvars]
            values.update(zip(eqn.outvars, results, strict=True))
            eqns.append(eqn.replace(invars=operands, outvars=results))
        return read(jaxpr.outvars)

    outvars = add(jaxpr, {v: v for v in [*jaxpr.constvars, *jaxpr.invars]})
    jaxpr = jaxpr.replace(constvars=list(consts), eqns=eqns, outvars=outvars)
    return ClosedJaxpr(jaxpr, list(consts.values()))


def _called(eqn: Any, calls: Collection[str]) -> ClosedJaxpr | None:
    """The program of a call; `None` for an equation that is not inlined."""
    name = eqn.primitive.name
    layouts = (type(x).__name__ for key in _LAYOUTS for x in eqn.params.get(key, ()))
    if name not in calls or not {*layouts} <= {"NoneType", "UnspecifiedValue"}:
        return None
    return eqn.params[CALLS.get(name, "call_jaxpr")]
