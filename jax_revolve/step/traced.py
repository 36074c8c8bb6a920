"""A step with its residuals as one jaxpr, traced once for each loop and signature."""

from collections.abc import Collection
from typing import Any, NamedTuple

import jax

from jax_revolve._compat import ClosedJaxpr, inlined, varying_variables
from jax_revolve.step.activity import Activity
from jax_revolve.step.examples import going, guarded
from jax_revolve.step.loop import Loop, Operands, with_layout
from jax_revolve.step.once import once
from jax_revolve.step.pullback import Linearized, linearize
from jax_revolve.storage.buffers import read

Variable = Any
"""A variable of a jaxpr."""


class TracedStep(NamedTuple):
    """The inputs of the jaxpr are what all steps share, the carry, and a slice of the xs. Its
    outputs are the step's results and residuals.

    Steps share the operands' consts, and the consts and the carry with which the step of an example
    that is done can be computed.
    """

    closed: ClosedJaxpr
    num_shared: int
    num_carry: int
    num_results: int
    linearized: Linearized
    """Without values."""

    @property
    def shared(self) -> list[Variable]:
        return self.closed.jaxpr.invars[: self.num_shared]

    @property
    def carry(self) -> list[Variable]:
        return self.closed.jaxpr.invars[self.num_shared : self.num_shared + self.num_carry]

    @property
    def x(self) -> list[Variable]:
        return self.closed.jaxpr.invars[self.num_shared + self.num_carry :]

    @property
    def results(self) -> list[Variable]:
        return self.closed.jaxpr.outvars[: self.num_results]

    @property
    def residuals(self) -> list[Variable]:
        return self.closed.jaxpr.outvars[self.num_results :]

    def varying(self) -> set[Variable]:
        """What differs from step to step."""
        return varying_variables(self.closed.jaxpr, [*self.carry, *self.x])

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
        num_shared = 2 * len(consts) + len(carry)
        num_results = len(loop.output_types)
        return TracedStep(inlined(closed), num_shared, len(carry), num_results, found[0])

    return once(loop.bare, ("traced step", activity, *_types(operands)), trace)


def _types(operands: Operands) -> list[Any]:
    return [jax.typeof(x) for part in operands for x in part]
