"""Which leaves of the carry a checkpoint must hold.

To run steps again from a checkpoint one needs the leaves that the condition and the linearized step
depend on, and those that these depend on, after however many steps. A running sum or a trajectory
that is written but not read is not among them: its linearization does not depend on its value.

This is the classical to-be-recorded analysis (A. Griewank and A. Walther, "Evaluating Derivatives",
SIAM, 2nd edition 2008, section 6.3), by dead-code elimination of the step as JAX traces it.
"""

from typing import Any

from jax_revolve._compat import dependence, pruned
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

    def needed_by(carry: Mask) -> Mask:
        num_inputs, num_ys = len(loop.jaxpr.in_avals), len(loop.output_types) - loop.num_carry
        outputs = [*carry, *[False] * num_ys]
        used = pruned(loop.jaxpr, outputs, [False] * num_inputs)[1]
        return tuple(loop.operands([*[False] * loop.num_condition_consts, *used]).carry)

    needed = dependence(read, operands.carry)
    while (grown := _either(needed, needed_by(needed))) != needed:
        needed = grown
    return needed


def _either(a: Mask, b: Mask) -> Mask:
    return tuple(x or y for x, y in zip(a, b, strict=True))
