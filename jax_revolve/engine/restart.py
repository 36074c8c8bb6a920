"""Which leaves of the carry a checkpoint must hold.

To run steps again from a checkpoint one needs the leaves that the condition and the linearised step
depend on, and those that these depend on, after however many steps. A running sum or a trajectory
that is written but not read is not among them: its linearisation does not depend on its value.

This is the classical to-be-recorded analysis (A. Griewank and A. Walther, "Evaluating Derivatives",
SIAM, 2nd edition 2008, section 6.3), by dead-code elimination of the step as JAX traces it.
"""

from collections.abc import Callable
from typing import Any

from jax_revolve._compat import inputs_used
from jax_revolve.engine.activity import Activity, Mask
from jax_revolve.engine.loop import Loop, Operands
from jax_revolve.engine.pullback import linearise


def find_restart(loop: Loop, activity: Activity, operands: Operands) -> Mask:
    """The least fixed point: one flag per carry leaf."""
    inputs = operands._replace(xs=[x[0] for x in operands.xs])

    def used_by(fun: Callable[[list[Any]], list[Any]], wanted: Mask | None = None) -> Mask:
        return inputs_used(fun, operands.carry, wanted)

    def condition(carry: list[Any]) -> list[Any]:
        return [loop.holds(operands.consts, carry)]

    def residuals(carry: list[Any]) -> list[Any]:
        return linearise(loop.step, activity, inputs._replace(carry=carry)).residuals

    def step(carry: list[Any]) -> list[Any]:
        return loop.step(inputs.consts, carry, inputs.xs)[0]

    needed = used_by(residuals)
    if loop.condition is not None:
        needed = _either(needed, used_by(condition))
    while True:
        grown = _either(needed, used_by(step, needed))
        if grown == needed:
            return needed
        needed = grown


def _either(a: Mask, b: Mask) -> Mask:
    return tuple(x or y for x, y in zip(a, b, strict=True))
