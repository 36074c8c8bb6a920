"""Equations of programs: which loops they are, and other equations in their places."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
from jax.core import eval_jaxpr

from jax_revolve._compat.jaxprs import is_literal
from jax_revolve._compat.loops import READ, LoopEquation
from jax_revolve._compat.references import like
from jax_revolve._compat.values import is_array_type, varying_axes
from jax_revolve._compat.walk import (
    function_of,
    inner_jaxprs,
    name_of,
    not_differentiated,
    others,
    parameters_of,
)

T = TypeVar("T")

_OWN_RULE = "a derivative rule of its own determines its residuals"

_EXPECTED = {
    **dict.fromkeys(("custom_jvp_call", "custom_vjp_call", "linear_call"), _OWN_RULE),
    **dict.fromkeys(("remat_opt", "OptRemat", "CustomRoot"), _OWN_RULE),
    "pallas_call": "a kernel keeps no residuals",
}
"""Equations whose programs are meant to stay as they are, and why. To trace a derivative rule here
might give it a tangent that it refuses."""

_UNREADABLE = {
    "Scan3": "JAX's new scans, with jax_scan3, have no reverse mode",
    "scan": "jax_revolve cannot checkpoint a loop over values that are not arrays",
    "while": "jax_revolve cannot checkpoint a loop over values that are not arrays",
}
"""Loops of lax that `read_loop` does not read."""

_RECOMPUTED = ("remat2", "checkpointed_segment")
"""Equations that are run again when they are transposed."""

_IN_PLACE = "checkpointed_in_place"
"""The name of a function that is called in place of an equation."""

_JAX, _OURS = Path(jax.__file__).parent, Path(__file__).parents[1]


def read_loop(eqn: Any) -> LoopEquation | None:
    """The loop that an equation is, if it is one of lax's over arrays."""
    read = READ.get(eqn.primitive.name)
    if read is None or not all(is_array_type(v.aval) for v in eqn.invars):
        return None
    return read(eqn)


class NotEntered(NamedTuple):
    """An equation with loops of `jax.lax` that stay as they are: what it is, why they stay, the
    length of the longest of them, `None` if a loop has none, and whether that is meant to be so."""

    name: str
    reason: str
    longest: int | None
    is_expected: bool


def not_entered(eqn: Any, name: str) -> NotEntered | None:
    """The loops that an equation runs and that no walk enters, if there are any."""
    kind = name_of(eqn)
    if kind.startswith(("checkpointed_", "apart")):
        return None  # this library's own, and derivatives of its loops, which are checkpointed
    lengths, programs = [], others(eqn)
    if kind in _UNREADABLE and read_loop(eqn) is None:
        lengths.append(parameters_of(eqn).get("length"))
    lengths += [length for program in programs for length in _lengths(program)]
    if not lengths:
        apart = [length for program in not_differentiated(eqn) for length in _lengths(program)]
        reason = f"{kind} does not differentiate them, and keeps no residuals of them"
        return NotEntered(name, reason, None, is_expected=True) if apart else None
    if kind in _EXPECTED:
        name = getattr(programs[0], "jaxpr", programs[0]).debug_info.func_name
    reasons = {**_UNREADABLE, **_EXPECTED}
    reason = reasons.get(kind, f"jax_revolve does not know what the equation {kind} does")
    longest = None if None in lengths else max(lengths)
    return NotEntered(name, reason, longest, kind in _EXPECTED)


def _lengths(program: Any) -> list[int | None]:
    """The lengths of lax's loops in it, at any depth."""
    loops = [eqn for eqn in program.eqns if name_of(eqn) in _UNREADABLE]
    inside = [inner for eqn in program.eqns for inner in inner_jaxprs(eqn)]
    found = [parameters_of(eqn).get("length") for eqn in loops]
    return found + [length for inner in inside for length in _lengths(inner)]


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
            axis_names=eqn.params["newly_manual_axes"],
        )
    jax.eval_shape(run)
    return result[0]


def is_recomputed(eqn: Any) -> bool:
    """Whether an equation is run again when it is transposed, and holds but its operands before."""
    return name_of(eqn) in _RECOMPUTED


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
    name = eqn.params.get("name", name_of(eqn))
    if name == _IN_PLACE:
        return scopes
    if eqn.primitive.name == "checkpointed_loop":
        return [*scopes, "scan" if function_of(eqn).condition is None else "while"]
    return [*scopes, str(name) if eqn.primitive.name == "jit" else name_of(eqn)]


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
