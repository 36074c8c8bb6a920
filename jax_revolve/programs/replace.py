"""Replacing the loops of a program by checkpointed ones."""

from collections.abc import Callable, Sequence
from typing import Any

from jax_revolve import _compat
from jax_revolve.autodiff.refusal import without_reverse_mode
from jax_revolve.autodiff.rules import loop_p, run_loop
from jax_revolve.loops.while_loop import raise_if_stopped
from jax_revolve.programs.location import Location, Replacements, is_in


def replace_loops(jaxpr: Any, replacements: Replacements, place: Location | None = None) -> Any:
    """The program with these loops replaced. A jaxpr that contains none of them stays the same
    object."""
    place = place or Location()
    equations = [_replace(eqn, index, place, replacements) for index, eqn in enumerate(jaxpr.eqns)]
    if all(new is old for new, old in zip(equations, jaxpr.eqns, strict=True)):
        return jaxpr
    return _compat.with_equations(jaxpr, equations)


def _replace(eqn: Any, index: int, place: Location, replacements: Replacements) -> Any:
    eqn = replace_inside(eqn, index, place, replacements)
    replacement = replacements.get((*place.key, index))
    if replacement is None:
        return eqn
    if replacement.plan is None:
        return _compat.call_in_place(_without_a_bound(eqn, place), eqn, place.enclosing)
    loop = replacement.loop(eqn)
    if loop.condition is None or loop.length is None:
        return eqn.replace(primitive=loop_p, params={"function": loop})

    def run(*operands: Any) -> Any:
        results = run_loop(loop, list(operands))
        return raise_if_stopped(loop, list(operands), results, results)

    return _compat.call_in_place(run, eqn, place.enclosing)


def _without_a_bound(eqn: Any, place: Location) -> Callable[..., Sequence[Any]]:
    """lax's own while loop, with an error in reverse mode that names the loop."""
    message = (
        f"max_steps must be an int to differentiate the loop {place.name_of(eqn)!r} of "
        f"{place.source_of(eqn)} in reverse mode, but is None: it is a while loop, which has no "
        "reverse mode without a bound. Pass max_steps, the most steps that it may take, or "
        "checkpoints, the number of carries to store, to checkpoint_loops, or for this loop alone "
        "by where."
    )
    return lambda *operands: without_reverse_mode(_compat.run_in_place(eqn, operands), message)


def replace_inside(eqn: Any, index: int, place: Location, replacements: Replacements) -> Any:
    key = (*place.key, index)
    if not any(is_in(k, key) for k in replacements):
        return eqn
    into = place.into(index, eqn)
    old = _compat.inner_programs(eqn)
    new = [replace_loops(program, replacements, into(part)) for part, program in enumerate(old)]
    return _compat.with_inner_programs(eqn, new)
