"""`checkpointed_chain`: layers one after the other, differentiable within a memory budget."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax

from jax_revolve._compat.values import is_jit_disabled
from jax_revolve.layers.layer import Layer, check_state, trace
from jax_revolve.layers.segment import run_segment
from jax_revolve.layers.stack import run_stack
from jax_revolve.loops.options import LoopOptions
from jax_revolve.progress.meters import ProgressMeter
from jax_revolve.schedule import binomial, chain
from jax_revolve.schedule.arguments import Memory, parse_bytes
from jax_revolve.schedule.chain import Layers, Schedule
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.planning import Checkpoints
from jax_revolve.schedule.storage import Storage

Carry = tuple[Any, Any]
"""The value that goes from layer to layer, and the state, or `None`."""

MOST_RUNS = 25
"""The most runs of a layer. A layer with n runs is inside n nested segments, and tracing each takes
about 30 of the 1000 nested calls that Python allows."""


def checkpointed_chain(
    layers: Sequence[Callable[..., Any]] | eqx.Module,
    x: Any,
    *,
    memory: Memory = None,
    checkpoints: Checkpoints = None,
    block_size: int | None = None,
    storage: Storage | None = None,
    plan: Plan | None = None,
    progress: bool | ProgressMeter = False,
    key: Any = None,
    state: eqx.nn.State | None = None,
) -> Any:
    """`equinox.nn.Sequential(layers)(x, state=state, key=key)` whose reverse pass stores the inputs
    of a few layers, instead of the residuals of every layer, and runs layers again in the cheapest
    order.

    - A list of layers, which may differ, follows the schedule that is optimal for their measured
        work and sizes, found by dynamic programming.
    - A stack of identical layers is a [`jax_revolve.checkpointed_scan`][]: it is traced and
        compiled once, however many layers it has.

    Every layer draws the same random numbers when it is recomputed, and state, such as the running
    statistics of batch norm, advances once. Every transformation works. Only first-order reverse
    mode saves memory; forward mode and evaluation run every layer once.

    **Arguments:**

    - `layers`: a list or tuple of callables, or an `equinox.nn.Sequential`; or a stack: any other
        `equinox.Module`, whose arrays all have a leading axis of layers. Make one with
        `equinox.filter_vmap(make_layer)(keys)`.
    - `x`: the input of the first layer: any pytree. Each layer gets the output of the one before.
        The output of a layer in a stack has the types of its input.
    - `checkpoints`: the number of carries to store at once, `x` included, besides the
        residuals of one layer: an int >= 1, or `"all"`. Fewer take less memory and more time. A
        list is compiled layer by layer, once for each run of a layer: a few checkpoints fewer can
        mean a much larger program.
    - `memory`: instead, the most bytes to hold: an int or a string such as `"512MB"`. Covers
        carries and the residuals of layers. The budget excludes what every gradient needs: weights
        and their cotangents, and the temporaries of a single layer. Under `jax.vmap`, the
        budget of a list is for one example, and the budget of a stack is as in
        [`jax_revolve.checkpointed_scan`][]. Layers are measured as if they were differentiated with
        respect to all their inputs and weights.
    - `block_size`, `storage`, `plan`, `progress`: for a stack, as
        [`jax_revolve.checkpointed_scan`][]. A list, whose layers have different sizes, has none of
        these.
    - `key`: split into one key for each layer, as by `equinox.nn.Sequential`. A layer gets `key=`
        if it has such a parameter.
    - `state`: an `equinox.nn.State`, if any layer is stateful: an `equinox.nn.StatefulLayer` whose
        `is_stateful()` is true, or a callable that requires an argument `state`. For a stack it is
        stacked, too, as `equinox.filter_vmap(equinox.nn.make_with_state(Layer))(keys)` returns it.

    By default, a list has the least time within the least memory with which no layer runs more than
    twice, and a stack has the default of `checkpointed_scan`.

    **Returns:**

    The output of the last layer, or a tuple of that and the new state if `state` is given.

    **Raises:**

    Whatever a layer raises, with a note that names the layer and the types of its input, and:

    - `TypeError` or `ValueError` if `layers` or an option is not as above, or excludes another one
        that is given;
    - `ValueError` if `memory` is less than the least possible, which the error states;
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
    options = LoopOptions(checkpoints, block_size, memory, storage, plan, progress)
    if isinstance(layers, eqx.nn.Sequential):
        if type(layers).__call__ is not eqx.nn.Sequential.__call__:
            raise TypeError(
                f"layers must be an equinox.nn.Sequential without a __call__ of its own, but is of "
                f"type {type(layers).__name__}, which has one. Pass [layers] to run it as one "
                "layer, or layers.layers to run its layers one by one."
            )
        layers = layers.layers
    if isinstance(layers, list | tuple):
        result, new_state = _run_list(layers, x, options, key, state)
    elif isinstance(layers, eqx.Module):
        result, new_state = run_stack(layers, x, options, key, state)
    else:
        raise TypeError(
            "layers must be a list or tuple of callables, an equinox.nn.Sequential, or a stack: an "
            "equinox.Module whose arrays have a leading axis of layers; but is of type "
            f"{type(layers).__name__}."
        )
    return result if state is None else (result, new_state)


