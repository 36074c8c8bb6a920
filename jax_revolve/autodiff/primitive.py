"""The loop primitive's derivatives, as those of a family: see `family` for what runs when.

In reverse mode the sweep is the slots engine's forward sweep, which holds checkpoints, and the
pullback its reverse sweep. A loop of values and tangents is again a loop, whose carry holds both.
"""

from functools import partial
from typing import Any

import jax

from jax_revolve import _compat
from jax_revolve.autodiff.family import Family, Flat
from jax_revolve.autodiff.forward_sweep import run_forward_sweep
from jax_revolve.autodiff.loop_primitive import as_loop, batch_loop, loop_activity, loop_p
from jax_revolve.autodiff.loop_primitive import run_counted as run_counted
from jax_revolve.autodiff.loop_primitive import run_loop as run_loop
from jax_revolve.autodiff.reverse_sweep import check_collectives, reverse_sweep
from jax_revolve.autodiff.sizes import sizes_of
from jax_revolve.engine.plain import run_plain
from jax_revolve.engine.slots import Held
from jax_revolve.engine.tape.taped import taped_step
from jax_revolve.progress.listener import when_run_again
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.selection import Request
from jax_revolve.schedule.two_level import AnyPlan
from jax_revolve.step.activity import Activity, Mask
from jax_revolve.step.dead_code import prune_jvp
from jax_revolve.step.loop import Loop, Operands, check_plan
from jax_revolve.step.once import Batched, once
from jax_revolve.step.primal_half import with_primal_half
from jax_revolve.step.pullback import Cotangents
from jax_revolve.step.restart import restart_mask


class _Loops(Family[Loop]):
    def run(self, function: Loop, operands: Flat) -> Flat:
        return run_plain(function, function.operands(operands))

    def batch(self, axis: Any, operands: Flat, dims: Flat, function: Loop) -> Batched:
        return batch_loop(axis, operands, dims, function)

    def run_as_one(self, function: Loop, run: Any, operands: Flat) -> Flat:
        return as_loop(function, lambda loop: run(loop, operands))

    def find_activity(self, function: Loop, operands: Flat, differentiated: Mask) -> Activity:
        del operands
        return loop_activity(function, differentiated)

    def primal_half(self, function: Loop, activity: Activity) -> Loop:
        return with_primal_half(function, activity)

    def sweep(self, function: Loop, activity: Activity, operands: Flat) -> tuple[Flat, Held, Loop]:
        check_plan(function)
        check_collectives(function, activity, function.operands(operands))
        swept = _reversible(function, activity, operands)
        return *run_forward_sweep(swept, activity, operands), swept

    def pull_back(
        self, function: Loop, activity: Activity, operands: Flat, held: Any, cotangents: Flat
    ) -> Flat:
        num_carry = sum(activity.carry)
        carry = [_compat.instantiate(ct) for ct in cotangents[:num_carry]]
        ys = [None if _compat.is_zero(ct) else ct for ct in cotangents[num_carry:]]
        return reverse_sweep(function, activity, operands, held, Cotangents(carry, ys))

    def silent(self, function: Loop) -> Loop:
        return function._replace(progress=None, restart=None)

    def later(self, function: Loop) -> Loop:
        return function._replace(progress=when_run_again(function.progress))


def _reversible(loop: Loop, activity: Activity, operands: Flat) -> Loop:
    """The loop with what its sweeps have to know: what a checkpoint holds, and the plan."""
    inputs = loop.operands(operands)
    key = (activity, *map(jax.typeof, operands))
    restart = restart_mask(loop, activity, operands)
    plan = loop.plan
    if isinstance(plan, Request):
        find = partial(_resolve, plan, loop, activity, restart, inputs)
        plan = once(loop, ("plan", *key), find)
    return loop._replace(plan=plan, restart=restart)


def _resolve(
    request: Request, loop: Loop, activity: Activity, restart: Mask, operands: Operands
) -> AnyPlan:
    if not taped_step(loop, activity, operands).is_transposable:
        return Plan(request.length, 1)  # `jax.linearize` works, and any plan will do for it
    shapes = [t.shape for part in operands for t in map(jax.typeof, part) if _compat.is_symbolic(t)]
    if request.memory is not None and shapes:
        raise ValueError(
            f"memory must be None where sizes are symbolic, but is {request.memory} for operands "
            f"of shapes such as {shapes[0]}: nobody knows how much they take. Pass checkpoints."
        )
    return request.resolve(sizes_of(loop, activity, restart, operands))


_Loops(loop_p, prune_jvp)
