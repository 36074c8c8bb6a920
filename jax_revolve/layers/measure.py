"""The work and the sizes of the layers of a chain, found by tracing them."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax

from jax_revolve._compat import bytes_of
from jax_revolve.layers.layer import Layer, is_array, with_arrays, without_arrays
from jax_revolve.layers.sizes import LayerSizes, layer_sizes
from jax_revolve.schedule.chain import Layers


def measure(layers: Sequence[Layer], x: Any, keys: Sequence[Any], state: Any) -> Layers:
    """The work and the sizes of all layers. Equal layers are measured once, and nothing runs."""
    known: dict[Any, LayerSizes] = {}
    sizes: list[LayerSizes] = []
    carries: list[int] = []

    def trace() -> list[Any]:
        carry, before = x, "x"
        for layer, key in zip(layers, keys, strict=True):
            own = state.substate(layer.call) if layer.is_stateful else None
            following, _ = _run(layer, carry, key, own, before)
            sizes.append(_sizes(layer, carry, key, own, known))
            carries.append(bytes_of(_types(carry)))
            carry, before = following, f"what {layer.name} returns"
        return []

    jax.make_jaxpr(trace)()
    work, residuals = zip(*sizes, strict=True)
    return Layers(work, tuple(carries), residuals)


def _run(layer: Layer, carry: Any, key: Any, state: Any, before: str) -> tuple[Any, Any]:
    try:
        return layer.run(carry, key, state)
    except (TypeError, ValueError) as error:
        types = eqx.tree_pformat(carry, short_arrays=True)
        raise ValueError(
            f"layers must fit together, but {layer.name} does not take {before}, {types}: {error}"
        ) from error


def _sizes(
    layer: Layer, carry: Any, key: Any, state: Any, known: dict[Any, LayerSizes]
) -> LayerSizes:
    arrays, rest = without_arrays((layer.call, carry, key, state))
    leaves, treedef = jax.tree.flatten(arrays)

    def run(*leaves: Any) -> list[Any]:
        call, carry, key, state = with_arrays(jax.tree.unflatten(treedef, leaves), rest)
        return list(_arrays(layer._replace(call=call).run_untraced(carry, key, state)))

    if not rest.is_hashable:
        return layer_sizes(run, leaves)
    alike = (layer[2:], rest, treedef, tuple(map(jax.typeof, leaves)))
    if alike not in known:
        known[alike] = layer_sizes(run, leaves)
    return known[alike]


def _arrays(tree: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(tree) if is_array(leaf)]


def _types(tree: Any) -> list[Any]:
    return [jax.typeof(leaf) for leaf in _arrays(tree)]
