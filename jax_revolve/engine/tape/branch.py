"""Residuals that XLA does not merge with what uses them."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from jax_revolve._compat import (
    bytes_of,
    call_jaxpr,
    filled_with_a_number,
    has_constraint,
    is_host_type,
    pruned,
    results_in,
    with_outputs,
    without_consts,
    zeros,
)
from jax_revolve.step.loop import pick, substitute

FEW_BYTES = 4096


def in_a_branch(always: jax.Array, residuals: Callable[[], list[Any]]) -> list[Any]:
    """`residuals()`; on CPU as one branch of a `cond` whose predicate always holds.

    XLA would otherwise compute the residuals inside of the fused kernel of the transposed step,
    which it then takes to be worth two threads. For a 1-D stencil of 20000 numbers handing it to a
    second thread costs three times what the whole kernel does. `lax.optimization_barrier` is
    removed before XLA fuses for CPU. Elsewhere a branch would only cost a look at its predicate.

    Residuals of `FEW_BYTES` are not worth two threads, and a branch would cost more than they do.
    XLA (jaxlib 0.10.2) cannot compile some with a constraint on their sharding without a branch.
    Values that are residuals as they are, such as weights, do not go through: it would copy them.
    Nor do zeros: nothing in a branch tells how they are divided among devices, and each would make
    whole ones. Residuals in the host's memory, those of an inner loop, are in no branch: XLA moves
    values between memories outside of them alone.
    """
    traced = jax.make_jaxpr(residuals)()
    outvars = traced.jaxpr.outvars
    if any(map(is_host_type, traced.out_avals)):
        return with_outputs(traced, outvars)([])
    results, filled = results_in(traced), filled_with_a_number(traced)
    outside = with_outputs(traced, pick(outvars, filled), effects=False)([])
    passed_on = substitute([r.passed_on for r in results], filled, outside)
    computed = [value is None for value in passed_on]
    is_small = bytes_of(pick(traced.out_avals, computed)) <= FEW_BYTES
    if is_small and not has_constraint(traced):
        return substitute(passed_on, computed, with_outputs(traced, pick(outvars, computed))([]))
    program, consts = without_consts(traced)
    program, used = pruned(program, computed, [False] * len(consts))
    run = jax.jit(call_jaxpr(program))  # not traced again for each platform and branch

    def branch(*operands: Any) -> list[Any]:
        return lax.cond(always, run, lambda *_: list(map(zeros, program.out_avals)), *operands)

    values = lax.platform_dependent(*pick(consts, used), cpu=branch, default=run)
    return substitute(passed_on, computed, values)
