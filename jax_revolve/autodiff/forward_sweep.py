"""The slots engine's forward sweep as a primitive, for two reasons.

Unused ys are not computed: JAX tells a primitive which of its results are used, and XLA
does not find out by itself that a loop inside a loop only carries a buffer along.

Its derivative rule belongs to it wherever it is. A `jax.custom_jvp` function loses its rule in the
body of a `lax.scan` that is linearized: up to 0.10 JAX looks there for what is the same at every
step by partial evaluation, which takes such functions apart.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax

from jax_revolve import _compat
from jax_revolve._compat import as_array, results_of, with_weak_type
from jax_revolve.autodiff.loop_primitive import as_loop, jvp_of_nonzero
from jax_revolve.engine.offline import after_all_steps, run_forward_offline
from jax_revolve.engine.online import after_unknown_steps, run_forward_online
from jax_revolve.engine.plain import run_plain
from jax_revolve.engine.slots import Held
from jax_revolve.schedule.two_level import AnyPlan, TwoLevelPlan
from jax_revolve.step.activity import Activity, Mask
from jax_revolve.step.batching import batched_dims, vmap_over
from jax_revolve.step.loop import Loop, is_inexact, pick, plan_of, substitute
from jax_revolve.step.once import once
from jax_revolve.step.primal_half import with_primal_half
from jax_revolve.step.steps import Steps
from jax_revolve.storage.stores import buffers_of

Run = Callable[..., Sequence[Any]]

Vmaps = tuple[tuple[Any, tuple[Any, ...]], ...]
"""The axes that a sweep is mapped over, the innermost first, each with the operands' dimensions."""


def run_forward_sweep(
    loop: Loop, activity: Activity, restart: Mask, operands: Sequence[Any]
) -> tuple[Sequence[Any], Sequence[Any]]:
    """The loop's results, and what it holds for the reverse sweep."""
    operands = [as_array(x) for x in operands]
    num_results = len(loop.output_types)
    keep_ys = (True,) * (num_results - loop.num_carry)
    params = {"activity": activity, "restart": restart, "keep_ys": keep_ys, "vmaps": ()}
    params |= loop.params()
    flat = _bind(operands, _types(operands, **params), params)
    return flat[:num_results], flat[num_results:]


def held_by(loop: Loop, plan: AnyPlan, restart: Mask, values: Sequence[Any]) -> Held:
    """What the sweep holds, from the flat values."""
    if loop.condition is None:
        size, values = sum(restart), list(values)
        slots, rest = values[:size], values[size:]
        if not isinstance(plan, TwoLevelPlan):
            return after_all_steps(plan, slots, rest)
        start, rest = rest[:size], rest[size:]
        last = buffers_of(plan.storage, size)
        return after_all_steps(plan, slots, rest[last:], start, rest[:last])
    if isinstance(plan, TwoLevelPlan):
        *stores, steps = values
        return after_unknown_steps(plan, stores, steps)
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
        parts = (held.slots, held.start, held.stores, held.tape)
        return results, [value for part in parts for value in part or []]
    results, held = run_forward_online(steps, plan)
    if held.stores is not None:
        return results, [*held.stores, held.steps]
    return results, [*held.slots, held.positions, held.slot_index, held.top, held.steps]


def _sweep(
    *operands: Any, activity: Activity, restart: Mask, keep_ys: tuple[bool, ...], **params: Any
) -> Sequence[Any]:
    loop = Loop(**params)
    results, held = _run(loop, activity, restart, operands, keep_ys)
    return [*map(with_weak_type, results, _kept(loop, keep_ys, loop.output_types)), *held]


def _bind(operands: Sequence[Any], types: tuple[Any, ...], params: dict[str, Any]) -> Any:
    moves = _compat.moves_of(types)
    return forward_sweep_p.bind(*operands, types=types, moves=moves, **params)


def _implementation(
    *operands: Any, vmaps: Vmaps, types: Any, moves: Any, **params: Any
) -> Sequence[Any]:
    del types, moves
    return _mapped(partial(_sweep, **params), vmaps)(*operands)


