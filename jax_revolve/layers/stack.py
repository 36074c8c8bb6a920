"""A stack of identical layers: one module whose arrays have a leading axis."""

from typing import Any

import equinox as eqx
import jax

from jax_revolve.layers.layer import Layer, check_state
from jax_revolve.loops.options import LoopOptions
from jax_revolve.loops.scan import checkpointed_scan


def run_stack(
    stack: eqx.Module, x: Any, options: LoopOptions, key: Any, state: Any
) -> tuple[Any, Any]:
    """The carry after the last layer, and the state."""
    layer = Layer.of(0, stack)
    check_state([layer], state)
    own = None if state is None else state.substate(stack)
    length = _length({"layers": stack, "state": own})
    weights, rest = eqx.partition(stack, eqx.is_array)
    keys = None if key is None else jax.random.split(key, length)
    start, rest_of_carry = eqx.partition(x, eqx.is_array)

    def step(carry: Any, inputs: Any) -> tuple[Any, Any]:
        weights, key, state = inputs
        one = layer._replace(call=eqx.combine(weights, rest))
        after, state = one.run(eqx.combine(carry, rest_of_carry), key, state)
        after, rest_after = eqx.partition(after, eqx.is_array)
        if not eqx.tree_equal(rest_after, rest_of_carry):
            raise ValueError(
                "layers must return what they take, as jax.lax.scan's carry, but the part that "
                f"is not an array changes from {rest_of_carry!r} to {rest_after!r}."
            )
        return after, state

    inputs = (weights, keys, own)
    after, own = checkpointed_scan(step, start, inputs, length, **options.arguments)
    x = eqx.combine(after, rest_of_carry)
    return x, None if state is None else state.update(own)


def _length(trees: dict[str, Any]) -> int:
    """The length of the leading axis, which all arrays have."""
    shapes = {
        f"{name}{jax.tree_util.keystr(path)}": leaf.shape
        for name, tree in trees.items()
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        if eqx.is_array(leaf)
    }
    if not shapes:
        raise ValueError(
            "layers must be a list of layers, or a module whose arrays have a leading axis of "
            f"layers, but {type(trees['layers']).__name__} has no arrays. Make a stack with "
            "equinox.filter_vmap(Layer)(keys)."
        )
    first = next(iter(shapes))
    for at, shape in shapes.items():
        if not shape or shape[0] != shapes[first][0]:
            raise ValueError(
                "layers must have arrays with the same leading axis, one entry per layer, but "
                f"{first} has shape {shapes[first]} and {at} has shape {shape}. Make a stack with "
                "equinox.filter_vmap(Layer)(keys), or pass a list of layers."
            )
    return shapes[first][0]
