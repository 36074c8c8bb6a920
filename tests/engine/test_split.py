"""The splits of the schedule on the device, from a table."""

import jax.numpy as jnp
import pytest

from jax_revolve import Plan
from jax_revolve.engine.split import SplitTable
from jax_revolve.schedule import binomial


@pytest.mark.parametrize(
    ("length", "checkpoints"), [(50, 1), (50, 2), (60, 7), (200, 30), (10**9, 12), (10**6, 3)]
)
def test_the_table_of_splits(length: int, checkpoints: int) -> None:
    """Of the splits that a schedule asks for, on the device."""
    table = SplitTable(Plan(length, checkpoints), checkpoints)
    repetitions = binomial.repetition(length + 1, checkpoints)
    for free in range(2, checkpoints + 1):
        longest = min(binomial.beta(free, repetitions), length + 1)
        asked = {2, 3, 5, longest // 3, longest // 2, longest - 1, longest}
        for steps in (n for n in asked if 2 <= n <= longest):
            distance, top = jnp.int32([steps - 1]), jnp.int32([checkpoints - free])
            assert table(distance, top).tolist() == [binomial.split(steps, free)]
