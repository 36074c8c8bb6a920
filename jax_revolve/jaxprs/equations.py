"""Properties of an equation, and its source line."""

import re
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jax_revolve._compat.jaxprs import ClosedJaxpr, is_high, name_of
from jax_revolve._compat.primitives import has_own_linearization
from jax_revolve._compat.values import varying_axes
from jax_revolve.jaxprs.walk import any_equation, function_of, is_equinox_loop

IN_PLACE = "checkpointed_in_place"
"""The name of a function that is called in place of an equation."""

_UNNAMED = ("", "checkpointed-no-vjp")
"""Scopes that no user wrote; the second is of Equinox's loops."""

KEYED = "jax_revolve@"
"""How a scope begins that tells which loop an equation was: see `programs.derivative`."""


def is_recomputed(eqn: Any) -> bool:
    """Whether an equation is recomputed when transposed, and until then keeps only its operands."""
    return name_of(eqn) in ("remat2", "checkpointed_segment")


def varies_unevenly(eqn: Any) -> bool:
    """Whether a while loop's condition varies over axes over which some of its carry does not."""
    axes = varying_axes(eqn.params["cond_jaxpr"].out_avals[0])
    return not all(axes <= varying_axes(v.aval) for v in eqn.outvars)


def is_shard_map(eqn: Any) -> bool:
    return eqn.primitive.name == "shard_map"


def name_in(eqn: Any) -> list[str]:
    """The names of scopes and transformations around an equation, and its own name."""
    scopes = [_bare(name) for name in str(eqn.source_info.name_stack).split("/")]
    scopes = [name for name in scopes if name not in _UNNAMED and not name.startswith(KEYED)]
    name = eqn.params.get("name", name_of(eqn))
    if name in (IN_PLACE, "checkpointed_program") or is_equinox_loop(eqn):
        return scopes
    if eqn.primitive.name in ("checkpointed_loop", "checkpointed_loop_forward_sweep"):
        loop = getattr(function_of(eqn), "loop", function_of(eqn))
        return [*scopes, "scan" if loop.condition is None else "while"]
    return [*scopes, str(name) if eqn.primitive.name == "jit" else name_of(eqn)]


def _bare(scope: str) -> str:
    """A scope without the transformations around it."""
    return re.sub(r"^(?:(?:jvp|transpose|vmap)\()*([^()]*)\)*$", r"\1", scope)


def source_of(eqn: Any) -> str:
    """The user's file and line of an equation, "model.py:42", or a library's if there is none; ""
    for an equation that was made here."""
    traceback, source = eqn.source_info.traceback, ""
    for frame in traceback.frames if traceback is not None else ():
        owner = _owner_of(frame.file_name)
        if owner == "in place":
            break
        if owner != "JAX":
            line = f"{Path(frame.file_name).name}:{frame.line_num}"
            if owner == "user":
                return line
            source = source or line
    return source


@cache
def _owner_of(file_name: str) -> str:
    file, ours = Path(file_name), Path(__file__).parents[1]
    if file == ours / "jaxprs" / "evaluate.py":
        return "in place"
    if any(map(file.is_relative_to, (Path(jax.__file__).parent, ours))):
        return "JAX"
    libraries = (sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    return "library" if any(map(file.is_relative_to, libraries)) else "user"


def calls_rules(closed: ClosedJaxpr) -> bool:
    """Whether a jaxpr calls, at any depth, a function or an object with a derivative rule of its
    own, whoever wrote it: its value may change once it is differentiated."""
    return any_equation(closed, has_rule)


def has_rule(eqn: Any) -> bool:
    return name_of(eqn).startswith(("custom_jvp", "custom_vjp")) or has_methods(eqn)


def has_methods(eqn: Any) -> bool:
    """Whether an equation has rules for forward and reverse mode, either of which may be missing or
    differ from the other, and a derivative: an object with methods, or a primitive of another
    library."""
    if is_high(eqn):
        is_found = name_of(eqn) not in ("custom_jvp_call", "remat2")  # these have one rule
    else:
        is_found = has_own_linearization(eqn)
    return is_found and any(jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in eqn.outvars)
