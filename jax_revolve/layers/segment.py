"""A segment: a function that is recomputed from its operands when it is transposed.

It is `jax.checkpoint` with two differences: it also saves memory on a CPU, and it runs, batches and
has forward mode as the plain function. As for loops, there are three primitives: see
`_compat.functions`. The tangent primitive only keeps the operands. Transposed, it recomputes the
function, apart from the rest of the program. Only first-order reverse mode saves memory: the
derivative of the pullback is the derivative of the function's own pullback.

`jax.checkpoint` separates computations by an optimization barrier. But XLA for CPU removes barriers
before it merges equal computations: the recomputation becomes the first computation, and saves no
memory. So on a CPU, the computation is a branch of a conditional whose predicate XLA cannot know,
as JAX itself once did (https://github.com/jax-ml/jax/pull/7100).

XLA's CPU backend gives convolutions the layout for its fast routines only outside branches and
loops; inside, they take ten times as long. So if there are convolutions, the conditional copies the
operands, and the computation follows it. Other computations avoid these copies, because weights can
be as large as the values that they multiply.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat.functions import Active, Batched, Flat, Mask, jvp_in, jvp_of_nonzero
from jax_revolve._compat.jaxprs import ClosedJaxpr, call_jaxpr, is_literal, pruned
from jax_revolve._compat.primitives import new_primitive
from jax_revolve._compat.values import (
    AbstractValue,
    as_array,
    is_zero,
    pick,
    substitute,
    tangent_type,
    with_weak_type,
    zeros,
)
from jax_revolve.autodiff.batching import batched_dims, vmap_over
from jax_revolve.autodiff.derivatives import Function
from jax_revolve.jaxprs.parts import varying_variables, without_consts
from jax_revolve.jaxprs.walk import has_equation
from jax_revolve.step.cpu import barrier
from jax_revolve.step.linearized import primal_half
from jax_revolve.step.loop import is_inexact


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
    """`fun(*inputs)`, pytrees to a pytree, as a segment of the arrays in them."""
    closed, types, rest = eqx.filter_make_jaxpr(fun)(*inputs)
    results = _bind(closed, jax.tree.leaves(eqx.filter(inputs, eqx.is_array)))
    return eqx.combine(jax.tree.unflatten(jax.tree.structure(types), results), rest)


def _bind(closed: ClosedJaxpr, operands: Flat) -> Flat:
    """Run a jaxpr as a segment. Values that it closes over become operands."""
    jaxpr, consts = without_consts(closed)
    return segment_p.bind(*map(as_array, [*consts, *operands]), function=Segment(jaxpr))


class SegmentPrimitive(Function):
    def run(self, *operands: Any, function: Segment) -> Flat:
        return call_jaxpr(function.jaxpr)(*operands)

    def batch(self, axis: Any, operands: Flat, dims: Flat, function: Segment) -> Batched:
        run = partial(self.run, function=function)
        dims_out = batched_dims(axis, run, operands, dims)
        batched = jax.make_jaxpr(vmap_over(axis, run, dims, dims_out))(*operands)
        return _bind(batched, operands), dims_out

    def activity(self, function: Segment, differentiated: Mask, /) -> Active:
        jaxpr = function.jaxpr.jaxpr
        varying = varying_variables(jaxpr, pick(jaxpr.invars, differentiated))
        results = tuple(
            is_inexact(v.aval) and not is_literal(v) and v in varying for v in jaxpr.outvars
        )
        return Active(differentiated, results)

    def jvp(self, function: Segment, activity: Active, /, *flat: Any) -> Flat:
        """The segment of values and tangents."""
        count = len(activity.operands)

        def run(*flat: Any) -> Flat:
            own = partial(self.run, function=function)
            results, dots = jvp_in(own, flat[:count], activity.operands, flat[count:])
            return [*results, *pick(dots, activity.results)]

        return _bind(jax.make_jaxpr(run)(*flat), flat)

    def primal_half(self, function: Segment, activity: Active, /) -> Segment:
        return Segment(primal_half(function.jaxpr, activity.operands))

    def vjp_bwd(
        self,
        cotangents: Flat,
        operands: Flat,
        saved: Flat,
        function: Segment,
        activity: Active,
        aux: None,
    ) -> Flat:
        del saved, aux
        given = [not is_zero(ct) for ct in cotangents]
        nothing = (False,) * len(activity.results)
        wanted = tuple(substitute(nothing, activity.results, given))
        pullback = partial(_pull_back, function, activity.operands, wanted)
        return apart(pullback, *operands, *pick(cotangents, given))

    def dce(
        self, used: list[bool], function: Segment
    ) -> tuple[list[bool], list[bool], dict[str, Any]]:
        jaxpr, operands = pruned(function.jaxpr, used, [False] * len(function.jaxpr.in_avals))
        return used, operands, {"function": Segment(jaxpr)}

    def keys(self, *operands: Any, function: Segment) -> Flat:
        return self.run(*operands, function=function)


segment_p = SegmentPrimitive("checkpointed_segment").primitive


def _pull_back(segment: Segment, mask: Mask, wanted: Mask, *flat: Any) -> list[Any]:
    """Cotangents of the operands in `mask`, from the cotangents of the results in `wanted`."""
    operands, cotangents = list(flat[: len(mask)]), list(flat[len(mask) :])

    def run(chosen: Flat) -> Flat:
        return pick(call_jaxpr(segment.jaxpr)(*substitute(operands, mask, chosen)), wanted)

    primals = pick(operands, mask)
    (result,) = jax.vjp(run, primals)[1](cotangents)
    types = map(tangent_type, primals)
    return list(map(with_weak_type, result, types))


# Computations that XLA cannot merge with others


def apart(fun: Callable[..., list[Any]], *operands: Any) -> list[Any]:
    """`fun(*operands)`, run once all operands are available, which XLA merges with nothing."""
    jaxpr, consts = without_consts(jax.make_jaxpr(fun)(*operands))
    return apart_p.bind(*map(as_array, [*consts, *operands]), jaxpr=jaxpr)


def _run_apart(*operands: Any, jaxpr: ClosedJaxpr) -> list[Any]:
    run = jax.jit(call_jaxpr(jaxpr))  # not traced again for each platform and branch

    def on_cpu(*operands: Any) -> list[Any]:
        if has_equation(jaxpr, "conv_general_dilated"):
            return run(*_in_a_branch(lambda *xs: list(xs), jaxpr.in_avals, operands))
        return _in_a_branch(run, jaxpr.out_avals, operands)

    return lax.platform_dependent(*operands, cpu=on_cpu, default=lambda *xs: run(*barrier(xs)))


def _batch_apart(axis: Any, operands: Flat, dims: Flat, jaxpr: ClosedJaxpr) -> Batched:
    run = call_jaxpr(jaxpr)
    dims_out = batched_dims(axis, run, operands, dims)
    return apart(vmap_over(axis, run, dims, dims_out), *operands), dims_out


apart_p = new_primitive(
    "apart",
    implementation=_run_apart,
    output_types=lambda *_, jaxpr: (jaxpr.out_avals, jaxpr.effects),
    batch=_batch_apart,
    jvp=lambda primals, dots, jaxpr: jvp_of_nonzero(call_jaxpr(jaxpr), primals, dots),
)
"""A primitive, because `lax.platform_dependent` contains the computation once for each platform,
which would double the program with each level of nested segments."""


def _in_a_branch(
    fun: Callable[..., list[Any]], results: Sequence[AbstractValue], operands: Sequence[Any]
) -> list[Any]:
    # XLA cannot fold a random number, and JAX does not batch one without operands.
    always = lax.rng_uniform(jnp.float32(0), jnp.float32(1), ()) < 2
    never = lambda *_: [zeros(aval) for aval in results]  # noqa: E731
    return lax.cond(always, fun, never, *operands)
