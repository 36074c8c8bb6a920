"""A computation that XLA does not merge with others.

`jax.checkpoint` uses an optimization barrier for that. But on a CPU, XLA removes barriers before it
merges equal computations: the recomputation becomes the first computation, and no memory is saved.
So on a CPU the computation is a branch of a conditional whose predicate XLA cannot know, as it once
was in JAX itself (https://github.com/jax-ml/jax/pull/7100).

XLA's CPU backend gives convolutions the layout that its fast routines need only outside branches
and loops; inside, they take ten times as long. If there are convolutions, the conditional copies
the operands, and the computation follows it. Other computations do without these copies, which take
time and memory: weights can be as large as the values that they multiply.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat.jaxprs import ClosedJaxpr, call_jaxpr
from jax_revolve._compat.primitives import new_primitive
from jax_revolve._compat.values import AbstractValue, as_array, zeros
from jax_revolve.autodiff.batching import batched_dims, vmap_over
from jax_revolve.autodiff.derivatives import jvp_of_nonzero
from jax_revolve.jaxprs.parts import without_consts
from jax_revolve.jaxprs.walk import has_equation
from jax_revolve.step.cpu import barrier


def apart(fun: Callable[..., list[Any]], *operands: Any) -> list[Any]:
    """`fun(*operands)`, run once all operands are available, and merged with nothing else."""
    jaxpr, consts = without_consts(jax.make_jaxpr(fun)(*operands))
    return apart_p.bind(*map(as_array, [*consts, *operands]), jaxpr=jaxpr)


def _run(*operands: Any, jaxpr: ClosedJaxpr) -> list[Any]:
    run = jax.jit(call_jaxpr(jaxpr))  # not traced again for each platform and branch

    def behind_a_barrier(*operands: Any) -> list[Any]:
        return run(*barrier(operands))

    def in_a_branch(*operands: Any) -> list[Any]:
        return _in_a_branch(run, jaxpr.out_avals, operands)

    def on_copies(*operands: Any) -> list[Any]:
        return run(*_in_a_branch(lambda *xs: list(xs), jaxpr.in_avals, operands))

    on_cpu = on_copies if has_equation(jaxpr, "conv_general_dilated") else in_a_branch
    return lax.platform_dependent(*operands, cpu=on_cpu, default=behind_a_barrier)


def _types(*_: Any, jaxpr: ClosedJaxpr) -> Any:
    return jaxpr.out_avals, jaxpr.effects


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], jaxpr: ClosedJaxpr) -> Any:
    return jvp_of_nonzero(call_jaxpr(jaxpr), primals, tangents)


def _batch(axis: Any, operands: Sequence[Any], dims: Sequence[Any], jaxpr: ClosedJaxpr) -> Any:
    run = call_jaxpr(jaxpr)
    dims_out = batched_dims(axis, run, operands, dims)
    return apart(vmap_over(axis, run, dims, dims_out), *operands), dims_out


apart_p = new_primitive("apart", implementation=_run, output_types=_types, batch=_batch, jvp=_jvp)
"""A primitive, because `lax.platform_dependent` has the computation once for each platform: where
segments are nested, the program would double with each level."""


def _in_a_branch(
    fun: Callable[..., list[Any]], results: Sequence[AbstractValue], operands: Sequence[Any]
) -> list[Any]:
    # XLA does not fold a random number without operands, and JAX does not batch it.
    always = lax.rng_uniform(jnp.float32(0), jnp.float32(1), ()) < 2
    never = lambda *_: [zeros(aval) for aval in results]  # noqa: E731
    return lax.cond(always, fun, never, *operands)
