"""What a loop's checkpoints, residuals and steps take, found by tracing one step."""

import jax

from jax_revolve._compat import bytes_of
from jax_revolve.engine.tape.cut import cut_at
from jax_revolve.engine.tape.taped import taped_step
from jax_revolve.profiles.in_force import profile_in_force
from jax_revolve.schedule.cost import Sizes
from jax_revolve.step.activity import Activity, Mask
from jax_revolve.step.loop import Loop, Operands, pick
from jax_revolve.step.work import work_of


def sizes_of(loop: Loop, activity: Activity, restart: Mask, operands: Operands) -> Sizes:
    """The sizes that a plan is chosen by."""
    profile, step = profile_in_force(), taped_step(loop, activity, operands)
    weights = step.weight_gradients
    carry = list(map(jax.typeof, operands.carry))
    return Sizes(
        checkpoint=bytes_of(pick(carry, restart)),
        residuals=step.cut.bytes,
        alone=step.bytes_alone,
        carry=bytes_of(carry),
        weights=bytes_of(weights.weights),
        work=work_of(loop.jaxpr, profile),
        again=step.bytes_again,
        again_work=cut_at(step.step, step.cut.kept, profile).work,
        uncut=step.uncut_bytes,
        profile=profile,
        factors=bytes_of(weights.types),
    )
