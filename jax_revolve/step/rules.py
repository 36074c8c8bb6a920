"""Steps that call functions with derivative rules of their own: what JAX makes of them.

JAX calls a rule when it differentiates the function, and the rule may close over values of the
transformations around it, such as an argument of the `jax.jit` function in which it was made. JAX
runs our sweeps later, when these tracers are dead. So where a loop is differentiated whose rules
close over tracers, they become operands of it, and its step calls one function whose rule is the
jaxpr that JAX makes of all its rules (`with_explicit_rules`).
"""

from typing import Any

import jax
from jax import lax

from jax_revolve._compat.jaxprs import ClosedJaxpr, call_jaxpr
from jax_revolve._compat.values import is_traced, pick, spread, tangent_type, zeros
from jax_revolve.jaxprs.equations import calls_rules
from jax_revolve.jaxprs.parts import without_consts
from jax_revolve.step.linearized import (
    Activity,
    active_inputs,
    forward_mode,
    linearized,
    pushed,
)
from jax_revolve.step.loop import Loop, Mask, Operands, once


def with_explicit_rules(
    loop: Loop, activity: Activity, operands: Operands
) -> tuple[Loop, list[Any]] | None:
    """If rules in the step close over tracers, the loop with these and their other constants as
    further consts, after those of its condition, and the values of these consts. JAX must be
    differentiating the loop, so that the tracers are alive."""
    if not calls_rules(loop.jaxpr):
        return None
    active = active_inputs(loop, activity)
    known = forward_mode(loop, active)
    make = _in_reverse if known.is_opaque else _forward
    made = lambda: make(loop, activity, operands, active)  # noqa: E731
    closes_over = lambda: any(map(is_traced, made()[1]))  # noqa: E731
    if known.is_opaque:
        if not once(loop.bare, ("closes over", active), closes_over):
            return None
    elif not known.closes_over:
        return None
    function, consts = made()
    try:
        consts = list(lax.optimization_barrier(tuple(consts)))
    except jax.errors.UnexpectedTracerError:
        # They belong to a transformation inside the one that differentiates the loop. As with
        # `jax.lax`, this is an error where their values are used, and only there.
        return None
    count = len(consts)

    def with_consts(run: Any) -> Any:
        return lambda *flat: run(list(flat[:count]), list(flat[count:]))

    def without(closed: ClosedJaxpr) -> Any:
        return with_consts(lambda _, inputs: call_jaxpr(closed)(*inputs))

    types = list(map(jax.typeof, consts))
    trace = lambda run, jaxpr: jax.make_jaxpr(run)(*types, *jaxpr.in_avals)  # noqa: E731
    explicit = loop._replace(
        jaxpr=trace(with_consts(function), loop.jaxpr),
        num_consts=loop.num_consts + count,
        inverse=loop.inverse and trace(without(loop.inverse), loop.inverse),
    )
    return explicit, consts


def _forward(loop: Loop, _: Activity, __: Operands, active: Mask) -> tuple[Any, list[Any]]:
    """The step as one `custom_jvp` function of the values that its rules close over and its inputs,
    and these values."""
    made = pushed(loop.jaxpr, active)
    closed, consts = without_consts(made.closed)

    @jax.custom_jvp
    def step(consts: list[Any], inputs: list[Any]) -> list[Any]:
        del consts
        return call_jaxpr(loop.jaxpr)(*inputs)

    @step.defjvp
    def _(primals: Any, tangents: Any) -> tuple[list[Any], list[Any]]:
        consts, inputs = primals
        flat = call_jaxpr(closed)(*consts, *inputs, *pick(tangents[1], active))
        count = len(made.results)
        results, dots = flat[:count], spread(flat[count:], made.results)
        pairs = zip(results, dots, strict=True)
        return results, [zeros(tangent_type(x)) if dot is None else dot for x, dot in pairs]

    return step, consts


def _in_reverse(
    loop: Loop, activity: Activity, operands: Operands, active: Mask
) -> tuple[Any, list[Any]]:
    """The same for a step without forward mode, as one `custom_vjp` function."""
    made = linearized(loop, activity, operands, keep=False)
    code, of_code = without_consts(made.code)
    transposed, of_transposed = without_consts(made.transposed)
    split, count = len(of_code), len(made.results)
    of_condition = operands.types[: loop.num_condition_consts]

    @jax.custom_vjp
    def step(consts: list[Any], inputs: list[Any]) -> list[Any]:
        del consts
        return call_jaxpr(loop.jaxpr)(*inputs)

    def forward(consts: list[Any], inputs: list[Any]) -> Any:
        own, carry, x = loop.operands([*map(zeros, of_condition), *inputs])
        flat = call_jaxpr(code)(*consts[:split], *own, *own, *carry, *carry, *x)
        return flat[:count], (consts, flat[count:])

    def backward(saved: Any, cts: list[Any]) -> Any:
        consts, residuals = saved
        found = call_jaxpr(transposed)(*consts[split:], *residuals, *pick(cts, activity.results))
        return [None] * len(consts), spread(found, active)

    step.defvjp(forward, backward)
    return step, [*of_code, *of_transposed]
