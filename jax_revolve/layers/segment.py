"""A segment: a function that is computed again, from its operands, when it is transposed.

What `jax.checkpoint` is, but for two things. It does what it says on a CPU, too (see `region`). And
run, batched and in forward mode it is the function itself. As for loops there are three primitives:
see `autodiff.derivatives`. The tangent primitive holds nothing but the operands; transposed, it
computes the function again, apart from all else.

The pullback's derivative is the function's own pullback's: only the memory of first-order
reverse mode is bounded by what a segment's operands take.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax

from jax_revolve._compat.jaxprs import ClosedJaxpr, call_jaxpr, is_literal, pruned
from jax_revolve._compat.values import (
    AbstractValue,
    as_array,
    is_zero,
    tangent_type,
    with_weak_type,
)
from jax_revolve.autodiff.batching import Batched, batched_dims, vmap_over
from jax_revolve.autodiff.derivatives import Active, Flat, Rules, function_primitive
from jax_revolve.jaxprs.parts import varying_variables, without_consts
from jax_revolve.layers.region import apart
from jax_revolve.step.linearized import primal_half
from jax_revolve.step.loop import Mask, is_inexact, pick, substitute


class Segment(NamedTuple):
    """The function of a segment: a jaxpr without consts."""

    jaxpr: ClosedJaxpr

    @property
    def output_types(self) -> list[AbstractValue]:
        return self.jaxpr.out_avals

    @property
    def effects(self) -> Any:
        return self.jaxpr.effects


def run_segment(fun: Callable[..., Any], *inputs: Any) -> Any:
    """`fun(*inputs)`, pytrees to a pytree, as a segment: a function of the arrays in them."""
    closed, types, rest = eqx.filter_make_jaxpr(fun)(*inputs)
    results = _bind(closed, jax.tree.leaves(eqx.filter(inputs, eqx.is_array)))
    return eqx.combine(jax.tree.unflatten(jax.tree.structure(types), results), rest)


def _bind(closed: ClosedJaxpr, operands: Flat) -> Flat:
    """Values that the function closes over become operands."""
    jaxpr, consts = without_consts(closed)
    return segment_p.bind(*map(as_array, [*consts, *operands]), function=Segment(jaxpr))


def _run(*operands: Any, function: Segment) -> Flat:
    return call_jaxpr(function.jaxpr)(*operands)


def _batch(axis: Any, operands: Flat, dims: Flat, function: Segment) -> Batched:
    run = partial(_run, function=function)
    dims_out = batched_dims(axis, run, operands, dims)
    batched = jax.make_jaxpr(vmap_over(axis, run, dims, dims_out))(*operands)
    return _bind(batched, operands), dims_out


def _prune(used: list[bool], function: Segment) -> tuple[list[bool], list[bool], dict[str, Any]]:
    jaxpr, operands = pruned(function.jaxpr, used, [False] * len(function.jaxpr.in_avals))
    return used, operands, {"function": Segment(jaxpr)}


def _activity(function: Segment, differentiated: Mask) -> Active:
    jaxpr = function.jaxpr.jaxpr
    varying = varying_variables(jaxpr, pick(jaxpr.invars, differentiated))
    results = tuple(
        is_inexact(v.aval) and not is_literal(v) and v in varying for v in jaxpr.outvars
    )
    return Active(differentiated, results)


def _jvp(function: Segment, activity: Active, *flat: Any) -> Flat:
    """The segment of values and tangents."""
    count = len(activity.operands)

    def run(*flat: Any) -> Flat:
        def primal(chosen: Flat) -> Flat:
            inputs = substitute(flat[:count], activity.operands, chosen)
            return _run(*inputs, function=function)

        primals = pick(flat[:count], activity.operands)
        results, results_dot = jax.jvp(primal, (primals,), (list(flat[count:]),))
        return [*results, *pick(results_dot, activity.results)]

    return _bind(jax.make_jaxpr(run)(*flat), flat)


def _primal_half(function: Segment, activity: Active) -> Segment:
    return Segment(primal_half(function.jaxpr, activity.operands))


def _transpose(
    cotangents: Flat,
    operands: Flat,
    arrays: Flat,
    function: Segment,
    activity: Active,
    held: None,
) -> Flat:
    del arrays, held
    given = [not is_zero(ct) for ct in cotangents]
    nothing = (False,) * len(activity.results)
    wanted = tuple(substitute(nothing, activity.results, given))
    pullback = partial(_pull_back, function, activity.operands, wanted)
    return apart(pullback, *operands, *pick(cotangents, given))


segment_p = function_primitive(
    "checkpointed_segment",
    Rules(_run, _batch, _activity, _jvp, _transpose, _primal_half, prune=_prune, keys=_run),
)


def _pull_back(segment: Segment, mask: Mask, wanted: Mask, *flat: Any) -> list[Any]:
    """Cotangents of the operands in `mask`, from the cotangents of the results in `wanted`."""
    operands, cotangents = list(flat[: len(mask)]), list(flat[len(mask) :])

    def run(chosen: Flat) -> Flat:
        return pick(_run(*substitute(operands, mask, chosen), function=segment), wanted)

    primals = pick(operands, mask)
    (result,) = jax.vjp(run, primals)[1](cotangents)
    types = map(tangent_type, primals)
    return list(map(with_weak_type, result, types))
