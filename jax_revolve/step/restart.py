"""Which leaves of the carry a checkpoint must hold.

To run steps again from a checkpoint one needs the leaves that the condition and the linearized step
depend on, and those that these depend on, after however many steps. A running sum or a trajectory
that is written but not read is not among them: its linearization does not depend on its value.

This is the classical to-be-recorded analysis (A. Griewank and A. Walther, "Evaluating Derivatives",
SIAM, 2nd edition 2008, section 6.3), by dead-code elimination of the step as JAX traces it.
"""

from typing import Any

from jax_revolve._compat import dependence
from jax_revolve.step.activity import Activity, Mask
from jax_revolve.step.examples import going
from jax_revolve.step.loop import Loop, Operands
from jax_revolve.step.pullback import linearize


def find_restart(loop: Loop, activity: Activity, operands: Operands) -> Mask:
    """The least fixed point: one flag per carry leaf."""
    inputs = operands._replace(xs=[x[0] for x in operands.xs])

    def read(carry: list[Any]) -> list[Any]:
        residuals = linearize(loop.step, activity, inputs._replace(carry=carry)).residuals
        return [*residuals, going(loop, inputs.consts, carry)]

    def step(carry: list[Any]) -> list[Any]:
        return loop.step(inputs.consts, carry, inputs.xs)[0]

    needed = dependence(read, operands.carry)(None)
    needed_by = dependence(step, operands.carry)
    while (grown := _either(needed, needed_by(needed))) != needed:
        needed = grown
    return needed


def _either(a: Mask, b: Mask) -> Mask:
    return tuple(x or y for x, y in zip(a, b, strict=True))
