"""Programs in programs: the one walk over the equations of a jaxpr and the jaxprs that they hold.

All code that walks programs uses these functions, so it misses nothing: they find jaxprs in any
parameter of an equation, and each is either entered by a rule below, or reported as not entered
(`programs.find.find_not_entered`).
"""

import sys
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import jax
import numpy as np

from jax_revolve._compat.jaxprs import (
    ClosedJaxpr,
    Jaxpr,
    is_high,
    name_of,
    owner_of_rule,
    parameters_of,
)
from jax_revolve._compat.values import ShapedArray

CALLS = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
    "program_order": "call_jaxpr",
    "compute_on": "jaxpr",
    "xla_metadata_call": "jaxpr",
    "custom_vmap_call": "call",
    "remat2": "jaxpr",
    "checkpointed_segment": "function.jaxpr",
    "checkpointed_program": "function.jaxpr",
}
"""Equations that call a program on their operands and return its results, with the parameter that
holds it."""

_ENTERED = {
    **CALLS,
    "cond": "branches",
    "shard_map": "jaxpr",
    "scan": "jaxpr",
    "while": "body_jaxpr",
    "custom_linear_solve": "jaxprs.matvec",
    "checkpointed_loop": "function.jaxpr",
}
"""Equations that JAX differentiates by differentiating the programs in this parameter."""

_NOT_DIFFERENTIATED = {
    "while": ("cond_jaxpr",),
    "checkpointed_loop": ("function.condition", "function.inverse"),
    "custom_linear_solve": ("jaxprs.vecmat", "jaxprs.solve", "jaxprs.transpose_solve"),
}
"""Parameters of equations with programs whose residuals are never kept."""

_DEPTH = 3
"""How deep to look into nested objects of unknown classes, which may have cycles."""

_DATA = (
    *(bool, int, float, complex, str, bytes, type(None), type, np.ndarray, np.generic, np.dtype),
    *(FunctionType, ModuleType, Enum, jax.Array, ShapedArray),
    *(jax.sharding.Mesh, jax.sharding.AbstractMesh, jax.sharding.Sharding),
)
"""Types of values that hold no program, or none that runs. A function may trace one later."""


def changed(eqn: Any, change: Callable[[str, Any], Any]) -> Any:
    """The equation with `change(place, jaxpr)` instead of each jaxpr in its parameters, at any
    depth. The place is the parameter's name, followed by names of fields and keys. Returns the same
    object if nothing changes. Objects of unknown classes never change."""
    old = parameters_of(eqn)
    new = {name: _changed(value, change, name) for name, value in old.items()}
    if all(new[name] is value for name, value in old.items()):
        return eqn
    if not is_high(eqn):
        return eqn.replace(params=new)
    if name_of(eqn) not in _ENTERED:  # nothing is known of how it is made
        return eqn
    return eqn.replace(params={"_prim": type(eqn.params["_prim"])(**new)})


def _changed(value: Any, change: Callable[[str, Any], Any], place: str, depth: int = 0) -> Any:
    if isinstance(value, _DATA):
        return value
    if isinstance(value, ClosedJaxpr | Jaxpr):
        return change(place, value)
    if isinstance(value, tuple | list):
        names = getattr(value, "_fields", None)
        places = [f"{place}.{name}" for name in names] if names else [place] * len(value)
        new = [_changed(v, change, p, depth) for v, p in zip(value, places, strict=True)]
        if all(a is b for a, b in zip(new, value, strict=True)):
            return value
        return type(value)(*new) if names else type(value)(new)
    if isinstance(value, dict):
        new = {k: _changed(v, change, f"{place}.{k}", depth) for k, v in value.items()}
        return new if any(new[k] is not v for k, v in value.items()) else value
    if depth < _DEPTH:
        for name, part in _parts(value).items():
            _changed(part, change, f"{place}.{name}", depth + 1)
    return value


def _parts(value: Any) -> dict[str, Any]:
    """The attributes of an object of an unknown class."""
    if isinstance(value, jax.stages.Traced):
        return {"jaxpr": value.jaxpr}
    if isinstance(value, partial):
        return {"args": value.args, "keywords": value.keywords}
    return dict(getattr(value, "__dict__", {}))


def places(eqn: Any) -> list[tuple[str, Any]]:
    """The jaxprs that an equation holds, each with its place."""
    found: list[tuple[str, Any]] = []

    def add(place: str, jaxpr: Any) -> Any:
        found.append((place, jaxpr))
        return jaxpr

    changed(eqn, add)
    return found


def inner_jaxprs(eqn: Any) -> list[Any]:
    return [jaxpr for _, jaxpr in places(eqn)]


def is_equinox_loop(eqn: Any) -> bool:
    """Whether an equation is a loop of `equinox.internal` with `kind="checkpointed"`: a
    `custom_vjp` function that runs one `while`. Its rule is the derivative of that loop by another
    schedule, so another derivative of the loop may take its place. We compare the rule itself, not
    its name, so that no other rule passes."""
    if eqn.primitive.name != "custom_vjp_call":
        return False
    module = sys.modules.get("equinox.internal._loop.checkpointed")
    loop = getattr(module, "_checkpointed_while_loop", None)
    if loop is None or owner_of_rule(eqn) is not loop:
        return False
    return sum(inner.primitive.name == "while" for inner in eqn.params["call_jaxpr"].eqns) == 1


def _entered(eqn: Any) -> str | None:
    return "call_jaxpr" if is_equinox_loop(eqn) else _ENTERED.get(name_of(eqn))


def inner_programs(eqn: Any) -> list[Any]:
    """The jaxprs that an equation runs and that are differentiated with it."""
    entered = _entered(eqn)
    return [jaxpr for place, jaxpr in places(eqn) if place == entered]


def with_inner_programs(eqn: Any, programs: Sequence[Any]) -> Any:
    """The equation with its `inner_programs` replaced."""
    entered, rest = _entered(eqn), iter(programs)
    return changed(eqn, lambda place, jaxpr: next(rest) if place == entered else jaxpr)


def others(eqn: Any) -> list[Any]:
    """The jaxprs whose residuals may be kept although we do not enter them."""
    known = (_entered(eqn), *_NOT_DIFFERENTIATED.get(name_of(eqn), ()))
    return [jaxpr for place, jaxpr in places(eqn) if place not in known]


def not_differentiated(eqn: Any) -> list[Any]:
    """The jaxprs that an equation runs, and whose residuals are never kept."""
    apart = _NOT_DIFFERENTIATED.get(name_of(eqn), ())
    return [jaxpr for place, jaxpr in places(eqn) if place in apart]


def any_equation(jaxpr: Any, test: Callable[[Any], bool]) -> bool:
    """Whether an equation anywhere in a jaxpr passes a test."""
    rest = [jaxpr]
    while rest:
        for eqn in rest.pop().eqns:
            if test(eqn):
                return True
            rest += inner_jaxprs(eqn)
    return False


def has_equation(jaxpr: Any, *names: str) -> bool:
    """Whether the name of an equation anywhere in a jaxpr starts with one of these."""
    return any_equation(jaxpr, lambda eqn: name_of(eqn).startswith(names))


def function_of(eqn: Any) -> Any:
    """The function of an equation of this library, a tuple with a jaxpr first, or `None`."""
    return eqn.params.get("function") if eqn.primitive.name.startswith("checkpointed_") else None
