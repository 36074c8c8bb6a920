"""A segment: a function that is computed again, from its operands, when it is transposed.

What `jax.checkpoint` is, but for two things. It does what it says on a CPU, too (see `region`). And
run, batched and in forward mode it is the function itself. As for loops there are three primitives:

- the *segment* primitive is the function;
- the *jvp* primitive is the function and its tangents, and a segment again when differentiated;
- the *tangent* primitive is the tangents alone. It is linear, and holds nothing but the operands;
    transposed, it computes the function again, apart from all else.

The pullback's derivative is that of the function's own pullback: only the memory of first-order
reverse mode is bounded by what a segment's operands take.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jax_revolve import _compat
from jax_revolve._compat import ClosedJaxpr
from jax_revolve.autodiff.loop_primitive import Flat
from jax_revolve.autodiff.sweeps import jvp_of_nonzero
from jax_revolve.layers.region import apart
from jax_revolve.step.activity import Mask
from jax_revolve.step.batching import batched_as, batched_dims, vmap_over
from jax_revolve.step.loop import pick, substitute
from jax_revolve.step.primal_half import primal_half


def run_segment(fun: Callable[..., Any], *inputs: Any) -> Any:
    """`fun(*inputs)`, pytrees of arrays to a pytree of arrays, as a segment."""
    leaves, treedef = jax.tree.flatten(inputs)
    shape: list[Any] = []

    def flat_fun(*leaves: Any) -> list[Any]:
        results, of = jax.tree.flatten(fun(*jax.tree.unflatten(treedef, leaves)))
        shape[:] = [of]
        return results

    results = _bind(flat_fun, leaves)
    return jax.tree.unflatten(shape[0], results)


def _bind(fun: Callable[..., Flat], operands: Flat) -> Flat:
    """Values that the function closes over become operands."""
    jaxpr, consts = _compat.without_consts(jax.make_jaxpr(fun)(*operands))
    return segment_p.bind(*map(_compat.as_array, [*consts, *operands]), jaxpr=jaxpr)


# The segment primitive


def _run_segment(*operands: Any, jaxpr: ClosedJaxpr) -> Flat:
    return _compat.call_jaxpr(jaxpr)(*operands)


def _segment_types(*_: Any, jaxpr: ClosedJaxpr) -> Any:
    return jaxpr.out_avals, jaxpr.effects


def _batch_segment(axis: Any, operands: Flat, dims: Flat, jaxpr: ClosedJaxpr) -> Any:
    run = partial(_run_segment, jaxpr=jaxpr)
    dims_out = batched_dims(axis, run, operands, dims)
    return _bind(vmap_over(axis, run, dims, dims_out), operands), dims_out


def _segment_jvp(primals: Flat, tangents: Flat, jaxpr: ClosedJaxpr) -> Any:
    mask = tuple(not _compat.is_zero(t) for t in tangents)
    active = _active_results(jaxpr, mask)
    zeros = [_compat.symbolic_zero(aval) for aval in jaxpr.out_avals]
    if not any(active):
        return segment_p.bind(*primals, jaxpr=jaxpr), zeros
    chosen = pick(tangents, mask)
    flat = jvp_p.bind(*primals, *chosen, jaxpr=jaxpr, mask=mask, active=active)
    return flat[: len(zeros)], substitute(zeros, active, flat[len(zeros) :])


def _active_results(closed: ClosedJaxpr, mask: Mask) -> Mask:
    """Which results have a tangent, given which operands do."""
    jaxpr = closed.jaxpr
    varying = _compat.varying_variables(jaxpr, pick(jaxpr.invars, mask))
    return tuple(
        jnp.issubdtype(v.aval.dtype, jnp.inexact) and not _compat.is_literal(v) and v in varying
        for v in jaxpr.outvars
    )


def _transpose_segment(cotangents: Flat, *operands: Any, jaxpr: ClosedJaxpr) -> Flat:
    mask = tuple(map(_compat.is_linear_input, operands))
    # A linear function is its own derivative, at zero as anywhere.
    primals = [
        _compat.zeros(x.aval) if linear else x for x, linear in zip(operands, mask, strict=True)
    ]
    wanted = tuple(not _compat.is_zero(ct) for ct in cotangents)
    result = pull_back(jaxpr, mask, wanted, primals, pick(cotangents, wanted))
    return substitute([None] * len(operands), mask, result)


segment_p = _compat.new_primitive(
    "checkpointed_segment",
    implementation=_run_segment,
    output_types=_segment_types,
    batch=_batch_segment,
    jvp=_segment_jvp,
    transpose=_transpose_segment,
)


# The pullback


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def pull_back(
    jaxpr: ClosedJaxpr, mask: Mask, wanted: Mask, operands: Flat, cotangents: Flat
) -> Flat:
    """Cotangents of the operands in `mask`, from those of the results in `wanted`."""
    flat = [*operands, *cotangents]
    return apart(partial(_pull_back, jaxpr, mask, wanted), *flat)


@partial(pull_back.defjvp, symbolic_zeros=True)
def _pull_back_jvp(
    jaxpr: ClosedJaxpr, mask: Mask, wanted: Mask, primals: Any, tangents: Any
) -> Any:
    flat, flat_dot = ([*operands, *cts] for operands, cts in (primals, tangents))
    return jvp_of_nonzero(lambda flat: _pull_back(jaxpr, mask, wanted, *flat), flat, flat_dot)


def _pull_back(jaxpr: ClosedJaxpr, mask: Mask, wanted: Mask, *flat: Any) -> list[Any]:
    operands, cotangents = list(flat[: len(mask)]), list(flat[len(mask) :])

    def run(chosen: Flat) -> Flat:
        return pick(_run_segment(*substitute(operands, mask, chosen), jaxpr=jaxpr), wanted)

    primals = pick(operands, mask)
    (result,) = jax.vjp(run, primals)[1](cotangents)
    types = map(_compat.tangent_type, primals)
    return list(map(_compat.with_weak_type, result, types))


# The tangent primitive


def _run_tangent(*flat: Any, jaxpr: ClosedJaxpr, **params: Any) -> Flat:
    return _run_jvp(*flat, jaxpr=jaxpr, **params)[len(jaxpr.out_avals) :]


def _tangent_types(*_: Any, jaxpr: ClosedJaxpr, active: Mask, **__: Any) -> Any:
    return [t.to_tangent_aval() for t in pick(jaxpr.out_avals, active)], frozenset()


def _tangent_jvp(primals: Flat, tangents: Flat, **params: Any) -> Any:
    return jvp_of_nonzero(
        lambda flat: _bind(partial(_run_tangent, **params), flat), primals, tangents
    )


def _batch_tangent(axis: Any, flat: Flat, dims: Flat, jaxpr: ClosedJaxpr, **params: Any) -> Any:
    results, dims_out = _batch_jvp(axis, flat, dims, jaxpr=jaxpr, **params)
    first = len(jaxpr.out_avals)
    return results[first:], dims_out[first:]


def _transpose_tangent(
    cotangents: Flat, *flat: Any, jaxpr: ClosedJaxpr, mask: Mask, active: Mask
) -> Flat:
    operands, tangents = list(flat[: len(mask)]), flat[len(mask) :]
    given = [not _compat.is_zero(ct) for ct in cotangents]
    wanted = tuple(substitute([False] * len(active), active, given))
    result = pull_back(jaxpr, mask, wanted, operands, pick(cotangents, given))
    return [None] * len(operands) + [
        ct if _compat.is_linear_input(tangent) else None
        for ct, tangent in zip(result, tangents, strict=True)
    ]


tangent_p = _compat.new_primitive(
    "checkpointed_segment_tangent",
    implementation=_run_tangent,
    output_types=_tangent_types,
    batch=_batch_tangent,
    jvp=_tangent_jvp,
    transpose=_transpose_tangent,
)


# The derivative primitive


def _run_jvp(*flat: Any, jaxpr: ClosedJaxpr, mask: Mask, active: Mask) -> Flat:
    operands, tangents = list(flat[: len(mask)]), list(flat[len(mask) :])

    def run(chosen: Flat) -> Flat:
        return _run_segment(*substitute(operands, mask, chosen), jaxpr=jaxpr)

    results, results_dot = jax.jvp(run, (pick(operands, mask),), (tangents,))
    types, _ = _jvp_types(jaxpr=jaxpr, active=active)
    return list(map(_compat.with_weak_type, [*results, *pick(results_dot, active)], types))


def _jvp_types(*_: Any, jaxpr: ClosedJaxpr, active: Mask, **__: Any) -> Any:
    tangents, _ = _tangent_types(jaxpr=jaxpr, active=active)
    return [*jaxpr.out_avals, *tangents], jaxpr.effects


def _jvp_jvp(primals: Flat, tangents: Flat, **params: Any) -> Any:
    return jvp_of_nonzero(lambda flat: _bind(partial(_run_jvp, **params), flat), primals, tangents)


def _batch_jvp(
    axis: Any, flat: Flat, dims: Flat, jaxpr: ClosedJaxpr, mask: Mask, active: Mask
) -> Any:
    operands, tangents = list(flat[: len(mask)]), flat[len(mask) :]
    operand_dims, tangent_dims = list(dims[: len(mask)]), dims[len(mask) :]
    chosen, chosen_dims = pick(operands, mask), pick(operand_dims, mask)
    pairs = zip(chosen_dims, tangent_dims, strict=True)
    if any(dim is None and tangent_dim is not None for dim, tangent_dim in pairs):
        # Several directions at the same point, as in `jax.jacfwd`: the values are computed once.
        run = partial(_run_jvp, jaxpr=jaxpr, mask=mask, active=active)
        dims_out = batched_dims(axis, run, flat, dims)
        return _bind(vmap_over(axis, run, dims, dims_out), flat), dims_out

    dims_out: list[Any] = []

    def run_batch(chosen: Flat) -> Flat:
        inputs = substitute(operands, mask, chosen)
        results, dims_out[:] = _batch_segment(axis, inputs, operand_dims, jaxpr)
        return results

    tangents = batched_as(axis, tangents, tangent_dims, chosen_dims)
    results, results_dot = jax.jvp(run_batch, (chosen,), (tangents,))
    return [*results, *pick(results_dot, active)], [*dims_out, *pick(dims_out, active)]


def _transpose_jvp(cotangents: Flat, *flat: Any, jaxpr: ClosedJaxpr, **params: Any) -> Flat:
    of_tangents = cotangents[len(jaxpr.out_avals) :]
    return _transpose_tangent(of_tangents, *flat, jaxpr=jaxpr, **params)


def _primal_params(jaxpr: ClosedJaxpr, mask: Mask, active: Mask) -> dict[str, Any]:
    """Of the segment that computes the values, once it is linearized."""
    del active
    return {"jaxpr": primal_half(jaxpr, mask)}


def _linearize(operands: Flat, **params: Any) -> tuple[Flat, Flat, dict[str, Any]]:
    return segment_p.bind(*operands, **_primal_params(**params)), [], params


def _num_operands(mask: Mask, **_: Any) -> int:
    return len(mask)


def _num_results(jaxpr: ClosedJaxpr, **_: Any) -> int:
    return len(jaxpr.out_avals)


jvp_p = _compat.new_primitive(
    "checkpointed_segment_jvp",
    implementation=_run_jvp,
    output_types=_jvp_types,
    batch=_batch_jvp,
    jvp=_jvp_jvp,
    transpose=_transpose_jvp,
    split=_compat.Split(
        num_primals=_num_operands,
        num_results=_num_results,
        primal=segment_p,
        primal_params=_primal_params,
        linearize=_linearize,
        linear=tangent_p,
    ),
)
