"""Programs that are already written: the loops in a jaxpr, at any depth, and putting other
equations in their places."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import jax
from jax.core import eval_jaxpr

from jax_revolve._compat.jaxprs import function_of, has_equation, is_literal
from jax_revolve._compat.loops import READ, LoopEquation
from jax_revolve._compat.references import like
from jax_revolve._compat.values import is_array_type, varying_axes

T = TypeVar("T")

_INNER = {
    "jit": ("jaxpr",),
    "closed_call": ("call_jaxpr",),
    "remat2": ("jaxpr",),
    "cond": ("branches",),
    "shard_map": ("jaxpr",),
    "scan": ("jaxpr",),
    "while": ("body_jaxpr",),
}
"""The parameters of equations that hold what is differentiated along with them. Conditions are not,
nor are functions with a derivative rule of their own: they are opaque, because a rule may refuse a
tangent that tracing it here would give it, and determines the residuals."""

_LOOPS = ("scan", "while", "checkpointed_loop")

_FUNCTIONS = ("checkpointed_loop", "checkpointed_segment")
"""This library's equations that are differentiated: `function_of` holds the jaxpr."""

_RECOMPUTED = ("remat2", "checkpointed_segment")
"""Equations that are run again when they are transposed."""

_IN_PLACE = "checkpointed_in_place"
"""The name of a function that is called in place of an equation."""

_MANUAL = ("newly_manual_axes", "manual_axes")
"""The parameter of a `shard_map` equation for its axes, from jax 0.8 and before."""

_JAX, _OURS = Path(jax.__file__).parent, Path(__file__).parents[1]


def read_loop(eqn: Any) -> LoopEquation | None:
    """The loop that an equation is, if it is one of lax's over arrays."""
    read = READ.get(eqn.primitive.name)
    if read is None or not all(is_array_type(v.aval) for v in eqn.invars):
        return None
    return read(eqn)


def rule_with_loops(eqn: Any) -> str | None:
    """The name of a function with a derivative rule of its own that runs loops, if an equation is
    one."""
    if not eqn.primitive.name.startswith(("custom_jvp", "custom_vjp")):
        return None
    for program in eqn.params.values():
        if hasattr(program, "eqns") and has_equation(program, *_LOOPS):
            return getattr(program, "jaxpr", program).debug_info.func_name
    return None


def inner_programs(eqn: Any) -> list[Any]:
    """The jaxprs that an equation runs, as far as they are differentiated."""
    if eqn.primitive.name in _FUNCTIONS:
        return [function_of(eqn).jaxpr]
    values = [eqn.params[name] for name in _INNER.get(eqn.primitive.name, ())]
    return [p for value in values for p in (value if isinstance(value, tuple) else (value,))]


def with_inner_programs(eqn: Any, programs: Sequence[Any]) -> Any:
    """The equation with others for its `inner_programs`."""
    if eqn.primitive.name in _FUNCTIONS:
        function = function_of(eqn)._replace(jaxpr=programs[0])
        return eqn.replace(params={**eqn.params, "function": function})
    rest = iter(programs)
    changed = {
        name: tuple(next(rest) for _ in value) if isinstance(value, tuple) else next(rest)
        for name in _INNER[eqn.primitive.name]
        for value in (eqn.params[name],)
    }
    return eqn.replace(params={**eqn.params, **changed})


def call_in_place(fun: Callable[..., Sequence[Any]], eqn: Any, enclosing: Sequence[Any]) -> Any:
    """An equation that calls `fun` on the operands of another one."""

    def trace() -> Any:
        (call,) = jax.make_jaxpr(jax.jit(fun))(*operands_like(eqn)).jaxpr.eqns
        return call

    call = within(enclosing, trace)
    params = {**call.params, "name": _IN_PLACE}
    return eqn.replace(primitive=call.primitive, params=params, effects=call.effects)


def within(enclosing: Sequence[Any], fun: Callable[[], T]) -> T:
    """`fun()`, which only traces, where the axes of the enclosing `shard_map` equations are."""
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
            axis_names=next(eqn.params[name] for name in _MANUAL if name in eqn.params),
        )
    jax.eval_shape(run)
    return result[0]


def is_recomputed(eqn: Any) -> bool:
    """Whether an equation is run again when it is transposed, and holds but its operands before."""
    return eqn.primitive.name in _RECOMPUTED


def varies_unevenly(eqn: Any) -> bool:
    """Whether a while loop's condition varies over axes that some of its carry does not."""
    axes = varying_axes(eqn.params["cond_jaxpr"].out_avals[0])
    return not all(axes <= varying_axes(v.aval) for v in eqn.outvars)


def is_shard_map(eqn: Any) -> bool:
    return eqn.primitive.name == "shard_map"


def name_in(eqn: Any) -> list[str]:
    """Where an equation stands in the function that it belongs to: the names of `jax.named_scope`
    and of transformations around it, and the name of the function or the primitive it runs."""
    scopes = [name for name in str(eqn.source_info.name_stack).split("/") if name]
    name = eqn.params.get("name", eqn.primitive.name)
    if name == _IN_PLACE:
        return scopes
    if eqn.primitive.name == "checkpointed_loop":
        return [*scopes, "scan" if function_of(eqn).condition is None else "while"]
    return [*scopes, str(name) if eqn.primitive.name == "jit" else eqn.primitive.name]


def source_of(eqn: Any) -> str:
    """The file and line outside JAX and this library that an equation comes from, "model.py:42";
    nothing if it is one that was made here, in place of another."""
    traceback = eqn.source_info.traceback
    for frame in traceback.frames if traceback is not None else ():
        file = Path(frame.file_name)
        if file == Path(__file__):
            return ""
        if not file.is_relative_to(_JAX) and not file.is_relative_to(_OURS):
            return f"{file.name}:{frame.line_num}"
    return ""


def run_in_place(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """What an equation computes, whatever its primitive."""
    values = {v: x for v, x in zip(eqn.invars, operands, strict=True) if not is_literal(v)}
    program = _empty().replace(eqns=[eqn], invars=list(values), outvars=list(eqn.outvars))
    return eval_jaxpr(program, [], *values.values())


@cache
def _empty() -> Any:
    with jax.disable_jit(False):
        return jax.make_jaxpr(lambda: ())().jaxpr


def run_each(closed: Any, inputs: Sequence[Any], run: Callable[..., Sequence[Any]]) -> list[Any]:
    """The results of a jaxpr, of which `run(eqn, operands)` computes each equation."""
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
    """Zeros in place of an equation's operands, for tracing."""
    return [like(v.aval) for v in eqn.invars]
