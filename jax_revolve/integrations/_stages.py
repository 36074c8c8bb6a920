"""The loop over the stages of a Runge-Kutta step in Diffrax.

Diffrax's solvers know three loops for it. "lax" has no reverse mode and "checkpointed" no forward
mode; "bounded" has both, and takes half as long again in forward mode. There is a better one: with
s stages the loop takes s steps, or s - 1 if the first stage is known from the step before. So it is
a `lax.scan` of s - 1 steps and, perhaps, one more.

An implicit stage finds a root by a function with a derivative rule of its own. Stages with such
functions are kept whole, see `engine.nested`.

The loop is found in what the solver's step is traced to, where it is the last one.
"""

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat import (
    LoopEquation,
    has_custom_jvp,
    kept_whole,
    run_around_loop,
    run_each,
    run_equation,
    variables,
)
from jax_revolve.engine.loop import Loop

SET = "maybe_set"
"""Equinox's primitive that writes into a buffer."""


class ScannedStages(eqx.Module):
    """A Runge-Kutta solver with another loop over its stages."""

    solver: Any

    def step(self, *arguments: Any, **named: Any) -> Any:
        """As that of the solver."""
        solver = eqx.tree_at(_scan_kind, self.solver, "lax", is_leaf=lambda x: x is None)
        rest: list[Any] = []

        def step() -> Any:
            arrays, others = eqx.partition(solver.step(*arguments, **named), eqx.is_array)
            rest[:] = [others]
            return arrays

        def run(equation: LoopEquation, operands: list[Any]) -> Any:
            return _run_stages(equation, operands, _num_stages(self.solver))

        return eqx.combine(run_around_loop(step, run), rest[0])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "solver":
            raise AttributeError(name)
        return getattr(self.solver, name)


def with_scanned_stages(solver: Any) -> Any:
    """The solver with another loop over the stages, or those solvers that it is made of."""

    def change(x: Any) -> Any:
        if _is_runge_kutta(x):
            return ScannedStages(x)
        if _is_stochastic_runge_kutta(x):
            return eqx.tree_at(_scan_kind, x, "lax", is_leaf=lambda x: x is None)
        return x

    def is_one(x: Any) -> bool:
        return _is_runge_kutta(x) or _is_stochastic_runge_kutta(x)

    return jax.tree.map(change, solver, is_leaf=is_one)


def _run_stages(equation: LoopEquation, operands: list[Any], stages: int) -> list[Any]:
    loop = Loop.of(equation, stages, None)
    consts, init, _ = loop.operands(operands)
    stage = _stage(loop, consts)
    keep = has_custom_jvp(loop.jaxpr)

    def one(carry: list[Any], number: Any) -> tuple[list[Any], None]:
        return kept_whole(lambda: stage(carry), number) if keep else stage(carry), None

    carry, _ = lax.scan(one, init, jnp.arange(stages - 1, dtype=jnp.int32))
    return lax.cond(loop.holds(consts, carry), stage, lambda carry: carry, carry)


def _stage(loop: Loop, consts: list[Any]) -> Callable[[list[Any]], list[Any]]:
    """A stage: carry to carry.

    It multiplies the slopes of all stages before it, a buffer in the carry, and writes its own into
    the buffer. In reverse mode the cotangent of the product is added to that of the whole buffer.
    XLA's CPU backend would compute it anew for each row of the buffer, by a kernel that holds all
    of the vector field's derivative; see `_in_a_kernel_of_its_own`.
    """
    used = consts[loop.num_condition_consts :]
    carried = set(loop.jaxpr.jaxpr.invars[len(used) :])

    def run(eqn: Any, operands: list[Any]) -> list[Any]:
        if eqn.primitive.name == SET:
            go_on, buffer, slope, *index = operands
            return run_equation(eqn, [go_on, buffer, _in_a_kernel_of_its_own(slope), *index])
        results = run_equation(eqn, operands)
        if eqn.primitive.name == "dot_general" and not carried.isdisjoint(variables(eqn.invars)):
            return list(map(_in_a_kernel_of_its_own, results))
        return results

    return lambda carry: run_each(loop.jaxpr, [*used, *carry], run)


def _in_a_kernel_of_its_own(value: Any) -> Any:
    """The value, which XLA's CPU backend computes once, and so its cotangent.

    To XLA a division is dear: it does not compute one again in every kernel that uses the result.
    Dividing by one changes nothing. The barrier hides that it is one; it is gone when kernels are
    made, so to have nothing but a barrier does not help, and a conditional takes longer.
    """
    if not jnp.issubdtype(value.dtype, jnp.floating):
        return value
    return value / lax.optimization_barrier(jnp.ones((), value.dtype))


def _num_stages(solver: Any) -> int:
    tableau = solver.tableau
    if isinstance(tableau, diffrax.MultiButcherTableau):
        tableau = tableau.tableaus[0]
    return tableau.num_stages


def _is_runge_kutta(x: Any) -> bool:
    """Whether it is a Runge-Kutta solver whose loop over the stages nobody has chosen. A
    `diffrax.HalfSolver` of one passes for one, but has no such loop itself."""
    return isinstance(x, diffrax.AbstractRungeKutta) and getattr(x, "scan_kind", "") is None


def _is_stochastic_runge_kutta(x: Any) -> bool:
    """Those loop by `lax.scan` if they are told so, which is as good in both modes."""
    return isinstance(x, diffrax.AbstractSRK) and getattr(x, "scan_kind", "") is None


def _scan_kind(solver: Any) -> Any:
    return solver.scan_kind
