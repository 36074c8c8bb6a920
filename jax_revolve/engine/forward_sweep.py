"""The slots engine's forward sweep as a primitive, so that ys that nobody uses are not computed.

JAX tells a primitive which of its results are used. XLA does not find out by itself that a loop
inside a loop only carries a buffer along.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from jax_revolve._compat import as_array, new_primitive, results_of, with_weak_type
from jax_revolve.engine.activity import Activity, Mask
from jax_revolve.engine.batching import batched_dims, vmap_over
from jax_revolve.engine.loop import Loop, choose, plan_of, substitute
from jax_revolve.engine.offline import after_all_steps, run_forward_offline
from jax_revolve.engine.once import batch_once
from jax_revolve.engine.online import run_forward_online
from jax_revolve.engine.slots import Held
from jax_revolve.engine.steps import Steps
from jax_revolve.schedule.plan import Plan


def run_forward_sweep(
    loop: Loop, activity: Activity, restart: Mask, operands: Sequence[Any]
) -> tuple[Sequence[Any], Sequence[Any]]:
    """The loop's results, and what it holds for the reverse sweep."""
    operands = [as_array(x) for x in operands]
    num_results = len(loop.output_types)
    keep_ys = (True,) * (num_results - loop.num_carry)
    held = results_of(lambda: _run(loop, activity, restart, operands, keep_ys)[1])
    flat = forward_sweep_p.bind(
        *operands,
        activity=activity,
        restart=restart,
        keep_ys=keep_ys,
        held_types=tuple(r.aval for r in held),
        **loop.params(),
    )
    return flat[:num_results], flat[num_results:]


def held_by(loop: Loop, plan: Plan, restart: Mask, values: Sequence[Any]) -> Held:
    """What the sweep holds, from the flat values."""
    if loop.condition is None:
        return after_all_steps(plan, list(values[: sum(restart)]), list(values[sum(restart) :]))
    *slots, positions, places, top, steps = values
    return Held(slots, positions, places, top, steps, None)


def _run(
    loop: Loop,
    activity: Activity,
    restart: Mask,
    operands: Sequence[Any],
    keep_ys: tuple[bool, ...],
) -> tuple[list[Any], list[Any]]:
    plan = plan_of(loop)
    steps = Steps.of(loop, restart, loop.operands(operands))
    if loop.condition is None:
        results, held = run_forward_offline(steps, plan, activity, keep_ys)
        return results, [*held.slots, *(held.tape or [])]
    results, held = run_forward_online(steps, plan)
    return results, [*held.slots, held.positions, held.places, held.top, held.steps]


def _implementation(
    *operands: Any,
    activity: Activity,
    restart: Mask,
    keep_ys: tuple[bool, ...],
    held_types: Any,
    **params: Any,
) -> Sequence[Any]:
    del held_types
    loop = Loop(**params)
    results, held = _run(loop, activity, restart, operands, keep_ys)
    return [*map(with_weak_type, results, _kept_types(loop, keep_ys)), *held]


def _output_types(
    *_: Any,
    activity: Activity,
    restart: Mask,
    keep_ys: tuple[bool, ...],
    held_types: Any,
    **params: Any,
) -> Any:
    del activity, restart
    loop = Loop(**params)
    return [*_kept_types(loop, keep_ys), *held_types], loop.body_effects


def _batch(axis: Any, operands: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
    run = partial(_implementation, **params)
    own = ("activity", "restart", "keep_ys", "held_types")
    loop = Loop(**{name: value for name, value in params.items() if name not in own})

    def batch_forward_sweep(*operands: Any) -> Any:
        dims_out = batched_dims(axis, run, operands, dims)
        return vmap_over(axis, run, dims, dims_out)(*operands), dims_out

    key = (axis, *(params[name] for name in own))
    return batch_once(loop, key, batch_forward_sweep, operands, dims)


def _prune(used: list[bool], *, keep_ys: tuple[bool, ...], **params: Any) -> Any:
    num_carry, num_ys = params["num_carry"], sum(keep_ys)
    used_ys = used[num_carry : num_carry + num_ys]
    kept = [*[True] * num_carry, *used_ys, *[True] * (len(used) - num_carry - num_ys)]
    return kept, {**params, "keep_ys": tuple(substitute(keep_ys, keep_ys, used_ys))}


def _kept_types(loop: Loop, keep_ys: tuple[bool, ...]) -> list[Any]:
    carry, ys = loop.results(loop.output_types)
    return [*carry, *choose(ys, keep_ys)]


forward_sweep_p = new_primitive(
    "checkpointed_loop_forward_sweep",
    implementation=_implementation,
    output_types=_output_types,
    batch=_batch,
    prune=_prune,
)
