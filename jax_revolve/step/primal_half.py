"""What is computed of a function that is linearized for reverse mode: the primal half of its vjp.

A `custom_vjp` function inside is then its forward rule, and a derivative of the result is one of
that rule. Differentiating the function itself would meet the `custom_vjp` function, which has no
forward mode. JAX's own linearization does the same.

A function without any is its own primal half, and is left as it is: taking it apart would lose the
rules of `custom_jvp` functions in scans, see `nested`.
"""

from collections.abc import Sequence
from typing import Any

import jax

from jax_revolve._compat import ClosedJaxpr, call_jaxpr, has_custom_vjp
from jax_revolve.step.activity import Activity
from jax_revolve.step.loop import Loop, pick, substitute
from jax_revolve.step.once import once


def primal_half(jaxpr: ClosedJaxpr, active: Sequence[bool]) -> ClosedJaxpr:
    """That of a function which is linearized in its active inputs. No other is differentiated: it
    may be one whose derivative is an error, as `equinox.internal.nondifferentiable` makes it."""
    if not has_custom_vjp(jaxpr):
        return jaxpr

    def half(*inputs: Any) -> Any:
        def run(chosen: list[Any]) -> Any:
            return call_jaxpr(jaxpr)(*substitute(inputs, active, chosen))

        # Residuals are unused, and removed as dead code.
        return jax.vjp(run, pick(inputs, active))[0]

    return jax.make_jaxpr(half)(*jaxpr.in_avals)


def with_primal_half(loop: Loop, activity: Activity) -> Loop:
    """The loop whose step is the primal half of the step."""
    if not has_custom_vjp(loop.jaxpr):
        return loop  # `once` must not hold its jaxpr
    consts = activity.consts[loop.num_condition_consts :]
    active = (*consts, *activity.carry, *activity.xs)
    half = once(loop, ("primal half", active), lambda: primal_half(loop.jaxpr, active))
    return loop._replace(jaxpr=half)
