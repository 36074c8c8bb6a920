"""The work of a layer, and the bytes of its residuals, found by tracing it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_revolve._compat import bytes_of, results_in
from jax_revolve.profiles.in_force import profile_in_force
from jax_revolve.step.loop import pick, substitute
from jax_revolve.step.work import work_of


class LayerSizes(NamedTuple):
    """The work of a run, and the bytes of the residuals that its linearization keeps in addition to
    its operands and results: a carry counts by itself, and weights are not copied."""

    work: int
    residuals: int


def layer_sizes(fun: Callable[..., list[Any]], operands: list[Any]) -> LayerSizes:
    """The sizes of a function of arrays that is linearized in all operands that can be
    differentiated."""
    work = work_of(jax.make_jaxpr(fun)(*operands), profile_in_force())
    mask = [jnp.issubdtype(jax.typeof(x).dtype, jnp.inexact) for x in operands]
    counts: list[int] = []

    def linearized(*operands: Any) -> list[Any]:
        def run(chosen: list[Any]) -> list[Any]:
            return fun(*substitute(list(operands), mask, chosen))

        results, pullback = jax.vjp(run, pick(list(operands), mask))
        counts.append(len(results))
        return [*results, *jax.tree.leaves(pullback)]

    found = results_in(jax.make_jaxpr(linearized)(*operands))
    first = counts[0]
    kept = [
        r.aval
        for i, r in enumerate(found)
        if i >= first and r.same_as == i and r.input is None and r.passed_on is None
    ]
    return LayerSizes(max(round(work), 1), bytes_of(kept))
