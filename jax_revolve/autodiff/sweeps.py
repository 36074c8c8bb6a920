"""The slots engine's reverse sweep, as a function with a derivative rule of its own.

No derivative ever looks inside a sweep. The reverse sweep's is that of the nested engine's
pullback, the forward sweep's (`forward_sweep`) that of the loop primitive.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax

from jax_revolve import _compat
from jax_revolve.autodiff.family import Flat, jvp_of_nonzero
from jax_revolve.engine.nested import pull_back_nested
from jax_revolve.engine.offline import after_all_steps
from jax_revolve.engine.online import after_unknown_steps
from jax_revolve.engine.reverse import run_reverse
from jax_revolve.engine.slots import Held
from jax_revolve.schedule.two_level import AnyPlan
from jax_revolve.step.activity import Activity
from jax_revolve.step.loop import Loop, Operands, pick, plan_of, restart_of
from jax_revolve.step.pullback import Cotangents
from jax_revolve.step.steps import Steps


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def reverse_sweep(
    loop: Loop, activity: Activity, operands: Flat, held: Held, cotangents: Cotangents
) -> Flat:
    """The cotangents of the differentiated operands, from those of the active results."""
    with jax.disable_jit(False):  # as primitives are: see `new_primitive`
        return _compiled_reverse(loop, activity, operands, held, cotangents)


@partial(reverse_sweep.defjvp, symbolic_zeros=True)
def _reverse_sweep_jvp(loop: Loop, activity: Activity, primals: Any, tangents: Any) -> Any:
    if loop.length is None:
        raise ValueError(
            "max_steps must be an int to differentiate the gradient of a while loop, but is None: "
            "only first-order reverse mode, and forward mode, work without a bound. Pass "
            "max_steps to bounded_while_loop or checkpointed_fori_loop."
        )
    operands, _, cotangents = primals
    operands_dot, _, cotangents_dot = tangents
    cotangents, treedef = jax.tree.flatten(cotangents)

    def pull_back(inputs: Flat) -> Flat:
        operands_ = loop.operands(inputs[: len(operands)])
        cotangents_ = jax.tree.unflatten(treedef, inputs[len(operands) :])
        return _flat(pull_back_nested(loop.run_again(), activity, operands_, cotangents_))

    inputs = [*operands, *cotangents]
    return jvp_of_nonzero(pull_back, inputs, [*operands_dot, *jax.tree.leaves(cotangents_dot)])


@partial(jax.jit, static_argnums=(0, 1))
def _compiled_reverse(
    loop: Loop, activity: Activity, operands: Flat, held: Held, cotangents: Cotangents
) -> Flat:
    plan = plan_of(loop)
    steps = Steps.of(loop.run_again(), restart_of(loop), loop.operands(operands))
    result = run_reverse(steps, plan, activity, _with_stack(plan, held), cotangents)
    types = [_compat.tangent_type(x) for x in pick(operands, activity.operands)]
    return list(map(_compat.with_weak_type, _flat(result), types))


def _with_stack(plan: AnyPlan, held: Held) -> Held:
    """What is held, with what the plan tells of it."""
    if held.steps is None:
        return after_all_steps(plan, held)
    return after_unknown_steps(plan, held) if held.positions is None else held


def check_collectives(loop: Loop, activity: Activity, operands: Operands) -> None:
    """Refuse a loop of which devices run different numbers of reversed steps, each of which adds up
    cotangents over the devices: they would wait for each other for ever."""
    if loop.condition is None:
        return
    (going,) = _compat.results_of(lambda: [loop.holds(operands.consts, operands.carry)])
    axes = _compat.varying_axes(going.aval)
    consts = pick(operands.consts, activity.consts)
    if not all(axes <= _compat.varying_axes(jax.typeof(c)) for c in consts):
        raise NotImplementedError(
            f"Inside of jax.shard_map, a while loop whose condition varies over {sorted(axes)} "
            "cannot be reversed with respect to a closed-over value that does not vary. Pass the "
            "value through jax.lax.pcast(value, axes, to='varying') before the loop."
        )


def _flat(parts: Sequence[Flat]) -> list[Any]:
    return [value for part in parts for value in part]
