"""Online placement, against the offline optimum."""

import math
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import pytest

from jax_revolve.schedule import binomial, online

LONGEST = 1500
CHECKPOINTS = (3, 4, 7, 12)


def held_along(checkpoints: int, longest: int) -> Iterator[tuple[int, list[int]]]:
    """For every number of steps, the positions that a loop which stops there holds."""
    held = [0]
    upcoming = online.next_store(held, checkpoints)
    for steps in range(longest + 1):
        if steps > upcoming:
            held = online.store(held, checkpoints, upcoming)
            upcoming = online.next_store(held, checkpoints)
        yield steps, held


@cache
def excesses(checkpoints: int, longest: int = LONGEST, stride: int = 1) -> dict[int, float]:
    """How much more loops of so many steps take than the fewest evaluations if the value has to be
    complete before the reverse sweep starts, as a fraction."""
    counted = {
        steps: steps + online.reverse_evaluations(held, steps, checkpoints)
        for steps, held in held_along(checkpoints, longest)
        if steps % stride == 0 and steps
    }
    return {
        n: count / (n + binomial.advances(n + 1, checkpoints)) - 1 for n, count in counted.items()
    }


@pytest.mark.parametrize("checkpoints", [2, *CHECKPOINTS])
def test_exact_for_short_loops(checkpoints: int) -> None:
    found = excesses(checkpoints)
    assert not any(found[n] for n in range(1, math.comb(checkpoints + 2, 2) + 1))


@pytest.mark.parametrize("checkpoints", [1, 2, *CHECKPOINTS])
def test_longer_loops_are_near_the_optimum(checkpoints: int) -> None:
    """With three checkpoints no online schedule has less than one evaluation too many in 32."""
    almost = math.comb(checkpoints + 3, 3) - 4
    near = {1: 0, 2: 0.11, 3: 1 / 32}.get(checkpoints, 0.025)
    found = excesses(checkpoints)
    assert max((found[n] for n in found if n <= almost), default=0) <= near
    beyond = [found[n] for n in found if n > almost]
    assert sum(beyond) / len(beyond) <= 0.016
    assert max(beyond) <= max(0.06, near)
    assert max(excesses(40, 20000, stride=97).values()) <= 0.002


@pytest.mark.parametrize("checkpoints", [1, 2, *CHECKPOINTS])
def test_invariants(checkpoints: int) -> None:
    """No gap but the last is longer than the limit of the level, and the last at most 2 q."""
    for n, held in held_along(checkpoints, LONGEST if checkpoints > 1 else 50):
        if n < 200:  # that is what a loop that stops anywhere holds
            assert online.positions_held(n, checkpoints) == held
        assert held[0] == 0
        assert len(held) == min(max(n, 1), checkpoints)
        assert max(held) < max(n, 1)
        if checkpoints > 1:
            q = online.level(n, checkpoints)
            gaps = [stop - start for start, stop in pairwise(held)]
            limits = [binomial.beta(slots, q) for slots in range(checkpoints, 0, -1)]
            assert all(0 < g <= limit for g, limit in zip(gaps, limits, strict=False))
            assert n - held[-1] <= 2 * q


@pytest.mark.parametrize(("checkpoints", "level"), [(2, 5), (4, 1), (4, 3), (9, 2)])
def test_landmarks_are_the_offline_schedule(checkpoints: int, level: int) -> None:
    longest = binomial.beta(checkpoints, level + 1)
    assert online.level(longest - 1, checkpoints) == level
    assert online.level(longest, checkpoints) == level + 1
    # The last gap ends at the step that is taped first, which needs no checkpoint.
    stored = [*binomial.first_positions(longest, checkpoints), longest - 1]
    assert [0, *online.landmarks(level, checkpoints)] == stored


@pytest.mark.parametrize(("steps", "checkpoints", "most"), [(90, 12, 0.65), (2000, 10, 0.18)])
def test_stores_are_few(steps: int, checkpoints: int, most: float) -> None:
    """At level q, every 2 q steps, but for landmarks and the first checkpoints."""
    held, stores = [0], 0
    while (position := online.next_store(held, checkpoints)) < steps:
        held, stores = online.store(held, checkpoints, position), stores + 1
    assert stores <= most * steps
