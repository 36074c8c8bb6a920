"""The work of the layers of a chain, and the bytes of their residuals, found by tracing them."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from jax_revolve._compat.jaxprs import ClosedJaxpr, call_jaxpr, variables
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
            arrays = jax.tree.leaves(eqx.filter(carry, eqx.is_array))
            carries.append(bytes_of(map(jax.typeof, arrays)))
            carry, before = following, f"what {layer.name} returns"

    jax.make_jaxpr(trace)()
    work, residuals = zip(*sizes, strict=True)
    return Layers(work, tuple(carries), residuals)


def _sizes(
    layer: Layer, carry: Any, key: Any, state: Any, known: dict[Any, tuple[int, int]]
) -> tuple[int, int]:
    inputs = (layer.call, carry, key, state)
    arrays, rest = Rest.of(inputs)
    leaves, treedef = jax.tree.flatten(arrays)

    def find() -> tuple[int, int]:
        run = lambda call, *others: layer._replace(call=call).run_untraced(*others)  # noqa: E731
        closed, *_ = eqx.filter_make_jaxpr(run)(*inputs)
        return _work_and_residuals(closed, leaves)

    if not rest.is_hashable:
        return find()
    alike = (layer[2:], rest, treedef, tuple(map(jax.typeof, leaves)))
    if alike not in known:
        known[alike] = find()
    return known[alike]


def _work_and_residuals(closed: ClosedJaxpr, operands: list[Any]) -> tuple[int, int]:
    """The work of a run, and the bytes of the residuals that its linearization in all operands
    keeps besides operands and results: a carry counts by itself, and weights are not copied."""
    work, fun = work_of(closed, profile_in_force()), call_jaxpr(closed)
    mask = [jnp.issubdtype(jax.typeof(x).dtype, jnp.inexact) for x in operands]
    counts: list[int] = []

    def linearized(*operands: Any) -> list[Any]:
        def run(chosen: list[Any]) -> list[Any]:
            return fun(*substitute(operands, mask, chosen))

        results, pullback = jax.vjp(run, pick(operands, mask))
        counts.append(len(results))
        return [*results, *jax.tree.leaves(pullback)]

    jaxpr = jax.make_jaxpr(linearized)(*operands).jaxpr
    residuals = dict.fromkeys(variables(jaxpr.outvars[counts[0] :]))
    there = {*jaxpr.invars, *jaxpr.constvars, *variables(jaxpr.outvars[: counts[0]])}
    return max(round(work), 1), bytes_of(v.aval for v in residuals if v not in there)
