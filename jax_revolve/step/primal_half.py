"""The primal half of a function's vjp, which runs before the cotangents are known.

In it, a `custom_vjp` function is its forward rule, and a derivative of the result is a derivative
of that rule. The function itself could not be differentiated again, because `custom_vjp` functions
have no forward mode. JAX's own linearization does the same.

Equations without `custom_vjp` functions are their own primal halves, and stay unchanged. To trace
their vjp would lose the rules of `custom_jvp` functions in scans, see `engine.nested`.
"""

from collections.abc import Sequence
from typing import Any

import jax

from jax_revolve._compat.equations import run_each, run_in_place
from jax_revolve._compat.jaxprs import (
    ClosedJaxpr,
    has_equation,
    is_literal,
    variables,
    with_equations,
    with_outputs,
)
from jax_revolve.step.activity import Activity, active_results
from jax_revolve.step.loop import Loop, pick, substitute
from jax_revolve.step.once import once


def primal_half(
    jaxpr: ClosedJaxpr, active: Sequence[bool], earlier: Sequence[bool] = ()
) -> ClosedJaxpr:
    """The primal half of a function that is linearized in its active inputs. The other inputs are
    not differentiated, because that may be an error, as `equinox.internal.nondifferentiable` makes
    it.

    Where a derivative in the `earlier` inputs is to be taken of the result, as a sweep does, the
    functions that depend on these stay as they are: their reverse rules are still to be used.
    """
    rules = [e for e in jaxpr.eqns if has_equation(with_equations(jaxpr, [e]), "custom_vjp")]
    if not rules:
        return jaxpr
    taken = list(dict.fromkeys(variables([v for eqn in rules for v in eqn.invars])))

    def that_have_derivatives(inputs: Sequence[bool]) -> set[Any]:
        values = with_outputs(jaxpr, taken)
        found = active_results(lambda *args: values(args), jaxpr.in_avals, inputs)
        return set(pick(taken, found))

    differentiated = that_have_derivatives(active)
    stays = that_have_derivatives(earlier) if any(earlier) else set()

    def half(*inputs: Any) -> Any:
        def run(eqn: Any, operands: list[Any]) -> list[Any]:
            mask = [not is_literal(v) and v in differentiated for v in eqn.invars]
            if eqn in rules and any(mask) and stays.isdisjoint(variables(eqn.invars)):
                again = lambda chosen: run_in_place(eqn, substitute(operands, mask, chosen))  # noqa: E731
                # Residuals are unused, and removed as dead code.
                return jax.vjp(again, pick(operands, mask))[0]
            return run_in_place(eqn, operands)

        return run_each(jaxpr, inputs, run)

    return jax.make_jaxpr(half)(*jaxpr.in_avals)


def with_primal_half(loop: Loop, activity: Activity, earlier: Activity | None = None) -> Loop:
    """The loop whose step is the primal half of the step."""
    if not has_equation(loop.jaxpr, "custom_vjp"):
        return loop  # `once` must not hold its jaxpr

    def of_inputs(activity: Activity | None) -> tuple[bool, ...]:
        if activity is None:
            return ()
        return (*activity.consts[loop.num_condition_consts :], *activity.carry, *activity.xs)

    masks = of_inputs(activity), of_inputs(earlier)
    half = once(loop, ("primal half", *masks), lambda: primal_half(loop.jaxpr, *masks))
    return loop._replace(jaxpr=half)