def _run_list(
    calls: Sequence[Callable[..., Any]], x: Any, options: LoopOptions, key: Any, state: Any
) -> Carry:
    """The carry after different layers, run by the cheapest schedule for their sizes."""
    if not calls:
        raise ValueError("layers must be at least one layer, but there is none.")
    for name in ("block_size", "storage", "plan", "progress"):
        if value := getattr(options, name):
            raise ValueError(
                f"{name} must not be given for a list of layers, but is {value!r}: their schedule "
                "depends on the sizes of each. Pass checkpoints or memory, or a stack of "
                "identical layers."
            )
    layers = [Layer.of(i, call) for i, call in enumerate(calls)]
    check_state(layers, state)
    keys = [None] * len(layers) if key is None else list(jax.random.split(key, len(layers)))
    schedule: Schedule = tuple(range(len(layers)))
    runs: list[Any] = [lambda _, *inputs, run=layer.run: run(*inputs) for layer in layers]
    if not is_jit_disabled():
        runs, sizes = trace(layers, x, keys, state)
        schedule = _schedule(sizes, options)

    def run(entries: Schedule, carry: Carry) -> Carry:
        x, state = carry
        for entry in entries:
            # Pass the state of the entry's own layers only, so that a segment holds no other state.
            numbers = [entry] if isinstance(entry, int) else chain.layers_in(entry)
            stateful = [layers[i].call for i in numbers if layers[i].is_stateful]
            own = state.substate(stateful) if stateful else None
            if isinstance(entry, int):
                x, own = runs[entry](layers[entry].call, x, keys[entry], own)
            else:
                x, own = run_segment(partial(run, entry), (x, own))
            state = state.update(own) if stateful else state
        return x, state

    return run(schedule, (x, state))


def _schedule(sizes: Layers, options: LoopOptions) -> Schedule:
    count = len(sizes.work)
    if options.memory is not None:
        schedule = chain.within(sizes, parse_bytes(options.memory))
    elif options.checkpoints is None:
        return chain.by_default(sizes)
    else:
        wanted = count if options.checkpoints == "all" else options.checkpoints
        schedule = chain.with_checkpoints(sizes, wanted)
    most = max(chain.runs(schedule))
    if most > MOST_RUNS:
        name = "checkpoints" if options.memory is None else "memory"
        fewest = binomial.fewest_checkpoints(count, MOST_RUNS - 1)
        raise ValueError(
            f"{name} must be more for these {count} layers, but is {getattr(options, name)!r}: a "
            f"layer would run {most} times, and a program can hold at most {MOST_RUNS} runs of "
            f"each. About {fewest} checkpoints are enough; or make a stack of equal layers."
        )
    return schedule
