"""The primal half of a function's vjp, which runs before the cotangents are known.

In it, a `custom_vjp` function is its forward rule, and a derivative of the result is a derivative
of that rule. The function itself could not be differentiated again, because `custom_vjp` functions
have no forward mode. JAX's own linearization does the same.

A function without `custom_vjp` functions is its own primal half, and stays unchanged. To trace its
vjp would lose the rules of `custom_jvp` functions in scans, see `engine.nested`.
"""

from collections.abc import Sequence
from typing import Any

import jax

from jax_revolve._compat import ClosedJaxpr, call_jaxpr, has_equation
from jax_revolve.step.activity import Activity
from jax_revolve.step.loop import Loop, pick, substitute
from jax_revolve.step.once import once


def primal_half(jaxpr: ClosedJaxpr, active: Sequence[bool]) -> ClosedJaxpr:
    """The primal half of a function that is linearized in its active inputs. The other inputs are
    not differentiated, because that may be an error, as `equinox.internal.nondifferentiable` makes
    it."""
    if not has_equation(jaxpr, "custom_vjp"):
        return jaxpr

    def half(*inputs: Any) -> Any:
        def run(chosen: list[Any]) -> Any:
            return call_jaxpr(jaxpr)(*substitute(inputs, active, chosen))

        # Residuals are unused, and removed as dead code.
        return jax.vjp(run, pick(inputs, active))[0]

    return jax.make_jaxpr(half)(*jaxpr.in_avals)


def with_primal_half(loop: Loop, activity: Activity) -> Loop:
    """The loop whose step is the primal half of the step."""
    if not has_equation(loop.jaxpr, "custom_vjp"):
        return loop  # `once` must not hold its jaxpr
    consts = activity.consts[loop.num_condition_consts :]
    active = (*consts, *activity.carry, *activity.xs)
    half = once(loop, ("primal half", active), lambda: primal_half(loop.jaxpr, active))
    return loop._replace(jaxpr=half)
