"""The work of the layers of a chain, and the bytes of their residuals, found by tracing them."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from jax_revolve._compat.jaxprs import variables
from jax_revolve._compat.values import bytes_of
from jax_revolve.layers.layer import Layer, Rest
from jax_revolve.profiles.in_force import profile_in_force
from jax_revolve.schedule.chain import Layers
from jax_revolve.step.loop import pick, substitute
from jax_revolve.step.work import work_of


def measure(layers: Sequence[Layer], x: Any, keys: Sequence[Any], state: Any) -> Layers:
    """The work and the sizes of all layers. Equal layers are measured once, and nothing runs."""
    known: dict[Any, tuple[int, int]] = {}
    sizes: list[tuple[int, int]] = []
    carries: list[int] = []

    def trace() -> None:
        carry, before = x, "x"
        for layer, key in zip(layers, keys, strict=True):
            own = state.substate(layer.call) if layer.is_stateful else None
            try:
                following, _ = layer.run(carry, key, own)
                sizes.append(_sizes(layer, carry, key, own, known))
            except Exception as error:
                types = eqx.tree_pformat(carry, short_arrays=True)
                error.add_note(f"Raised by {layer.name} of a chain, called with {before}, {types}.")
                raise
            carries.append(bytes_of(jax.typeof(x) for x in _arrays(carry)))
            carry, before = following, f"what {layer.name} returns"

    jax.make_jaxpr(trace)()
    work, residuals = zip(*sizes, strict=True)
    return Layers(work, tuple(carries), residuals)


def _sizes(
    layer: Layer, carry: Any, key: Any, state: Any, known: dict[Any, tuple[int, int]]
) -> tuple[int, int]:
    arrays, rest = Rest.of((layer.call, carry, key, state))
    leaves, treedef = jax.tree.flatten(arrays)

    def run(*leaves: Any) -> list[Any]:
        call, carry, key, state = rest.with_arrays(jax.tree.unflatten(treedef, leaves))
        return _arrays(layer._replace(call=call).run_untraced(carry, key, state))

    if not rest.is_hashable:
        return _work_and_residuals(run, leaves)
    alike = (layer[2:], rest, treedef, tuple(map(jax.typeof, leaves)))
    if alike not in known:
        known[alike] = _work_and_residuals(run, leaves)
    return known[alike]


def _work_and_residuals(fun: Callable[..., list[Any]], operands: list[Any]) -> tuple[int, int]:
    """The work of a run, and the bytes of the residuals that its linearization in all operands
    keeps besides operands and results: a carry counts by itself, and weights are not copied."""
    work = work_of(jax.make_jaxpr(fun)(*operands), profile_in_force())
    mask = [jnp.issubdtype(jax.typeof(x).dtype, jnp.inexact) for x in operands]
    counts: list[int] = []

    def linearized(*operands: Any) -> list[Any]:
        def run(chosen: list[Any]) -> list[Any]:
            return fun(*substitute(list(operands), mask, chosen))

        results, pullback = jax.vjp(run, pick(list(operands), mask))
        counts.append(len(results))
        return [*results, *jax.tree.leaves(pullback)]

    jaxpr = jax.make_jaxpr(linearized)(*operands).jaxpr
    residuals = dict.fromkeys(variables(jaxpr.outvars[counts[0] :]))
    there = {*jaxpr.invars, *jaxpr.constvars, *variables(jaxpr.outvars[: counts[0]])}
    return max(round(work), 1), bytes_of(v.aval for v in residuals if v not in there)


def _arrays(tree: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(tree) if eqx.is_array(leaf)]
