"""`checkpointed_chain`: layers one after the other, differentiable within a memory budget."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx

from jax_revolve.layers.heterogeneous import run_heterogeneous
from jax_revolve.layers.stack import run_stack
from jax_revolve.loops.options import Options
from jax_revolve.progress.meters import ProgressMeter
from jax_revolve.schedule.arguments import Memory
from jax_revolve.schedule.planning import Checkpoints
from jax_revolve.schedule.storage import Storage
from jax_revolve.schedule.two_level import AnyPlan


def checkpointed_chain(
    layers: Sequence[Callable[..., Any]] | eqx.Module,
    x: Any,
    *,
    checkpoints: Checkpoints = None,
    block_size: int | None = None,
    memory: Memory = None,
    storage: Storage | None = None,
    plan: AnyPlan | None = None,
    progress: bool | ProgressMeter = False,
    key: Any = None,
    state: eqx.nn.State | None = None,
) -> Any:
    """As `equinox.nn.Sequential(layers)(x, state=state, key=key)`, but its reverse pass stores what
    goes into a few of the layers, instead of the residuals of every layer, and runs layers again
    in the cheapest order there is.

    - A list of layers, unlike ones among them, follows the schedule that is optimal for their
        measured work and sizes, found by dynamic programming.
    - A stack of identical layers goes through [`jax_revolve.checkpointed_scan`][]: it is traced and
        compiled once, however many layers there are.

    Every layer draws the same random numbers when it runs again, and state, such as the running
    statistics of batch norm, advances once. Every transformation works. First-order reverse mode
    is what takes little memory; forward mode and evaluation run every layer once.

    **Arguments:**

    - `layers`: a list or tuple of callables, or an `equinox.nn.Sequential`; or a stack: any other
        `equinox.Module`, whose arrays all have a leading axis of layers. Make one with
        `equinox.filter_vmap(make_layer)(keys)`.
    - `x`: what the first layer is called with: any pytree. Each layer gets what the one before it
        returns; those of a stack return what they take.
    - `checkpoints`: how many carries to store at once, `x` included, besides the residuals of one
        layer: an int >= 1, or `"all"`. Fewer take less memory and more time. A list is compiled
        layer by layer, each as often as it runs: a few checkpoints less can mean a much larger
        program.
    - `memory`: instead, the most bytes to hold: an int or a string such as `"512MB"`. Covers
        carries and the residuals of layers. It cannot cover what any gradient takes: weights and
        their cotangents, and what one layer takes for itself while it is computed. Under `jax.vmap`
        it is for one example. Sizes are those of layers that are differentiated with respect to all
        they are given.
    - `block_size`, `storage`, `plan`, `progress`: of a stack, as
        [`jax_revolve.checkpointed_scan`][]. A list, whose layers have sizes of their own, has none
        of these.
    - `key`: split into one key for each layer, as by `equinox.nn.Sequential`. A layer is given
        `key=` if it has such a parameter.
    - `state`: an `equinox.nn.State`, if any layer is stateful: an `equinox.nn.StatefulLayer` that
        says so, or a callable that requires an argument `state`. Of a stack it is stacked too, as
        `equinox.filter_vmap(equinox.nn.make_with_state(Layer))(keys)` returns it.

    Without `checkpoints` and `memory`, a list takes the least memory with which no layer runs more
    than twice, and within that the least time; a stack what `checkpointed_scan` does.

    **Returns:**

    What the last layer returns, or that and the new state if `state` is given.

    **Raises:**

    Whatever a layer raises, and:

    - `TypeError` or `ValueError` if `layers` or an option is not as above, or excludes another one
        that is given;
    - `ValueError` if a layer does not take what the one before it returns; it names both;
    - `ValueError` if `memory` is less than the least possible, which it states;
    - `ValueError` if the arrays of a stack have different leading axes;
    - `ValueError` if `state` is missing, or given without need.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        from jax_revolve import checkpointed_chain

        sizes = [8, 64, 32, 64, 32, 1]
        keys = jax.random.split(jax.random.key(0), 5)
        layers = []
        for size, next_size, key in zip(sizes, sizes[1:], keys):
            layers += [eqx.nn.Linear(size, next_size, key=key), jnp.tanh]

        @eqx.filter_jit
        @eqx.filter_grad
        def gradient(layers, x):
            return checkpointed_chain(layers, x, checkpoints=3)[0]

        gradient(layers, jnp.ones(8))[0].weight
        ```

    ??? cite "Source"

        O. Beaumont, L. Eyraud-Dubois, J. Herrmann, A. Joly and A. Shilova, "Optimal checkpointing
        for heterogeneous chains: how to train deep neural networks with limited memory", 2019.
    """
    asked = Options(checkpoints, block_size, memory, storage, plan, progress)
    if isinstance(layers, eqx.nn.Sequential):
        layers = layers.layers
    if isinstance(layers, list | tuple):
        result, new_state = run_heterogeneous(layers, x, asked, key, state)
    elif isinstance(layers, eqx.Module):
        result, new_state = run_stack(layers, x, asked, key, state)
    else:
        raise TypeError(
            "layers must be a list or tuple of callables, an equinox.nn.Sequential, or a stack: an "
            "equinox.Module whose arrays have a leading axis of layers; but is of type "
            f"{type(layers).__name__}."
        )
    return result if state is None else (result, new_state)
