"""The slots engine's forward sweep as a primitive, for two reasons.

Unused ys are not computed: JAX tells a primitive which of its results are used, and XLA
does not find out by itself that a loop inside a loop only carries a buffer along.

Its derivative rule belongs to it wherever it is. A `jax.custom_jvp` function loses its rule in the
body of a `lax.scan` that is linearized: up to 0.10 JAX looks there for what is the same at every
step by partial evaluation, which takes such functions apart.
"""

from functools import partial
from typing import Any

import jax

from jax_revolve import _compat
from jax_revolve._compat import ClosedJaxpr, as_array, call_jaxpr, results_of, with_weak_type
from jax_revolve.autodiff.batching import batched_dims
from jax_revolve.autodiff.family import Flat, jvp_of_nonzero
from jax_revolve.autodiff.loop_primitive import as_loop
from jax_revolve.autodiff.mapped import Vmap, mapped
from jax_revolve.engine.offline import run_forward_offline
from jax_revolve.engine.online import run_forward_online
from jax_revolve.engine.plain import run_plain
from jax_revolve.engine.slots import Held
from jax_revolve.step.activity import Activity
from jax_revolve.step.loop import Loop, is_inexact, pick, plan_of, restart_of, substitute
from jax_revolve.step.once import once
from jax_revolve.step.primal_half import with_primal_half
from jax_revolve.step.steps import Steps


def run_forward_sweep(loop: Loop, activity: Activity, operands: Flat) -> tuple[Flat, Held]:
    """The loop's results, and what it holds for the reverse sweep."""
    operands = [as_array(x) for x in operands]
    keep_ys = (True,) * (len(loop.output_types) - loop.num_carry)
    params = {"function": loop, "activity": activity, "keep_ys": keep_ys}
    traced, treedef = _traced(*operands, **params)
    flat = _bind(operands, tuple(traced.out_avals), vmaps=(), **params)
    return jax.tree.unflatten(treedef, flat)


def _traced(
    *operands: Any, function: Loop, activity: Activity, keep_ys: tuple[bool, ...]
) -> tuple[ClosedJaxpr, Any]:
    """The sweep as it is run, and the structure of its results and what it holds."""

    def trace() -> tuple[ClosedJaxpr, Any]:
        run = partial(_run, function=function, activity=activity, keep_ys=keep_ys)
        traced, shape = jax.make_jaxpr(run, return_shape=True)(*operands)
        return traced, jax.tree.structure(shape)

    key = ("forward sweep", activity, keep_ys, *map(jax.typeof, operands))
    return once(function, key, trace)


def _run(
    *operands: Any, function: Loop, activity: Activity, keep_ys: tuple[bool, ...]
) -> tuple[list[Any], Held]:
    plan = plan_of(function)
    steps = Steps.of(function, restart_of(function), function.operands(operands))
    if function.condition is None:
        results, held = run_forward_offline(steps, plan, activity, keep_ys)
    else:
        results, held = run_forward_online(steps, plan)
    types = _kept(function, keep_ys, function.output_types)
    return list(map(with_weak_type, results, types)), held


def _sweep(*operands: Any, **params: Any) -> Flat:
    operands = tuple(map(as_array, operands))
    traced, _ = _traced(*operands, **params)
    return call_jaxpr(traced)(*operands)


def _bind(operands: Flat, types: tuple[Any, ...], **params: Any) -> Flat:
    moves = _compat.moves_of(types)
    return forward_sweep_p.bind(*operands, types=types, moves=moves, **params)


def _implementation(
    *operands: Any, vmaps: tuple[Vmap, ...], types: Any, moves: Any, **params: Any
) -> Flat:
    del types, moves
    return mapped(partial(_sweep, **params), vmaps)(*operands)


def _output_types(*_: Any, function: Loop, types: Any, **__: Any) -> Any:
    return types, function.effects


def _jvp(
    primals: Flat,
    tangents: Flat,
    function: Loop,
    activity: Activity,
    keep_ys: tuple[bool, ...],
    vmaps: tuple[Vmap, ...],
    types: Any,
    moves: Any,
) -> Any:
    """The results' derivative is that of the loop primitive. What is held has none: the reverse
    sweep's result depends on the operands and cotangents alone, the slots only make it cheap."""
    del moves
    half = with_primal_half(function, activity)

    def loop_itself(*operands: Any) -> Flat:
        results = as_loop(half, lambda loop: run_plain(loop, loop.operands(operands)))
        return _kept(function, keep_ys, results)

    run = mapped(loop_itself, vmaps)
    results, results_dot = jvp_of_nonzero(lambda flat: run(*flat), primals, tangents)
    silent = function._replace(progress=None)  # the results' loop shows it
    params = {"function": silent, "activity": activity, "keep_ys": keep_ys, "vmaps": vmaps}
    held = _bind(primals, types, **params)[len(results) :]
    zeros = [_compat.symbolic_zero(t) for t in types]
    dots = [
        dot if is_inexact(result) else zero
        for result, dot, zero in zip(results, results_dot, zeros, strict=False)
    ]
    return [*results, *held], [*dots, *zeros[len(results) :]]


def _batch(
    axis: Any,
    operands: Flat,
    dims: Flat,
    function: Loop,
    activity: Activity,
    keep_ys: tuple[bool, ...],
    vmaps: tuple[Vmap, ...],
    types: Any,
    moves: Any,
) -> Any:
    del types, moves
    params = {"function": function, "activity": activity, "keep_ys": keep_ys}
    operands = [as_array(x) for x in operands]
    run = mapped(partial(_sweep, **params), vmaps)

    def find() -> tuple[tuple[Vmap, ...], tuple[Any, ...]]:
        dims_out = tuple(batched_dims(axis, run, operands, dims))
        outer = (*vmaps, Vmap(axis, tuple(dims), dims_out))
        results = results_of(lambda: mapped(partial(_sweep, **params), outer)(*operands))
        return outer, tuple(result.aval for result in results)

    key = ("batched forward sweep", activity, keep_ys, vmaps, axis, tuple(dims))
    outer, types = once(function, (*key, *map(jax.typeof, operands)), find)
    return _bind(operands, types, vmaps=outer, **params), outer[-1].dims_out


def _prune(
    used: list[bool],
    function: Loop,
    activity: Activity,
    keep_ys: tuple[bool, ...],
    types: Any,
    **params: Any,
) -> Any:
    num_carry, num_ys = function.num_carry, sum(keep_ys)
    used_ys = used[num_carry : num_carry + num_ys]
    kept = [*[True] * num_carry, *used_ys, *[True] * (len(used) - num_carry - num_ys)]
    params |= {
        "function": function,
        "activity": activity,
        "keep_ys": tuple(substitute(keep_ys, keep_ys, used_ys)),
        "types": tuple(pick(types, kept)),
    }
    return kept, [True] * len(activity.operands), params


def _kept(loop: Loop, keep_ys: tuple[bool, ...], results: Flat) -> list[Any]:
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
