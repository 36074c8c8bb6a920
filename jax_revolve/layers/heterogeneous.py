"""A chain of different layers, run by the cheapest schedule for their sizes."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jax_revolve._compat.values import is_jit_disabled
from jax_revolve.layers.layer import Layer, check_state
from jax_revolve.layers.measure import measure
from jax_revolve.layers.segment import run_segment
from jax_revolve.loops.options import Options
from jax_revolve.schedule import binomial, chain
from jax_revolve.schedule.arguments import parse_bytes
from jax_revolve.schedule.chain import Layers, Schedule

Carry = tuple[Any, Any]
"""The value that goes from layer to layer, and the state, or `None`."""

MOST_RUNS = 25
"""The most runs of a layer. As often it is inside one segment after the other, each of which takes
about 30 of the 1000 calls that Python allows inside each other while JAX traces it."""


def run_heterogeneous(
    calls: Sequence[Callable[..., Any]], x: Any, asked: Options, key: Any, state: Any
) -> Carry:
    """The carry after the last layer."""
    if not calls:
        raise ValueError("layers must be at least one layer, but there is none.")
    for name in ("block_size", "storage", "plan", "progress"):
        if value := getattr(asked, name):
            raise ValueError(
                f"{name} must not be given for a list of layers, but is {value!r}: their schedule "
                "depends on the sizes of each. Pass checkpoints or memory, or a stack of "
                "identical layers."
            )
    layers = [Layer.of(i, call) for i, call in enumerate(calls)]
    check_state(layers, state)
    keys = [None] * len(layers) if key is None else list(jax.random.split(key, len(layers)))
    schedule: Schedule = tuple(range(len(layers)))
    if not is_jit_disabled():
        schedule = schedule_for(measure(layers, x, keys, state), asked)

    def run(entries: Schedule, carry: Carry) -> Carry:
        for entry in entries:
            carry = run_entry(entry, carry)
        return carry

    def run_entry(entry: int | Schedule, carry: Carry) -> Carry:
        """With the state of its own layers, so that a segment holds no other state."""
        x, state = carry
        numbers = [entry] if isinstance(entry, int) else chain.layers_in(entry)
        stateful = [layers[i].call for i in numbers if layers[i].is_stateful]
        own = state.substate(stateful) if stateful else None
        if isinstance(entry, int):
            x, own = layers[entry].run(x, keys[entry], own)
        else:
            x, own = run_segment(lambda carry: run(entry, carry), (x, own))
        return x, state.update(own) if stateful else state

    return run(schedule, (x, state))


def schedule_for(sizes: Layers, asked: Options) -> Schedule:
    """What the arguments ask for."""
    count = len(sizes.work)
    if asked.memory is not None:
        schedule = chain.within(sizes, parse_bytes(asked.memory))
    elif asked.checkpoints is None:
        return chain.by_default(sizes)
    else:
        wanted = count if asked.checkpoints == "all" else asked.checkpoints
        schedule = chain.with_checkpoints(sizes, wanted)
    most = max(chain.runs(schedule))
    if most > MOST_RUNS:
        name = "checkpoints" if asked.memory is None else "memory"
        fewest = binomial.fewest_checkpoints(count, MOST_RUNS - 1)
        raise ValueError(
            f"{name} must be more for these {count} layers, but is {getattr(asked, name)!r}: a "
            f"layer would run {most} times, and a program can hold at most {MOST_RUNS} runs of "
            f"each. About {fewest} checkpoints are enough; or make a stack of equal layers."
        )
    return schedule
