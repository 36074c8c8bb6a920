"""Equations with loops of lax that stay as they are, and why."""

from typing import Any, NamedTuple

from jax_revolve._compat.jaxprs import name_of, parameters_of
from jax_revolve.jaxprs.walk import inner_jaxprs, not_differentiated, others
from jax_revolve.step.equation import read_loop

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
