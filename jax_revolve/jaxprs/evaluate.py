"""Running equations with other operands, and calling functions in their places."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import jax

from jax_revolve._compat.interpreters import contents_type, is_reference
from jax_revolve._compat.jaxprs import cond_p, eval_jaxpr, is_literal, trace_tree
from jax_revolve._compat.values import AbstractValue, as_array, with_weak_type, zeros
from jax_revolve.jaxprs.equations import IN_PLACE
from jax_revolve.jaxprs.parts import without_consts

T = TypeVar("T")


def run_equation(eqn: Any, operands: Sequence[Any], **changed: Any) -> Any:
    """The result of an equation with other operands, and perhaps other parameters."""
    return eqn.primitive.bind(*operands, **{**eqn.params, **changed})


def run_in_place(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """The results of an equation with any primitive."""
    values = {v: x for v, x in zip(eqn.invars, operands, strict=True) if not is_literal(v)}
    program = _empty().replace(eqns=[eqn], invars=list(values), outvars=list(eqn.outvars))
    return eval_jaxpr(program, [], *values.values())


@cache
def _empty() -> Any:
    with jax.disable_jit(False):
        return jax.make_jaxpr(lambda: ())().jaxpr


def run_each(closed: Any, inputs: Sequence[Any], run: Callable[..., Sequence[Any]]) -> list[Any]:
    """The results of a jaxpr, where `run(eqn, operands)` computes each equation."""
    consts = closed.consts if hasattr(closed, "consts") else ()
    jaxpr = closed.jaxpr if hasattr(closed, "consts") else closed
    values = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, inputs, strict=True))

    def value(atom: Any) -> Any:
        return atom.val if is_literal(atom) else values[atom]

    for eqn in jaxpr.eqns:
        values.update(zip(eqn.outvars, run(eqn, list(map(value, eqn.invars))), strict=True))
    return list(map(value, jaxpr.outvars))


def operands_like(eqn: Any) -> list[Any]:
    """Zeros in place of an equation's operands, or references to them, for tracing."""

    def like(aval: AbstractValue) -> Any:
        value = with_weak_type(zeros(contents_type(aval)), contents_type(aval))
        return jax.new_ref(value) if is_reference(aval) else value

    return [like(v.aval) for v in eqn.invars]


def call_in_place(fun: Callable[..., Sequence[Any]], eqn: Any, enclosing: Sequence[Any]) -> Any:
    """An equation that calls `fun` on the operands of another one."""

    def trace() -> Any:
        (call,) = jax.make_jaxpr(jax.jit(fun))(*operands_like(eqn)).jaxpr.eqns
        return call

    call = within(enclosing, trace)
    params = {**call.params, "name": IN_PLACE}
    return eqn.replace(primitive=call.primitive, params=params, effects=call.effects)


def within(enclosing: Sequence[Any], fun: Callable[[], T]) -> T:
    """`fun()`, which only traces, with the axes of the enclosing `shard_map` equations bound."""
    result: list[T] = []

    def run() -> None:
        result.append(fun())

    for eqn in reversed(enclosing):
        run = jax.shard_map(
            run,
            mesh=eqn.params["mesh"],
            in_specs=(),
            out_specs=jax.P(),
            check_vma=eqn.params["check_vma"],
            axis_names=eqn.params["newly_manual_axes"],
        )
    jax.eval_shape(run)
    return result[0]


def kept_whole(fun: Callable[[], T], number: Any) -> T:
    """`fun()`, as the only branch of a conditional on `number`, the step's, an int32. JAX's
    linearization of a scan leaves it whole (see `engine.nested`), and XLA removes it."""
    closed, tree = trace_tree(fun)
    branch, consts = without_consts(closed)
    results = cond_p.bind(number, *map(as_array, consts), branches=(branch,))
    return jax.tree.unflatten(tree, results)
