"""How a loop is reversed: by which step, which plan, and from which leaves of the carry."""

from typing import NamedTuple

import jax

from jax_revolve._compat import bytes_of, results_in
from jax_revolve.autodiff.sizes import sizes_of
from jax_revolve.host.body.compiled import compiled_step
from jax_revolve.host.body.eager import EagerStep
from jax_revolve.host.run import ForwardOnly, Step
from jax_revolve.schedule.cost import Sizes
from jax_revolve.schedule.selection import Request
from jax_revolve.schedule.two_level import AnyPlan
from jax_revolve.step.activity import Mask, find_activity
from jax_revolve.step.loop import Loop, Operands
from jax_revolve.step.restart import find_restart


class Reversal(NamedTuple):
    """`restart` tells which leaves of the carry a checkpoint holds."""

    step: Step
    plan: AnyPlan | ForwardOnly
    restart: Mask


def reversal_of(
    step: Loop | EagerStep,
    plan: AnyPlan | Request,
    operands: Operands,
    differentiated: Operands,
) -> Reversal:
    """The operands may have a single slice of the xs."""
    if isinstance(step, EagerStep):
        step.differentiate(operands, differentiated)
        whole = (True,) * len(operands.carry)
        if isinstance(plan, Request):
            carry = bytes_of(map(jax.typeof, operands.carry))
            plan = plan.resolve(Sizes(carry, 0, 0, carry))
        return Reversal(step, plan, whole)
    flags = [flag for part in differentiated for flag in part]
    activity = find_activity(step, flags)
    restart = find_restart(step, activity, operands)
    if isinstance(plan, Request):
        sizes = sizes_of(step, activity, restart, operands)
        # Blocks keep all residuals here, and add up cotangents of weights step by step.
        uncut = sizes.residuals if sizes.uncut is None else sizes.uncut
        plan = plan.resolve(
            sizes._replace(residuals=uncut, weights=0, again=0, again_work=0.0, factors=0)
        )
    restart = tuple(r and not same for r, same in zip(restart, _unchanged(step), strict=True))
    compiled = compiled_step(step, operands, activity, taped=plan.block_size > 1)
    return Reversal(compiled, plan, restart)


def _unchanged(loop: Loop) -> list[bool]:
    """The leaves of the carry that no step changes."""
    carry, _ = loop.results(results_in(loop.jaxpr))
    return [result.input == loop.num_consts + i for i, result in enumerate(carry)]
