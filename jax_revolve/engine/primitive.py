"""Which engine runs under which transformation.

Two primitives. The *loop* primitive stands for the whole loop:

- run and lowered, it is the plain engine;
- batched, it is the loop primitive of the batched step;
- differentiated while JAX linearises for reverse mode, it is the slots engine's forward sweep, and
  its tangents are those of the *tangent primitive*;
- differentiated otherwise, it is the derivative of the nested engine.

Both answers are right in either case; which one is asked for only chooses the cheaper one.

The *tangent* primitive is linear in the tangents. Its other operands are the loop's, and the slots:

- transposed, it is the slots engine's reverse sweep;
- run, batched or differentiated, it is the tangent half of the nested engine's derivative.

Both sweeps are functions with a derivative rule of their own, so that no derivative ever looks
inside one. The forward sweep's is that of the loop primitive, the reverse sweep's that of the
nested engine's pullback. The slots have no derivative: the reverse sweep's result depends on the
operands and cotangents alone, the slots only make it cheap.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax

from jax_revolve import _compat
from jax_revolve._compat import ScanEquation, SymbolicZero
from jax_revolve.engine import slots
from jax_revolve.engine.activity import Activity, find_activity
from jax_revolve.engine.batching import batched_dims, vmap_over
from jax_revolve.engine.forward_sweep import run_forward_sweep
from jax_revolve.engine.loop import Loop, choose, substitute
from jax_revolve.engine.nested import pull_back_nested, run_nested
from jax_revolve.engine.plain import run_plain
from jax_revolve.engine.pullback import Cotangents, primal_half
from jax_revolve.schedule.plan import Plan

Flat = Sequence[Any]


def checkpoint_scan(fun: Callable[[], Any], plan_for: Callable[[int], Plan]) -> Any:
    """`fun()`, which calls `lax.scan` once, with the loop primitive in the scan's place."""

    def bind(scan: ScanEquation, operands: list[Any]) -> Flat:
        loop = Loop(**scan._asdict(), plan=plan_for(scan.length))
        if not all(_compat.is_array_type(jax.typeof(x)) for x in operands):
            raise NotImplementedError(
                "checkpointed_scan does not support mutable array references in f: its reverse "
                "pass runs steps again, which would change the array again. Pass the array through "
                "the carry, or use jax.lax.scan."
            )
        if loop.length == 0:
            return run_plain(loop, loop.step, loop.operands(operands))
        return loop_p.bind(*operands, **loop.params())

    return _compat.run_around_scan(fun, bind)


# The sweeps, and their derivatives


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def forward_sweep(loop: Loop, operands: Flat) -> tuple[Flat, Flat]:
    """The loop's results, and the slots that the reverse sweep starts from."""
    return run_forward_sweep(loop, operands)


@partial(forward_sweep.defjvp, symbolic_zeros=True)
def _forward_sweep_jvp(loop: Loop, primals: Any, tangents: Any) -> Any:
    (operands,), (tangents,) = primals, tangents

    def run(operands: Flat) -> Flat:
        step = primal_half(loop.step)
        return checkpoint_scan(
            lambda: run_plain(loop, step, loop.operands(operands)), lambda _: loop.plan
        )

    results, results_dot = _jvp_of_nonzero(run, operands, tangents)
    held = forward_sweep(loop, operands)[1]
    held_dot = [SymbolicZero(_compat.tangent_type(slot)) for slot in held]
    return (results, held), (results_dot, held_dot)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def reverse_sweep(
    loop: Loop, activity: Activity, operands: Flat, held: Flat, cotangents: Cotangents
) -> Flat:
    """The cotangents of the differentiated operands, from those of the active results."""
    return _compiled_reverse(loop, activity, operands, held, cotangents)


@partial(reverse_sweep.defjvp, symbolic_zeros=True)
def _reverse_sweep_jvp(loop: Loop, activity: Activity, primals: Any, tangents: Any) -> Any:
    operands, _, cotangents = primals
    operands_dot, _, cotangents_dot = tangents
    cotangents, treedef = jax.tree.flatten(cotangents)

    def pull_back(inputs: Flat) -> Flat:
        operands_ = loop.operands(inputs[: len(operands)])
        cotangents_ = jax.tree.unflatten(treedef, inputs[len(operands) :])
        return _flat(pull_back_nested(loop, activity, operands_, cotangents_))

    inputs = [*operands, *cotangents]
    return _jvp_of_nonzero(pull_back, inputs, [*operands_dot, *jax.tree.leaves(cotangents_dot)])


@partial(jax.jit, static_argnums=(0, 1))
def _compiled_reverse(
    loop: Loop, activity: Activity, operands: Flat, held: list[Any], cotangents: Cotangents
) -> Flat:
    result = slots.run_reverse(loop, activity, loop.operands(operands), held, cotangents)
    types = [_compat.tangent_type(x) for x in choose(operands, activity.operands)]
    return list(map(_compat.with_weak_type, _flat(result), types))


def _flat(parts: Sequence[Flat]) -> list[Any]:
    return [value for part in parts for value in part]


