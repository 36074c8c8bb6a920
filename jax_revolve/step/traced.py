"""A step with its residuals as one jaxpr, traced once for each loop and signature."""

from collections.abc import Collection
from typing import Any, NamedTuple

import jax

from jax_revolve._compat.inlining import inlined
from jax_revolve._compat.jaxprs import ClosedJaxpr, varying_variables
from jax_revolve.step.activity import Activity
from jax_revolve.step.examples import going, guarded
from jax_revolve.step.loop import Loop, Operands, with_layout
from jax_revolve.step.once import once
from jax_revolve.step.pullback import Linearized, linearize
from jax_revolve.storage.buffers import read

Variable = Any
"""A variable of a jaxpr."""


class TracedStep(NamedTuple):
    """A step and its residuals. The inputs of the jaxpr are what all steps share, the carry, and a
    slice of the xs; its outputs are the step's results and residuals.

    Steps share the operands' consts, and the consts and the carry with which the step of an example
    that is done can be computed.
    """

    closed: ClosedJaxpr
    shared: list[Variable]
    carry: list[Variable]
    x: list[Variable]
    results: list[Variable]
    residuals: list[Variable]
    varying: set[Variable]
    """What differs from step to step."""
    linearized: Linearized
    """Without values."""

    def in_order(self, chosen: Collection[Variable]) -> list[Variable]:
        """Variables as they stand in the jaxpr."""
        jaxpr = self.closed.jaxpr
        made = (v for eqn in jaxpr.eqns for v in eqn.outvars)
        return [v for v in (*jaxpr.invars, *made) if v in chosen]


def traced_step(loop: Loop, activity: Activity, operands: Operands) -> TracedStep:
    """The step of a loop with these operands, linearized in its active inputs."""
    found: list[Linearized] = []

    def run(consts: Any, safe_consts: Any, safe_carry: Any, carry: Any, x: Any) -> list[Any]:
        step = guarded(loop, safe_carry, going(loop, consts, carry))
        linearized = linearize(step, activity, Operands(safe_consts, carry, x))
        found.append(linearized.without_values())
        return [*linearized.results, *linearized.residuals]

    def trace() -> TracedStep:
        consts, carry, xs = with_layout(loop, operands)
        closed = jax.make_jaxpr(run)(consts, consts, carry, carry, read(xs, 0))
        closed, num_shared = inlined(closed), 2 * len(consts) + len(carry)
        inputs, outputs = closed.jaxpr.invars, closed.jaxpr.outvars
        carry, x = inputs[num_shared:][: len(carry)], inputs[num_shared + len(carry) :]
        varying = varying_variables(closed.jaxpr, [*carry, *x])
        results, residuals = outputs[: len(loop.output_types)], outputs[len(loop.output_types) :]
        shared, linearized = inputs[:num_shared], found[0]
        return TracedStep(closed, shared, carry, x, results, residuals, varying, linearized)

    return once(loop.bare, ("traced step", activity, operands.types), trace)