def _mapped(run: Run, vmaps: Vmaps) -> Run:
    for axis, dims in vmaps:
        run = partial(_mapped_over, axis, dims, run)
    return run


def _mapped_over(axis: Any, dims: Any, run: Run, *operands: Any) -> Sequence[Any]:
    return vmap_over(axis, run, dims, batched_dims(axis, run, operands, dims))(*operands)


def _types(operands: Sequence[Any], **params: Any) -> tuple[Any, ...]:
    results = results_of(lambda: _implementation(*operands, types=None, moves=None, **params))
    return tuple(result.aval for result in results)


def _output_types(*_: Any, types: Any, moves: Any, **params: Any) -> Any:
    del moves
    return types, _loop(params).effects


def _jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    activity: Activity,
    restart: Mask,
    keep_ys: tuple[bool, ...],
    vmaps: Vmaps,
    types: Any,
    moves: Any,
    **params: Any,
) -> Any:
    """The results' derivative is that of the loop primitive. What is held has none: the reverse
    sweep's result depends on the operands and cotangents alone, the slots only make it cheap."""
    del moves
    loop = Loop(**params)

    def loop_itself(*operands: Any) -> Sequence[Any]:
        half = with_primal_half(loop, activity)
        results = as_loop(half, lambda loop: run_plain(loop, loop.operands(operands)))
        return _kept(loop, keep_ys, results)

    run = _mapped(loop_itself, vmaps)
    results, results_dot = jvp_of_nonzero(lambda flat: run(*flat), primals, tangents)
    rest = {"activity": activity, "restart": restart, "keep_ys": keep_ys, "vmaps": vmaps}
    rest |= replace(loop, progress=None).params()  # the results' loop shows it
    held = _bind(primals, types, rest)[len(results) :]
    zeros = [_compat.symbolic_zero(t) for t in types]
    dots = [
        dot if is_inexact(result) else zero
        for result, dot, zero in zip(results, results_dot, zeros, strict=False)
    ]
    return [*results, *held], [*dots, *zeros[len(results) :]]


def _batch(
    axis: Any,
    operands: Sequence[Any],
    dims: Sequence[Any],
    vmaps: Vmaps,
    types: Any,
    moves: Any,
    **params: Any,
) -> Any:
    del types, moves
    operands = [as_array(x) for x in operands]
    run = _mapped(partial(_sweep, **params), vmaps)
    params["vmaps"] = (*vmaps, (axis, tuple(dims)))

    def find() -> tuple[list[Any], tuple[Any, ...]]:
        return batched_dims(axis, run, operands, dims), _types(operands, **params)

    key = (*map(jax.typeof, operands), *(params[name] for name in _OWN))
    dims_out, types = once(_loop(params), ("batched forward sweep", *key), find)
    return _bind(operands, types, params), dims_out


def _prune(used: list[bool], *, keep_ys: tuple[bool, ...], types: Any, **params: Any) -> Any:
    num_carry, num_ys = params["num_carry"], sum(keep_ys)
    used_ys = used[num_carry : num_carry + num_ys]
    kept = [*[True] * num_carry, *used_ys, *[True] * (len(used) - num_carry - num_ys)]
    keep_ys = tuple(substitute(keep_ys, keep_ys, used_ys))
    operands = [True] * len(params["activity"].operands)
    return kept, operands, {**params, "keep_ys": keep_ys, "types": tuple(pick(types, kept))}


_OWN = ("activity", "restart", "keep_ys", "vmaps")
"""The parameters that are not the loop's."""


def _loop(params: dict[str, Any]) -> Loop:
    return Loop(**{name: value for name, value in params.items() if name not in _OWN})


def _kept(loop: Loop, keep_ys: tuple[bool, ...], results: Sequence[Any]) -> list[Any]:
    carry, ys = loop.results(results)
    return [*carry, *pick(ys, keep_ys)]


forward_sweep_p = _compat.new_primitive(
    "checkpointed_loop_forward_sweep",
    implementation=_implementation,
    output_types=_output_types,
    jvp=_jvp,
    batch=_batch,
    prune=_prune,
)
