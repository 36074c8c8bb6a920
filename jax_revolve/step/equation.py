"""lax's own loop equations."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax

from jax_revolve._compat.interpreters import (
    eager_constant_folding,
    is_input_effect,
    is_reference_effect,
    register_with_sparsify,
)
from jax_revolve._compat.jaxprs import eval_jaxpr, is_literal, trace_tree, variables
from jax_revolve._compat.values import as_array, is_array_type
from jax_revolve.step.loop import Loop, once
from jax_revolve.step.references import run_on_contents


def run_around_loop(
    fun: Callable[[], Any], run_loop: Callable[[Loop, list[Any]], Sequence[Any]]
) -> Any:
    """`fun()`, which calls a loop of lax once, with `run_loop(equation, operands)` in its place.

    `fun` takes no arguments, so that lax sees the caller's own values, including Python scalars.
    Its trace has the equations before the loop (promoted weak types, hoisted constants), the loop,
    and the equations after it (values that the body only passes on).
    """
    register_with_sparsify()
    with eager_constant_folding(False):  # `jax.ensure_compile_time_eval` would run the loop
        closed, treedef = trace_tree(fun)
    jaxpr = closed.jaxpr
    # The last one, because a condition evaluated before the loop may contain loops.
    loops = [i for i, eqn in enumerate(jaxpr.eqns) if eqn.primitive.name in READ]
    if not loops:
        raise NotImplementedError(
            "JAX traces its loops in a way that jax_revolve does not know: there is no scan or "
            f"while equation among {sorted({eqn.primitive.name for eqn in jaxpr.eqns})}. If the "
            "configuration sets jax_scan3=True, as the variable JAX_SCAN3 does, set it to False."
        )
    at = loops[-1]
    before, loop, after = jaxpr.eqns[:at], jaxpr.eqns[at], jaxpr.eqns[at + 1 :]

    inputs = variables(loop.invars)
    used_after = set(variables([v for eqn in after for v in eqn.invars] + jaxpr.outvars))
    known_before = [*jaxpr.constvars, *(v for eqn in before for v in eqn.outvars)]
    passed_on = [v for v in known_before if v in used_after]

    prologue = jaxpr.replace(eqns=before, outvars=[*inputs, *passed_on])
    values = dict(zip([*inputs, *passed_on], eval_jaxpr(prologue, closed.consts), strict=True))
    operands = [v.val if is_literal(v) else values[v] for v in loop.invars]
    equation = _read(loop)
    operands = list(map(as_array, operands))
    are_arrays = all(is_array_type(v.aval) for v in loop.outvars + loop.invars)
    effects = equation.effects
    if not are_arrays or any(is_reference_effect(e) or is_input_effect(e) for e in effects):
        results = run_on_contents(run_loop, equation, operands)
    else:
        results = run_loop(equation, operands)
    values.update(zip(loop.outvars, results, strict=True))
    known = [v for v in [*passed_on, *loop.outvars] if values[v] is not None]  # others are unused
    epilogue = jaxpr.replace(constvars=[], invars=known, eqns=after)
    outputs = eval_jaxpr(epilogue, [], *(values[v] for v in known))
    return jax.tree.unflatten(treedef, outputs)


def _read_scan(eqn: Any) -> Loop:
    params = eqn.params
    if "ft_in" in params:  # jax >= 0.12
        groups = params["ft_in"].update(list(eqn.invars)).unpack()
        num_consts, num_carry, _ = (len(list(group)) for group in groups)
    else:
        num_consts, num_carry = params["num_consts"], params["num_carry"]
    return Loop(
        jaxpr=params["jaxpr"],
        num_consts=num_consts,
        num_carry=num_carry,
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"] or max(params["length"], 1),  # 0: all of it
        output_types=tuple(v.aval for v in eqn.outvars),
        effects=frozenset(eqn.effects),
    )


def _read_while(eqn: Any) -> Loop:
    params = eqn.params
    return Loop(
        jaxpr=params["body_jaxpr"],
        condition=params["cond_jaxpr"],
        num_condition_consts=params["cond_nconsts"],
        num_consts=params["cond_nconsts"] + params["body_nconsts"],
        num_carry=len(eqn.outvars),
        output_types=tuple(v.aval for v in eqn.outvars),
        effects=frozenset(eqn.effects),
    )


READ = {"scan": _read_scan, "while": _read_while}

_JAXPRS = ("jaxpr", "cond_jaxpr", "body_jaxpr")

_LAX = ("lax's own equation",)


def _read(eqn: Any) -> Loop:
    loop = READ[eqn.primitive.name](eqn)
    rest = {name: x for name, x in eqn.params.items() if name not in _JAXPRS}
    once(loop.with_plan(loop.length, None), _LAX, lambda: partial(eqn.primitive.bind, **rest))
    return loop


def run_as_traced(loop: Loop, operands: list[Any]) -> list[Any] | None:
    """The results of lax's own equation, without tracing its step again; `None` if lax traced
    another step."""
    bind = once(loop.bare._replace(obstacle=None), _LAX, lambda: None)
    if bind is None:
        return None
    if loop.condition is None:
        return bind(*operands, jaxpr=loop.jaxpr)
    return bind(*operands, cond_jaxpr=loop.condition, body_jaxpr=loop.jaxpr)


def read_loop(eqn: Any) -> Loop | None:
    """The equation as a loop, if it is one of lax's loops over arrays."""
    are_arrays = all(is_array_type(v.aval) for v in eqn.invars)
    return _read(eqn) if are_arrays and eqn.primitive.name in READ else None
