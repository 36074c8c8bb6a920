"""What a loop's checkpoints, residuals and steps take, found by tracing one step."""

import jax

from jax_revolve._compat import bytes_of
from jax_revolve.engine.tape.tape import Tape
from jax_revolve.schedule.cost import Sizes
from jax_revolve.step.activity import Activity, Mask
from jax_revolve.step.loop import Loop, Operands, pick
from jax_revolve.step.steps import Steps
from jax_revolve.step.work import work_of


def sizes_of(loop: Loop, activity: Activity, restart: Mask, operands: Operands) -> Sizes:
    """The sizes that a plan is chosen by."""
    tape = Tape(Steps.of(loop, restart, operands), activity)
    carry = list(map(jax.typeof, operands.carry))
    return Sizes(
        checkpoint=bytes_of(pick(carry, restart)),
        residuals=bytes_of([*tape.types, *tape.weight_gradients.types]),
        alone=tape.bytes_alone,
        carry=bytes_of(carry),
        weights=bytes_of(tape.weight_gradients.weights),
        work=work_of(loop.jaxpr),
        again=tape.bytes_again,
        again_work=tape.cut.work,
        uncut=bytes_of(tape.uncut),
    )
