"""A chain of different layers, run by the cheapest schedule for their sizes."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax

from jax_revolve._compat import is_jit_disabled
from jax_revolve.layers.layer import Layer, check_state, is_array
from jax_revolve.layers.measure import measure
from jax_revolve.layers.segment import run_segment
from jax_revolve.loops.options import Options
from jax_revolve.schedule import binomial, chain
from jax_revolve.schedule.arguments import parse_bytes
from jax_revolve.schedule.chain import Layers, Schedule

Carry = tuple[Any, Any]
"""The value that goes from layer to layer, and the state, or `None`."""


def run_heterogeneous(
    calls: Sequence[Callable[..., Any]],
    x: Any,
    asked: Options,
    key: Any,
    state: Any,
) -> tuple[Any, Any]:
    """The carry after the last layer, and the state."""
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
    return _Run(layers, keys).entries(schedule, (x, state))


MOST_RUNS = 25
"""The most runs of a layer. As often it is inside one segment after the other, each of which takes
about 30 of the 1000 calls that Python allows inside each other while JAX traces it."""


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


class _Run:
    """Runs the layers by a schedule."""

    def __init__(self, layers: Sequence[Layer], keys: Sequence[Any]) -> None:
        self._layers, self._keys = layers, keys

    def entries(self, schedule: Schedule, carry: Carry) -> Carry:
        for entry in schedule:
            numbers = [entry] if isinstance(entry, int) else list(chain.layers_in(entry))
            carry = self._with_own_state(numbers, entry, carry)
        return carry

    def _with_own_state(self, numbers: list[int], entry: int | Schedule, carry: Carry) -> Carry:
        """Run an entry of the schedule with the state of its own layers, so that a segment holds no
        other state."""
        x, state = carry
        run = self._layer if isinstance(entry, int) else self._segment
        stateful = [self._layers[i].call for i in numbers if self._layers[i].is_stateful]
        if not stateful:
            return run(entry, (x, None))[0], state
        x, own = run(entry, (x, state.substate(stateful)))
        return x, state.update(own)

    def _layer(self, number: Any, carry: Carry) -> Carry:
        return self._layers[number].run(carry[0], self._keys[number], carry[1])

    def _segment(self, schedule: Any, carry: Carry) -> Carry:
        arrays, rest = eqx.partition(carry, is_array)
        rest_after: list[Any] = []

        def run(arrays: Any) -> Any:
            after, of_after = eqx.partition(
                self.entries(schedule, eqx.combine(arrays, rest)), is_array
            )
            rest_after.append(of_after)
            return after

        return eqx.combine(run_segment(run, arrays), rest_after[0])
