"""Values of a step that a policy of `jax.checkpoint` around the loop keeps.

They are stacked over the steps, as in `lax.scan`: the loop that runs at first has them as further
ys, and the one that runs again has them as further xs, with the plan for the rest. There, a kept
value is read. Its tangent is that of the value computed again, which nothing else uses then.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jax_revolve._compat.interpreters import where_kept
from jax_revolve._compat.jaxprs import ClosedJaxpr, name_of
from jax_revolve._compat.memories import to_device, to_host
from jax_revolve._compat.primitives import new_primitive
from jax_revolve._compat.values import is_zero, symbolic_zero
from jax_revolve.jaxprs.evaluate import run_each, run_in_place
from jax_revolve.jaxprs.inline import WITHOUT_RULES, inlined
from jax_revolve.jaxprs.walk import any_equation, inner_jaxprs
from jax_revolve.step.loop import Loop

Policy = Callable[..., Any]


def keeping(loop: Loop, policy: Policy | None) -> tuple[Loop, Loop] | None:
    """The loop with the values as ys that the policy keeps, and the loop with them as xs; `None` if
    it keeps none. As lax does, it keeps none of a while loop."""
    if policy is None or loop.condition is not None:
        return None
    step = inlined(loop.jaxpr, WITHOUT_RULES)
    places = {id(eqn): where_kept(policy, eqn) for eqn in step.eqns if not eqn.effects}
    _warn_of_others(policy, step, places)
    if not any(places.values()):
        return None
    if loop.inverse is not None:
        _warn("a step that an inverse walks back", "")
        return None
    count = len(step.in_avals)

    def first(*inputs: Any) -> list[Any]:
        kept: list[Any] = []

        def run(eqn: Any, operands: Sequence[Any]) -> list[Any]:
            results = run_in_place(eqn, operands)
            if place := places.get(id(eqn)):
                kept.extend(map(to_host, results) if place == "host" else results)
            return results

        return [*run_each(step, inputs, run), *kept]

    def again(*inputs: Any) -> list[Any]:
        kept = iter(inputs[count:])

        def run(eqn: Any, operands: Sequence[Any]) -> list[Any]:
            results = run_in_place(eqn, operands)
            if not (place := places.get(id(eqn))):
                return results
            known = [to_device(next(kept)) if place == "host" else next(kept) for _ in results]
            return [x for pair in zip(known, results, strict=True) for x in kept_p.bind(*pair)]

        return run_each(step, inputs[:count], run)

    before = jax.make_jaxpr(first)(*step.in_avals)
    after = jax.make_jaxpr(again)(*step.in_avals, *before.out_avals[len(step.out_avals) :])
    return loop._replace(jaxpr=before), loop._replace(jaxpr=after)


def _warn_of_others(policy: Policy, step: ClosedJaxpr, places: Mapping[int, str | None]) -> None:
    """Warn if the policy keeps values in loops, branches and functions with rules, which are not
    entered."""
    for eqn in step.eqns:
        for inner in () if places.get(id(eqn)) else inner_jaxprs(eqn):
            if any_equation(inner, lambda eqn: where_kept(policy, eqn) is not None):
                _warn(f"a {name_of(eqn)} in a step", " Name values of the step itself.")
                return


def _warn(what: str, advice: str) -> None:
    warnings.warn(
        f"The policy of jax.checkpoint keeps values of {what}: jax_revolve computes them again."
        f"{advice}",
        stacklevel=2,
    )


def _jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    (value, _), (_, dot) = primals, tangents
    return [value], [symbolic_zero(jax.typeof(value)) if is_zero(dot) else dot]


kept_p = new_primitive(
    "kept",
    implementation=lambda value, again: [value],
    output_types=lambda value, again: ([value], frozenset()),
    batch=lambda axis, operands, dims: (kept_p.bind(*operands), dims[:1]),
    jvp=_jvp,
)
"""A kept value, with the derivative of the value computed again. To dead-code elimination, that is
used: the loop may be differentiated afterwards. XLA removes it."""
