"""A stack of identical layers: one module whose arrays have a leading axis."""

from typing import Any

import equinox as eqx
import jax

from jax_revolve.layers.layer import Layer, arrays_of, check_state
from jax_revolve.loops.options import LoopOptions
from jax_revolve.loops.scan import checkpointed_scan


def run_stack(
    stack: eqx.Module, x: Any, options: LoopOptions, key: Any, state: Any
) -> tuple[Any, Any]:
    """The carry after the last layer, and the state."""
    layer = Layer.of(0, stack)
    check_state([layer], state)
    own = None if state is None else state.substate(stack)
    axes = {array.shape[:1] for array in arrays_of((stack, own))}
    if len(axes) != 1 or () in axes:
        raise ValueError(
            "layers must be a list of layers, or a module whose arrays, and whose state's, all "
            f"have the same leading axis, one entry per layer, but is {eqx.tree_pformat(stack)}. "
            "Make a stack with equinox.filter_vmap(Layer)(keys)."
        )
    ((length,),) = axes
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
