"""What is measured of one model: its gradient, with the layers run in several ways."""

from collections.abc import Iterator, Sequence
from functools import partial
from math import ceil
from typing import Any

import equinox as eqx
import jax
from contenders import OURS, Contender
from layer_workloads import LayerWorkload
from measurements import Measurement, measure_programs
from programs import Program, gradient
from tqdm import tqdm

from jax_revolve import Checkpointed, checkpointed_chain

PLAIN = "plain"
REMAT = "jax.checkpoint on every block"
EVERY = "Checkpointed on every block"
BY_DEFAULT = "jax_revolve, by default"
GRADIENT = "gradient"


def measure(workload: LayerWorkload, budget: float, least_rounds: int) -> list[Measurement]:
    """`budget` is the time in seconds for the rounds."""
    progress = tqdm(_programs(workload), desc="Compiling", unit="program", leave=False)
    return measure_programs(workload, GRADIENT, list(progress), budget, ceil(least_rounds))


def _programs(workload: LayerWorkload) -> Iterator[Program]:
    run = _run_stack if workload.is_stack else _run_plain
    plain = gradient(workload, Contender(PLAIN, run, evaluations=workload.length))
    yield plain
    twice = 2 * workload.length
    yield gradient(workload, Contender(REMAT, partial(run, wrap=_remat), evaluations=twice))
    every = partial(run, wrap=Checkpointed)
    yield gradient(workload, Contender(EVERY, every, evaluations=twice))
    yield gradient(workload, Contender(BY_DEFAULT, _chain()))
    for checkpoints in workload.checkpoints:
        assert isinstance(checkpoints, int)
        loop = _chain(checkpoints=checkpoints)
        yield gradient(workload, Contender(OURS, loop, checkpoints=checkpoints))
    for share in workload.shares:
        # Inside of `jax.vmap` the budget is for one example.
        memory = int(share * (plain.temp_bytes or 0))
        batch = jax.tree.leaves(workload.passive["inputs"])[0].shape[0]
        loop = _chain(memory=memory // batch)
        yield gradient(workload, Contender(OURS, loop, budget=memory))


def _chain(**options: Any) -> Any:
    def run(layers: Any, x: Any, key: Any, state: Any) -> Any:
        result = checkpointed_chain(layers, x, key=key, state=state, **options)
        return (result, None) if state is None else result

    return run


def _run_plain(
    layers: Sequence[Any], x: Any, key: Any, state: Any, wrap: Any = lambda layer: layer
) -> Any:
    keys = [None] * len(layers) if key is None else jax.random.split(key, len(layers))
    for layer, k in zip(layers, keys, strict=True):
        if state is None:
            x = wrap(layer)(x, key=k)
        else:
            x, state = wrap(layer)(x, state, key=k)
    return x, state


def _run_stack(
    stack: Any, x: Any, key: Any, state: Any, wrap: Any = lambda layer: layer
) -> tuple[Any, Any]:
    arrays, rest = eqx.partition(stack, eqx.is_array)
    keys = jax.random.split(key, jax.tree.leaves(arrays)[0].shape[0])

    def layer(x: Any, inputs: Any) -> tuple[Any, None]:
        arrays, key = inputs
        return wrap(eqx.combine(arrays, rest))(x, key=key), None

    return jax.lax.scan(layer, x, (arrays, keys))[0], state


def _remat(layer: Any) -> Any:
    return eqx.filter_checkpoint(layer)
