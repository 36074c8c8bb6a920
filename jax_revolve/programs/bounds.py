"""Bounds of while loops, read from their conditions.

A condition that implies `counter < constant` bounds the loop if the counter starts at a known value
and every step adds the same known number to it. So we run the program on what is known of its
values: numbers and, in a step and its condition, how they differ from the carry. The result of an
operation that is not listed here is unknown, and bounds nothing.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp

from jax_revolve._compat.jaxprs import is_literal
from jax_revolve._compat.values import is_traced
from jax_revolve.jaxprs.walk import CALLS, inner_programs
from jax_revolve.programs.derivative import Key
from jax_revolve.schedule.options import LARGEST_BOUND
from jax_revolve.step.equation import READ


class _Shifted(NamedTuple):
    """A leaf of the carry before the step, by its index, plus a number."""

    entry: int
    by: int


_Fact: TypeAlias = tuple[_Shifted, int, int]
"""The value, sign and number of `sign * value < number`."""


class _Says(NamedTuple):
    """What follows from a truth value if it is true, and if it is false."""

    if_true: frozenset[_Fact] = frozenset()
    if_false: frozenset[_Fact] = frozenset()


_Known: TypeAlias = int | _Shifted | _Says | None
"""What is known of a value, or of every entry of an array."""

_SAME = (
    *("copy", "convert_element_type", "broadcast_in_dim", "reshape", "squeeze"),
    *("nonbatchable", "unvmap_any"),
)
_NUMBERS: Mapping[str, Callable[[int, int], int]] = {
    f.__name__: f for f in (operator.add, operator.sub, operator.mul, max, min)
}
_RUN = {**CALLS, "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}


def read_bounds(closed: Any) -> dict[Key, int]:
    """The bounds of the while loops of a program by their keys, as far as they can be read."""
    bounds: dict[Key, int] = {}
    _run(closed, [None] * len(closed.in_avals), bounds, ())
    return bounds


def _run(program: Any, inputs: Sequence[_Known], bounds: dict[Key, int], key: Key) -> list[_Known]:
    """What is known of the results of a program. Adds the bounds of the loops in it."""
    jaxpr, consts = getattr(program, "jaxpr", program), getattr(program, "consts", ())
    known = dict(zip(jaxpr.constvars, map(_value_of, consts), strict=False))
    known.update(zip(jaxpr.invars, inputs, strict=True))

    def read(atom: Any) -> _Known:
        return _value_of(atom.val) if is_literal(atom) else known.get(atom)

    for index, eqn in enumerate(jaxpr.eqns):
        name, operands, here = eqn.primitive.name, list(map(read, eqn.invars)), (*key, index)
        numbers = [x if isinstance(x, int) else None for x in operands]
        if name == "while":
            results = _run_while(eqn, numbers, bounds, here)
        elif (inner := eqn.params.get(_RUN.get(name))) is not None:
            results = _run(inner, operands, bounds, (*here, 0))
        else:
            results = [_result(eqn, operands)] if eqn.outvars else []
            first = READ[name](eqn).num_consts if name == "scan" else 0
            for part, inner in enumerate(inner_programs(eqn)):
                inputs = numbers[1:] if name == "cond" else numbers[:first]
                rest = [None] * (len(getattr(inner, "jaxpr", inner).invars) - len(inputs))
                _run(inner, [*inputs, *rest], bounds, (*here, part))
        known.update(zip(eqn.outvars, results, strict=False))
    return list(map(read, jaxpr.outvars))


def _run_while(
    eqn: Any, numbers: list[int | None], bounds: dict[Key, int], key: Key
) -> list[_Known]:
    loop = READ["while"](eqn)
    consts, start, _ = loop.operands(numbers)
    of_step = consts[loop.num_condition_consts :]
    variables = loop.jaxpr.jaxpr.invars[len(of_step) :]
    stays = [new is old for new, old in zip(loop.jaxpr.jaxpr.outvars, variables, strict=True)]
    fixed = [x if same else None for x, same in zip(start, stays, strict=True)]
    carry = [
        _Shifted(i, 0) if x is None and _is_integer(v.aval) else x
        for i, (x, v) in enumerate(zip(fixed, variables, strict=True))
    ]
    new = _run(loop.jaxpr, [*of_step, *carry], bounds, (*key, 0))
    (says,) = _run(loop.condition, [*consts[: loop.num_condition_consts], *carry], {}, ())
    facts = says.if_true if isinstance(says, _Says) else ()
    found = [_steps(fact, start, new, variables) for fact in facts]
    if some := [n for n in found if n is not None and n <= LARGEST_BOUND]:
        bounds[key] = min(some)
    return fixed


def _steps(
    fact: _Fact, start: list[Any], new: list[_Known], variables: Sequence[Any]
) -> int | None:
    """The steps after which a fact no longer holds, at least one, because a plan has steps."""
    (entry, by), sign, than = fact
    first, after = start[entry], new[entry]
    if first is None or not isinstance(after, _Shifted) or after.entry != entry:
        return None
    if (step := sign * after.by) <= 0:
        return None
    steps = max(1, -((sign * (first + by) - than) // step))
    last = first + steps * after.by
    fits = all(_fits(x, variables[entry].aval.dtype) for x in (last, last + by))
    return steps if fits else None  # or the counter may overflow, and begin again


def _result(eqn: Any, operands: list[_Known]) -> _Known:
    name, dtype = eqn.primitive.name, getattr(eqn.outvars[0].aval, "dtype", None)
    match operands:
        case [_, value, _] if name == "select_if_vmap":
            return value
        case [value] if name in _SAME:
            return value if _is_kept(eqn, value) else None
        case [_Says(if_true, if_false)] if name == "not":
            return _Says(if_false, if_true)
        case [x, y] if name in ("and", "or") and dtype == jnp.bool_:
            a, b = (v if isinstance(v, _Says) else _Says() for v in (x, y))
            if name == "and":
                return _Says(a.if_true | b.if_true, a.if_false & b.if_false)
            return _Says(a.if_true & b.if_true, a.if_false | b.if_false)
        case [x, y] if name in ("lt", "ge", "gt", "le"):
            x, y = (x, y) if name in ("lt", "ge") else (y, x)
            less, not_less = _less(x, y, 0), _less(y, x, 1)
            return _Says(less, not_less) if name in ("lt", "gt") else _Says(not_less, less)
        case [int() as x, int() as y] if name in _NUMBERS:
            number = _NUMBERS[name](x, y)
            return number if _fits(number, dtype) else None
        case [_Shifted(entry, by), int() as y] | [int() as y, _Shifted(entry, by)] if name == "add":
            return _Shifted(entry, by + y)
        case [_Shifted(entry, by), int() as y] if name == "sub":
            return _Shifted(entry, by - y)
    return None


def _less(x: _Known, y: _Known, more: int) -> frozenset[_Fact]:
    """The fact that `x < y + more`, if one of them is a number and the other is not."""
    if isinstance(x, _Shifted) and isinstance(y, int):
        return frozenset([(x, 1, y + more)])
    if isinstance(x, int) and isinstance(y, _Shifted):
        return frozenset([(y, -1, more - x)])
    return frozenset()


def _is_kept(eqn: Any, value: _Known) -> bool:
    """Whether a change of type or shape keeps what is known."""
    old, new = eqn.invars[0].aval, eqn.outvars[0].aval
    if isinstance(value, int):
        return _is_integer(new) and _fits(value, new.dtype)
    if isinstance(value, _Shifted) and _is_integer(new):
        limits = jnp.iinfo(old.dtype)
        return old.shape == new.shape and all(_fits(x, new.dtype) for x in (limits.min, limits.max))
    return isinstance(value, _Says) and new.dtype == jnp.bool_ and old.shape == new.shape


def _is_integer(value: Any) -> bool:
    return jnp.issubdtype(value.dtype, jnp.integer)


def _fits(number: int, dtype: Any) -> bool:
    limits = jnp.iinfo(dtype)
    return limits.min <= number <= limits.max


def _value_of(x: Any) -> _Known:
    is_integer = not is_traced(x) and jnp.issubdtype(jnp.result_type(x), jnp.integer)
    return int(x) if is_integer and not jnp.ndim(x) else None
