"""The loop over the stages of a Runge-Kutta step in Diffrax.

Diffrax's solvers have three kinds of loop. "lax" has no reverse mode, "checkpointed" has no forward
mode, and "bounded" has both but takes a third longer in either. We replace the loop, the last one
in the trace of the solver's step, by a faster one. With s stages it takes s steps, or s - 1 if the
first stage is known from the step before. So we use a `lax.scan` of s - 1 steps and a conditional
for one more, before it or, in implicit solvers, after it.

An implicit stage finds a root by a function with its own derivative rule. Stages with such
functions stay whole: see `engine.nested`.
"""

from functools import partial
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat.jaxprs import ClosedJaxpr, variables, with_equations
from jax_revolve.jaxprs.evaluate import call_in_place, kept_whole, run_equation
from jax_revolve.jaxprs.walk import has_equation
from jax_revolve.step.equation import run_around_loop
from jax_revolve.step.loop import Loop

SET = "maybe_set"
"""Equinox's primitive that writes into a buffer. Its operands: whether to write, the buffer, the
value, and the index."""


class ScannedStages(eqx.Module):
    """A Runge-Kutta solver with another loop over its stages."""

    solver: Any

    def step(self, *arguments: Any, **named: Any) -> Any:
        """The step of the solver."""
        solver = _with_lax(self.solver)
        rest: list[Any] = []

        def step() -> Any:
            arrays, others = eqx.partition(solver.step(*arguments, **named), eqx.is_array)
            rest[:] = [others]
            return arrays

        def run(equation: Loop, operands: list[Any]) -> Any:
            tableau = solver.tableau
            is_several = isinstance(tableau, diffrax.MultiButcherTableau)
            count = (tableau.tableaus[0] if is_several else tableau).num_stages
            return _run_stages(equation, operands, count)

        return eqx.combine(run_around_loop(step, run), rest[0])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "solver":
            raise AttributeError(name)
        return getattr(self.solver, name)


def with_scanned_stages(solver: Any) -> Any:
    """The solver with another loop over the stages, also in solvers that it wraps, unless the user
    has chosen a loop. A stochastic solver gets "lax", a `lax.scan`, which works in both modes."""
    kinds = (diffrax.AbstractRungeKutta, diffrax.AbstractSRK)

    def is_one(x: Any) -> bool:
        # A `diffrax.HalfSolver` passes `isinstance` for its inner solver's class, but has no loop.
        return isinstance(x, kinds) and getattr(x, "scan_kind", "") is None

    def change(x: Any) -> Any:
        if not is_one(x):
            return x
        return _with_lax(x) if isinstance(x, diffrax.AbstractSRK) else ScannedStages(x)

    return jax.tree.map(change, solver, is_leaf=is_one)


def _with_lax(solver: Any) -> Any:
    return eqx.tree_at(lambda s: s.scan_kind, solver, "lax", is_leaf=lambda x: x is None)


def _run_stages(equation: Loop, operands: list[Any], count: int) -> list[Any]:
    loop = equation.with_plan(count, None)
    consts, init, _ = loop.operands(operands)
    keep = has_equation(loop.jaxpr, "custom_jvp")
    quicker = loop._replace(jaxpr=_in_fewer_kernels(loop))

    def stage(carry: list[Any]) -> list[Any]:
        return quicker.step(consts, carry, [])[0]

    def one(carry: list[Any], number: Any) -> tuple[list[Any], None]:
        return kept_whole(lambda: stage(carry), number) if keep else stage(carry), None

    def most(carry: list[Any]) -> list[Any]:
        return lax.scan(one, carry, jnp.arange(count - 1, dtype=jnp.int32))[0]

    is_one_more = _stage_number(loop, init) == 0

    def perhaps_one_more(carry: list[Any]) -> list[Any]:
        return lax.cond(is_one_more, stage, lambda carry: carry, carry)

    return perhaps_one_more(most(init)) if keep else most(perhaps_one_more(init))


def _stage_number(loop: Loop, carry: list[Any]) -> Any:
    """The number of the next stage, which is the index of its slope in the buffer, if any."""
    jaxpr: Any = loop.jaxpr.jaxpr
    makers = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    number = next((eqn.invars[-1] for eqn in jaxpr.eqns if eqn.primitive.name == SET), None)
    while number in makers:
        (number,) = variables(makers[number].invars)
    carried = jaxpr.invars[-loop.num_carry :]
    return 0 if number is None else carry[carried.index(number)]


def _in_fewer_kernels(loop: Loop) -> ClosedJaxpr:
    """The jaxpr of a stage, for XLA's CPU backend.

    A stage multiplies the slopes of all earlier stages, a buffer in the carry, and writes its own
    slope into the buffer. In reverse mode, the cotangent of the product is added to the whole
    buffer's cotangent. XLA would recompute it for each row, in a kernel with the whole derivative
    of the vector field, and the gradient of a Tsit5 solve would take a third longer.
    """
    carried = set(loop.jaxpr.jaxpr.invars[-loop.num_carry :])

    def multiply(eqn: Any, *operands: Any) -> list[Any]:
        return [_in_a_kernel_of_its_own(run_equation(eqn, operands))]

    def write(eqn: Any, go_on: Any, buffer: Any, slope: Any, number: Any) -> list[Any]:
        return run_equation(eqn, [go_on, buffer, _in_a_kernel_of_its_own(slope), number])

    def change(eqn: Any) -> Any:
        if eqn.primitive.name == SET:
            return call_in_place(partial(write, eqn), eqn, ())
        if eqn.primitive.name == "dot_general" and not carried.isdisjoint(variables(eqn.invars)):
            return call_in_place(partial(multiply, eqn), eqn, ())
        return eqn

    return with_equations(loop.jaxpr, list(map(change, loop.jaxpr.jaxpr.eqns)))


def _in_a_kernel_of_its_own(value: Any) -> Any:
    """The value, which XLA's CPU backend computes once, as well as its cotangent.

    XLA considers a division expensive, and does not recompute it in every kernel that uses the
    result. So we divide by one, hidden by a barrier. A barrier alone does not help, because XLA
    removes barriers before it makes kernels, and a conditional takes longer.
    """
    if not jnp.issubdtype(value.dtype, jnp.floating):
        return value
    return value / lax.optimization_barrier(jnp.ones((), value.dtype))
