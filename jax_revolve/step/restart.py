"""Which leaves of the carry a checkpoint must hold.

To run steps again from a checkpoint one needs the leaves that the condition and the linearized step
depend on, and those that these depend on, after however many steps. A running sum or a trajectory
that is written but not read is not among them: its linearization does not depend on its value.

This is the classical to-be-recorded analysis (A. Griewank and A. Walther, "Evaluating Derivatives",
SIAM, 2nd edition 2008, section 6.3), by dead-code elimination of the step as JAX traces it.
"""

from jax_revolve.step.activity import Activity, Mask
from jax_revolve.step.dead_code import either, needed_by
from jax_revolve.step.loop import Loop, Operands
from jax_revolve.step.once import once
from jax_revolve.step.traced import traced_step


def find_restart(loop: Loop, activity: Activity, operands: Operands) -> Mask:
    """The least fixed point: one flag per carry leaf."""

    def find() -> Mask:
        traced = traced_step(loop, activity, operands)
        residuals = [*[False] * len(traced.results), *[True] * len(traced.residuals)]
        needed = needed_by(traced.closed, residuals)[len(traced.shared) :][: loop.num_carry]
        if loop.condition is not None:
            going = needed_by(loop.condition, [True])[loop.num_condition_consts :]
            needed = either(needed, going)
        _, ys = loop.results([False] * len(loop.output_types))
        while True:
            used = needed_by(loop.jaxpr, [*needed, *ys])
            carry = loop.operands([*[False] * loop.num_condition_consts, *used]).carry
            if (grown := either(needed, carry)) == needed:
                return tuple(needed)
            needed = grown

    return once(loop.bare, ("restart", activity, operands.types), find)
