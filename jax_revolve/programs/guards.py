"""What Equinox adds to the loops of `equinox.internal`, and our loops do not need.

- *Guards*: under `jax.vmap`, Equinox's loop runs while any example goes on, and an example that is
    done keeps its values, because each step selects them by a predicate in the carry. Our loops
    mask such examples themselves. A guarded leaf depends on its old value, so that each checkpoint
    would hold it.
- *Buffers*: a write into a buffer is transposed on the promise that no entry is written twice, or
    read before it is written. As a plain write, it needs no promise.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import compress
from typing import Any

import jax.numpy as jnp

from jax_revolve._compat.jaxprs import is_literal, with_equations
from jax_revolve.jaxprs.equations import is_shard_map
from jax_revolve.jaxprs.evaluate import call_in_place
from jax_revolve.jaxprs.walk import CALLS, inner_programs, with_inner_programs


def without_guards(eqn: Any, enclosing: Sequence[Any]) -> Any:
    """The `while` in a loop of Equinox, with plain writes into buffers and, unless it was batched,
    without guards."""
    condition, body = _unguarded(eqn.params["cond_jaxpr"]), eqn.params["body_jaxpr"]
    predicate = body.jaxpr.invars[eqn.params["body_nconsts"] + 1]  # after the number of steps
    body = _plain(body, [] if condition is None else [predicate], enclosing)
    condition = condition or eqn.params["cond_jaxpr"]
    return eqn.replace(params={**eqn.params, "cond_jaxpr": condition, "body_jaxpr": body})


def _unguarded(closed: Any) -> Any:
    """The condition of one example; `None` if it is not `nonbatchable(unvmap_any(holds))` or
    `nonbatchable(unvmap_any(holds) & is_within_bound)` for a scalar."""
    made = {v: eqn for eqn in closed.eqns for v in eqn.outvars}
    guards, (atom,) = list[Any](), closed.jaxpr.outvars
    for name in ("nonbatchable", "and", "unvmap_any"):
        eqn = None if is_literal(atom) else made.get(atom)
        if eqn is not None and eqn.primitive.name == name:
            atom = eqn.invars[0]
            guards += [eqn] if name != "and" else []
    if len(guards) != 2 or guards[-1].invars[0].aval.shape:
        return None
    same = {eqn.outvars[0]: eqn.invars[0] for eqn in guards}
    return _with_same(
        closed, same, [eqn for eqn in closed.eqns if same.keys().isdisjoint(eqn.outvars)]
    )


def _plain(program: Any, predicates: Sequence[Any], enclosing: Sequence[Any]) -> Any:
    """A program with plain writes into buffers, and without guards by these predicates."""
    same, true, equations = dict[Any, Any](), set(predicates), list[Any]()

    def holds(atom: Any) -> bool:
        if not is_literal(atom):
            return atom in true
        return jnp.result_type(atom.val) == jnp.bool_ and bool(atom.val)

    for old in program.eqns:
        eqn = _renamed(old, same)
        name, is_true = eqn.primitive.name, list(map(holds, eqn.invars))
        if name == "select_if_vmap" and is_true[0]:
            same[eqn.outvars[0]] = eqn.invars[1]
            continue
        if name in ("copy", "and") and all(is_true):
            true.update(eqn.outvars)
        if _is_write(eqn.primitive, eqn.params):
            write = partial(eqn.primitive.impl, **eqn.params)
            eqn = call_in_place(write, eqn, enclosing)
        within = (*enclosing, eqn) if is_shard_map(eqn) else enclosing
        known = is_true if eqn.primitive.name in CALLS else is_true[1:] if name == "cond" else []
        new = [
            _plain(inner, [*compress(_variables(inner).invars, known)], within)
            for inner in inner_programs(eqn)
        ]
        equations.append(with_inner_programs(eqn, new) if new else eqn)
    return _with_same(program, same, equations)


def _is_write(primitive: Any, params: Mapping[str, Any]) -> bool:
    """Whether a primitive writes into a buffer, or is such a one under `jax.vmap`."""
    if primitive.name == "vprim":
        return _is_write(params["prim"], dict(params["params"]))
    return primitive.name == "maybe_set"


def _variables(program: Any) -> Any:
    return getattr(program, "jaxpr", program)


def _with_same(program: Any, same: Mapping[Any, Any], equations: Sequence[Any]) -> Any:
    """The program with these equations, and with variables replaced by the same ones."""
    if not same:
        return with_equations(program, equations)
    kept = [_renamed(eqn, same) for eqn in equations]
    outvars = [_first(v, same) for v in _variables(program).outvars]
    return with_equations(program, kept, outvars=outvars)


def _renamed(eqn: Any, same: Mapping[Any, Any]) -> Any:
    invars = [_first(v, same) for v in eqn.invars]
    return eqn if invars == list(eqn.invars) else eqn.replace(invars=invars)


def _first(atom: Any, same: Mapping[Any, Any]) -> Any:
    """The atom that was there first of those that are the same."""
    while not is_literal(atom) and atom in same:
        atom = same[atom]
    return atom
