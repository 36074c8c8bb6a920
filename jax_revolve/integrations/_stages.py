"""The loop over the stages of a Runge-Kutta step in Diffrax.

Diffrax's solvers know three loops for it. "lax" has no reverse mode and "checkpointed" no forward
mode; "bounded" has both, and takes half as long again in forward mode. There is a better one: with
s stages the loop takes s steps, or s - 1 if the first stage is known from the step before. So it is
a `lax.scan` of s - 1 steps and, perhaps, one more.

An implicit stage finds a root by a function with a derivative rule of its own. Stages with such
functions are kept whole, see `engine.nested`.

The loop is found in what the solver's step is traced to, where it is the last one.
"""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat import LoopEquation, has_custom_jvp, kept_whole, run_around_loop
from jax_revolve.engine.loop import Loop


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

    def stage(carry: list[Any]) -> list[Any]:
        return loop.step(consts, carry, [])[0]

    keep = has_custom_jvp(loop.jaxpr)

    def one(carry: list[Any], number: Any) -> tuple[list[Any], None]:
        return kept_whole(lambda: stage(carry), number) if keep else stage(carry), None

    carry, _ = lax.scan(one, init, jnp.arange(stages - 1, dtype=jnp.int32))
    return lax.cond(loop.holds(consts, carry), stage, lambda carry: carry, carry)


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