def _jvp_of_nonzero(run: Callable[[Flat], Flat], primals: Flat, tangents: Flat) -> Any:
    """`jax.jvp` of `run` in those primals alone whose tangents are not symbolically zero."""
    mask = [not _compat.is_zero(t) for t in tangents]
    return jax.jvp(
        lambda chosen: run(substitute(primals, mask, chosen)),
        (choose(primals, mask),),
        (choose(tangents, mask),),
    )


# The tangent primitive


def _run_tangent(*flat: Any, activity: Activity, **params: Any) -> Flat:
    loop = Loop(**params)
    operands, _, tangents = _take_apart(loop, activity, flat)

    def run(chosen: Flat) -> Flat:
        inputs = loop.operands(substitute(operands, activity.operands, chosen))
        return choose(run_nested(loop, loop.step, inputs), activity.results)

    return jax.jvp(run, (choose(operands, activity.operands),), (tangents,))[1]


def _tangent_types(*_: Any, activity: Activity, **params: Any) -> Any:
    active = choose(Loop(**params).output_types, activity.results)
    return [t.to_tangent_aval() for t in active], frozenset()


def _tangent_jvp(primals: Flat, tangents: Flat, **params: Any) -> Any:
    return _jvp_of_nonzero(lambda flat: _run_tangent(*flat, **params), primals, tangents)


def _batch_tangent(axis: Any, flat: Flat, dims: Flat, **params: Any) -> Any:
    results = vmap_over(axis, partial(_run_tangent, **params), dims)(*flat)
    return results, [0] * len(results)


def _transpose_tangent(cotangents: Flat, *flat: Any, activity: Activity, **params: Any) -> Flat:
    loop = Loop(**params)
    operands, held, tangents = _take_apart(loop, activity, flat)
    num_carry = sum(activity.carry)
    ct_carry = [_compat.instantiate(ct) for ct in cotangents[:num_carry]]
    ct_ys = [None if _compat.is_zero(ct) else ct for ct in cotangents[num_carry:]]
    result = reverse_sweep(loop, activity, operands, held, Cotangents(ct_carry, ct_ys))
    linear = [
        ct if _compat.is_linear_input(tangent) else None
        for ct, tangent in zip(result, tangents, strict=True)
    ]
    return [None] * (len(operands) + len(held)) + linear


def _take_apart(
    loop: Loop, activity: Activity, flat: Flat
) -> tuple[list[Any], list[Any], list[Any]]:
    num_operands = len(activity.operands)
    operands, rest = list(flat[:num_operands]), list(flat[num_operands:])
    return operands, rest[: loop.num_carry], rest[loop.num_carry :]


tangent_p = _compat.new_primitive(
    "checkpointed_loop_tangent",
    implementation=_run_tangent,
    output_types=_tangent_types,
    jvp=_tangent_jvp,
    batch=_batch_tangent,
    transpose=_transpose_tangent,
)


# The loop primitive


def _run_loop(*operands: Any, **params: Any) -> Flat:
    loop = Loop(**params)
    return run_plain(loop, loop.step, loop.operands(operands))


def _loop_types(*_: Any, output_types: Any, body_effects: Any, **params: Any) -> Any:
    return output_types, body_effects


def _loop_jvp(primals: Flat, tangents: Flat, **params: Any) -> Any:
    loop = Loop(**params)
    if not _compat.is_linearizing(tangents):

        def run(operands: Flat) -> Flat:
            results = run_nested(loop, loop.step, loop.operands(operands))
            return list(map(_compat.with_weak_type, results, loop.output_types))

        return _jvp_of_nonzero(run, primals, tangents)

    differentiated = [not _compat.is_zero(t) for t in tangents]
    activity = find_activity(loop, loop.operands(primals), differentiated)
    zeros = [_compat.symbolic_zero(t) for t in loop.output_types]
    if not any(activity.results):
        return loop_p.bind(*primals, **params), zeros
    results, held = forward_sweep(loop, primals)
    chosen = choose(tangents, differentiated)
    active = tangent_p.bind(*primals, *held, *chosen, activity=activity, **params)
    return results, substitute(zeros, activity.results, active)


def _batch_loop(axis: Any, operands: Flat, dims: Flat, **params: Any) -> Any:
    run = partial(_run_loop, **params)
    dims_out = batched_dims(axis, run, operands, dims)
    results = checkpoint_scan(
        lambda: vmap_over(axis, run, dims, dims_out)(*operands), lambda _: params["plan"]
    )
    return results, dims_out


def _transpose_loop(cotangents: Flat, *operands: Any, **params: Any) -> Flat:
    linear = [_compat.is_linear_input(x) for x in operands]
    run = partial(_run_loop, **params)
    transposed = jax.linear_transpose(
        lambda chosen: run(*substitute(operands, linear, chosen)),
        [x.aval for x in choose(operands, linear)],
    )
    (cts,) = transposed([_compat.instantiate(ct) for ct in cotangents])
    return substitute([None] * len(operands), linear, cts)


loop_p = _compat.new_primitive(
    "checkpointed_loop",
    implementation=_run_loop,
    output_types=_loop_types,
    jvp=_loop_jvp,
    batch=_batch_loop,
    transpose=_transpose_loop,
)
