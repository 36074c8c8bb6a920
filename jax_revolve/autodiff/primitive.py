"""Which engine runs under which transformation.

Three primitives. The *loop* primitive stands for the whole loop, the *jvp* primitive for the loop
and its tangents, the *tangent* primitive for the tangents alone:

- run and lowered, they are the plain engine, or its derivative in forward mode;
- batched, they are the same of the batched step;
- differentiated, the loop is the jvp primitive, which in its turn is a loop whose carry holds the
  values and their tangents;
- linearized for reverse mode, by JAX's partial evaluation, the jvp primitive is the slots engine's
  forward sweep and the tangent primitive, which is linear and takes the slots as well;
- transposed, the tangent primitive is the slots engine's reverse sweep.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax

from jax_revolve import _compat
from jax_revolve.autodiff.forward_sweep import run_forward_sweep
from jax_revolve.autodiff.loop_primitive import (
    Flat,
    as_loop,
    batch_loop,
    jvp_of_nonzero,
    loop_p,
    loop_types,
)
from jax_revolve.autodiff.loop_primitive import run_counted as run_counted
from jax_revolve.autodiff.loop_primitive import run_loop as run_loop
from jax_revolve.autodiff.sizes import sizes_of
from jax_revolve.autodiff.sweeps import check_collectives, reverse_sweep
from jax_revolve.engine.plain import run_plain
from jax_revolve.progress.listener import when_run_again
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.selection import Request
from jax_revolve.schedule.two_level import AnyPlan
from jax_revolve.step.activity import Activity, Mask, find_activity
from jax_revolve.step.batching import batched_as, batched_dims, vmap_over
from jax_revolve.step.dead_code import prune_jvp
from jax_revolve.step.loop import Loop, check_plan, pick, substitute
from jax_revolve.step.once import batch_once, once
from jax_revolve.step.primal_half import with_primal_half
from jax_revolve.step.pullback import Cotangents
from jax_revolve.step.restart import find_restart


def _loop_jvp(primals: Flat, tangents: Flat, **params: Any) -> Any:
    loop = Loop(**params)
    # The condition's consts come first. A predicate has no derivative.
    first = loop.num_condition_consts
    differentiated = [not _compat.is_zero(t) and i >= first for i, t in enumerate(tangents)]
    types = tuple(map(jax.typeof, primals))
    activity = once(
        loop,
        ("activity", tuple(differentiated), types),
        lambda: find_activity(loop, loop.operands(primals), differentiated),
    )
    zeros = [_compat.symbolic_zero(t) for t in loop.output_types]
    if not any(activity.results):
        return loop_p.bind(*primals, **params), zeros
    chosen = pick(tangents, differentiated)
    flat = jvp_p.bind(*primals, *chosen, activity=activity, **params)
    results, active = flat[: len(zeros)], flat[len(zeros) :]
    return results, substitute(zeros, activity.results, active)


_compat.define_jvp(loop_p, _loop_jvp)


# The tangent primitive


def _run_tangent(*flat: Any, restart: Mask, **params: Any) -> Flat:
    del restart
    params = _without_progress(**params)
    operands, _, tangents = _take_apart(flat, **params)
    return _run_jvp(*operands, *tangents, **params)[_num_results(**params) :]


def _without_progress(progress: Any = None, **params: Any) -> dict[str, Any]:
    """The parameters of tangents whose values were computed before, which showed the progress."""
    del progress
    return params


def _tangent_types(*_: Any, activity: Activity, output_types: Any, **__: Any) -> Any:
    return [t.to_tangent_aval() for t in pick(output_types, activity.results)], frozenset()


def _tangent_jvp(primals: Flat, tangents: Flat, restart: Mask, **params: Any) -> Any:
    del restart
    params = _without_progress(**params)

    def run(flat: Flat) -> Flat:
        operands, _, tangents = _take_apart(flat, **params)
        return _jvp_as_loop(*operands, *tangents, **params)[_num_results(**params) :]

    return jvp_of_nonzero(run, primals, tangents)


def _batch_tangent(axis: Any, flat: Flat, dims: Flat, restart: Mask, **params: Any) -> Any:
    del restart
    params = _without_progress(**params)
    operands, _, tangents = _take_apart(flat, **params)
    operand_dims, _, tangent_dims = _take_apart(dims, **params)
    results, dims_out = _batch_jvp(
        axis, [*operands, *tangents], [*operand_dims, *tangent_dims], **params
    )
    first = _num_results(**params)
    return results[first:], dims_out[first:]


def _transpose_tangent(
    cotangents: Flat, *flat: Any, activity: Activity, restart: Mask, **params: Any
) -> Flat:
    loop = Loop(**params)
    operands, held, tangents = _take_apart(flat, activity, **params)
    num_carry = sum(activity.carry)
    ct_carry = [_compat.instantiate(ct) for ct in cotangents[:num_carry]]
    ct_ys = [None if _compat.is_zero(ct) else ct for ct in cotangents[num_carry:]]
    cts = Cotangents(ct_carry, ct_ys)
    result = reverse_sweep(loop, activity, restart, operands, held, cts)
    linear = [
        ct if _compat.is_linear_input(tangent) else None
        for ct, tangent in zip(result, tangents, strict=True)
    ]
    return [None] * (len(operands) + len(held)) + linear


def _take_apart(flat: Flat, activity: Activity, **_: Any) -> tuple[Flat, Flat, Flat]:
    """Operands, what the forward sweep held, and tangents."""
    last = len(flat) - sum(activity.operands)
    first = len(activity.operands)
    return list(flat[:first]), list(flat[first:last]), list(flat[last:])


tangent_p = _compat.new_primitive(
    "checkpointed_loop_tangent",
    implementation=_run_tangent,
    output_types=_tangent_types,
    jvp=_tangent_jvp,
    batch=_batch_tangent,
    transpose=_transpose_tangent,
)


# The derivative primitive


def _run_jvp(*flat: Any, activity: Activity, **params: Any) -> Flat:
    loop = Loop(**params)
    operands, _, tangents = _take_apart(flat, activity)

    def run(chosen: Flat) -> Flat:
        inputs = loop.operands(substitute(operands, activity.operands, chosen))
        return run_plain(loop, inputs)

    results, results_dot = jax.jvp(run, (pick(operands, activity.operands),), (tangents,))
    types, _ = _jvp_types(activity=activity, **params)
    active = pick(results_dot, activity.results)
    return list(map(_compat.with_weak_type, [*results, *active], types))


def _jvp_types(*_: Any, activity: Activity, **params: Any) -> Any:
    types, effects = loop_types(**params)
    return [*types, *_tangent_types(activity=activity, **params)[0]], effects


def _jvp_as_loop(*flat: Any, activity: Activity, **params: Any) -> Flat:
    """The values and tangents as those of a checkpointed loop over both: what derivatives of the
    derivative are taken of."""

    def run(loop: Loop) -> Flat:
        return _run_jvp(*flat, activity=activity, **loop.params())

    return as_loop(Loop(**params), run)


def _jvp_jvp(primals: Flat, tangents: Flat, **params: Any) -> Any:
    return jvp_of_nonzero(lambda flat: _jvp_as_loop(*flat, **params), primals, tangents)


def _batch_jvp(axis: Any, flat: Flat, dims: Flat, activity: Activity, **params: Any) -> Any:
    operands, _, tangents = _take_apart(flat, activity)
    operand_dims, _, tangent_dims = _take_apart(dims, activity)
    mask = activity.operands
    pairs = zip(pick(operand_dims, mask), tangent_dims, strict=True)
    if any(dim is None and tangent_dim is not None for dim, tangent_dim in pairs):
        # Several directions at the same point, as in `jax.jacfwd`: the values are computed once.
        run = partial(_jvp_as_loop, activity=activity, **params)

        def batch_directions(*flat: Any) -> Any:
            dims_out = batched_dims(axis, run, flat, dims)
            return vmap_over(axis, run, dims, dims_out)(*flat), dims_out

        return batch_once(Loop(**params), (axis, activity), batch_directions, flat, dims)

    dims_out = []

    def run_batch(chosen: Flat) -> Flat:
        inputs = substitute(operands, mask, chosen)
        results, dims_out[:] = batch_loop(axis, inputs, operand_dims, **params)
        return results

    chosen, chosen_dims = pick(operands, mask), pick(operand_dims, mask)
    tangents = batched_as(axis, tangents, tangent_dims, chosen_dims)
    results, results_dot = jax.jvp(run_batch, (chosen,), (tangents,))
    active, active_dims = (pick(x, activity.results) for x in (results_dot, dims_out))
    return [*results, *active], [*dims_out, *active_dims]


def _transpose_jvp(cotangents: Flat, *flat: Any, activity: Activity, **params: Any) -> Flat:
    operands, _, tangents = _take_apart(flat, activity)
    _, held, tangent_params = _linearize(operands, activity, **params)
    active = cotangents[_num_results(**params) :]
    result = _transpose_tangent(active, *operands, *held, *tangents, **tangent_params)
    return [*result[: len(operands)], *result[len(operands) + len(held) :]]


def _linearize(
    operands: Flat, activity: Activity, **params: Any
) -> tuple[Flat, Flat, dict[str, Any]]:
    loop = Loop(**params)
    check_plan(loop)
    check_collectives(loop, activity, loop.operands(operands))
    types = tuple(map(jax.typeof, operands))
    restart = once(
        loop,
        ("restart", activity, types),
        lambda: find_restart(loop, activity, loop.operands(operands)),
    )
    if isinstance(loop.plan, Request):
        plan = _resolve(loop.plan, loop, activity, restart, operands)
        loop = replace(loop, plan=plan)
    results, held = run_forward_sweep(loop, activity, restart, operands)
    return results, held, {**loop.params(), "activity": activity, "restart": restart}


def _resolve(
    request: Request, loop: Loop, activity: Activity, restart: Mask, operands: Flat
) -> AnyPlan:
    try:
        sizes = sizes_of(loop, activity, restart, loop.operands(operands))
    except ValueError:
        # JAX cannot transpose the step, and says so when it is asked to. `jax.linearize` does not
        # ask, and any plan will do for it.
        return Plan(request.length, 1)
    return request.resolve(sizes)


def _num_operands(activity: Activity, **_: Any) -> int:
    return len(activity.operands)


def _num_results(output_types: Any, **_: Any) -> int:
    return len(output_types)


def _loop_params(activity: Activity, **params: Any) -> dict[str, Any]:
    """Those of the loop that computes the values, once it is linearized."""
    return with_primal_half(Loop(**params), activity).params()


def _params_of_later(**params: Any) -> dict[str, Any]:
    """Those of the loop that `jax.checkpoint` runs again."""
    if "progress" not in params:
        return params
    return {**params, "progress": when_run_again(params["progress"])}


jvp_p = _compat.new_primitive(
    "checkpointed_loop_jvp",
    implementation=_run_jvp,
    output_types=_jvp_types,
    jvp=_jvp_jvp,
    batch=_batch_jvp,
    transpose=_transpose_jvp,
    prune=prune_jvp,
    split=_compat.Split(
        num_primals=_num_operands,
        num_results=_num_results,
        primal=loop_p,
        primal_params=_loop_params,
        later_params=_params_of_later,
        linearize=_linearize,
        linear=tangent_p,
    ),
)
