"""The schedules of chains, executed by an abstract machine, against brute force and Revolve."""

import random
from collections.abc import Iterator
from functools import cache
from math import inf
from typing import Any

import pytest

from jax_revolve.schedule import binomial, chain
from jax_revolve.schedule.chain import Layers, Schedule


class Machine:
    """Executes a schedule: counts the runs of every layer, and the most bytes held at once."""

    def __init__(self, layers: Layers, schedule: Schedule) -> None:
        self.layers, self.runs = layers, [0] * len(layers.work)
        self.held = self.peak = layers.carry[0]
        self.left = len(layers.work)
        self._reverse(schedule)
        assert (self.held, self.left) == (layers.carry[0], 0)
        assert list(chain.runs(schedule)) == self.runs
        self.work = sum(u * n for u, n in zip(layers.work, self.runs, strict=True))

    def _reverse(self, schedule: Schedule) -> None:
        """The carry that the first layer takes is held."""
        held: list[int] = []
        for i, entry in enumerate(schedule):
            numbers = [entry] if isinstance(entry, int) else list(chain.layers_in(entry))
            assert numbers == list(range(numbers[0], numbers[-1] + 1))
            for number in numbers:
                self.runs[number] += 1
            held.append(self.layers.residuals[entry] if isinstance(entry, int) else 0)
            held[-1] += self.layers.carry[numbers[-1] + 1] if i + 1 < len(schedule) else 0
            self.held += held[-1]
            self.peak = max(self.peak, self.held)
        for entry, size in zip(reversed(schedule), reversed(held), strict=True):
            self.held -= size
            if isinstance(entry, int):
                self.left -= 1
                assert entry == self.left
            else:
                self._reverse(entry)


def every_schedule(start: int, stop: int) -> Iterator[Schedule]:
    if stop == start + 1:
        yield (start,)
        return
    for rest in every_schedule(start + 1, stop):
        yield (start, *rest)
    for middle in range(start + 1, stop):
        for advanced in every_schedule(start, middle):
            for rest in every_schedule(middle, stop):
                yield (advanced, *rest)


def random_layers(count: int, seed: int, most: int = 9) -> Layers:
    draw = random.Random(seed)

    def numbers(least: int) -> tuple[int, ...]:
        return tuple(draw.randint(least, most) for _ in range(count))

    return Layers(work=numbers(1), carry=numbers(0), residuals=numbers(0))


@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_least_work_within_memory_is_that_of_brute_force(count: int) -> None:
    for seed in range(3):
        layers = random_layers(count, seed)
        found = [Machine(layers, s) for s in every_schedule(0, count)]
        least, most = (f(machine.peak for machine in found) for f in (min, max))
        assert chain.least_memory(layers) == least
        for memory in range(least, most + 2):
            ours = Machine(layers, chain.within(layers, memory))
            assert ours.peak <= memory
            assert ours.work == min(m.work for m in found if m.peak <= memory)
        with pytest.raises(ValueError, match=f"memory must be at least {least} bytes"):
            chain.within(layers, least - 1)


@pytest.mark.parametrize("seed", range(4))
def test_large_sizes_are_rounded_without_loss(seed: int) -> None:
    """The least memory had the dearest schedule, because no unit divides all sizes."""
    layers = random_layers(12, seed, most=10**6)

    @cache
    def cost(start: int, stop: int, left: int) -> float:
        if stop == start + 1:
            return layers.work[start] if layers.residuals[start] <= left else inf
        most = left - layers.hold[start]
        found = [layers.work[start] + cost(start + 1, stop, most)] if most >= 0 else []
        for k in range(start + 1, stop):
            if (rest := left - layers.carry[k]) >= 0:
                later = sum(layers.work[start:k]) + cost(k, stop, rest)
                found.append(later + cost(start, k, left) if later < inf else inf)
        return min(found, default=inf)

    least = chain.least_memory(layers)
    for memory in (least, least * 21 // 20, least * 3 // 2):
        ours = Machine(layers, chain.within(layers, memory))
        assert ours.peak == chain.memory_of(chain.within(layers, memory), layers) <= memory
        assert ours.work <= 1.02 * cost(0, 12, memory - layers.carry[0])


@pytest.mark.parametrize("count", [30, 100])
def test_the_least_memory_of_many_layers(count: int) -> None:
    layers = random_layers(count, seed=count, most=10**6)
    ours = Machine(layers, chain.within(layers, chain.least_memory(layers)))
    assert ours.work < 0.35 * sum(layers.work[i] * (count - i) for i in range(count))


@pytest.mark.parametrize("count", [1, 2, 5, 13, 48])
def test_equal_layers_are_reversed_by_revolve(count: int) -> None:
    layers = Layers((1,) * count, (1,) * count, (100,) * count)
    for checkpoints in {1, 2, 3, 5, 10, count - 1, count, count + 1} - {0}:
        work = Machine(layers, chain.with_checkpoints(layers, checkpoints)).work
        assert work == count + binomial.advances(count, min(checkpoints, count))


@pytest.mark.parametrize("count", [2, 7, 15])
def test_least_work_with_checkpoints_is_that_of_the_recursion(count: int) -> None:
    layers = random_layers(count, seed=count, most=50)

    @cache
    def least(start: int, stop: int, checkpoints: int) -> Any:
        if stop == start + 1:
            return layers.work[start]
        if checkpoints == 1:
            return sum(layers.work[start:stop]) + least(start, stop - 1, 1)
        return min(
            sum(layers.work[start:k])
            + least(k, stop, checkpoints - 1)
            + least(start, k, checkpoints)
            for k in range(start + 1, stop)
        )

    for checkpoints in range(1, count + 1):
        schedule = chain.with_checkpoints(layers, checkpoints)
        assert Machine(layers, schedule).work == least(0, count, checkpoints)


@pytest.mark.parametrize("count", [1, 2, 3, 10, 47])
def test_by_default_no_layer_runs_more_than_twice_on_average(count: int) -> None:
    layers = random_layers(count, seed=count, most=1000)
    ours = Machine(layers, chain.by_default(layers))
    assert ours.work <= 2 * sum(layers.work)
    if count > 9:
        everything = Machine(layers, tuple(range(count)))
        assert ours.peak <= 0.4 * everything.peak
    if count in (2, 3):
        once = [Machine(layers, s) for s in every_schedule(0, count)]
        assert ours.peak <= min(m.peak for m in once if max(m.runs) <= 2)
        nothing = Layers((1,) * count, (0,) * count, (0,) * count)
        assert chain.within(nothing, 0) == chain.by_default(nothing) == tuple(range(count))


def test_long_chains_keep_to_their_budget() -> None:
    layers = random_layers(200, seed=1, most=10**6)
    for share, most in [(0.03, 2.4), (0.3, 1.65)]:
        memory = int(share * (sum(layers.residuals) + sum(layers.carry)))
        ours = Machine(layers, chain.within(layers, memory))
        assert ours.peak <= memory
        assert ours.work <= most * sum(layers.work)


def test_long_chains_of_equal_layers_are_reversed_by_revolve() -> None:
    """With one or two checkpoints, schedules are nested deeper than Python's calls may be."""
    layers = Layers((7,) * 1500, (1,) * 1500, (0,) * 1500)
    for checkpoints in (1, 2, 40):
        schedule = chain.with_checkpoints(layers, checkpoints)
        assert chain.work_of(schedule, layers) == 7 * (1500 + binomial.advances(1500, checkpoints))
        assert [*chain.layers_in(schedule)] == [*range(1500)]


@pytest.mark.parametrize("most_terms", [10**9, 10**5])
def test_more_checkpoints_never_take_more_work(
    most_terms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do they if the table has no room for all of them."""
    monkeypatch.setattr(chain, "MOST_TERMS", most_terms)
    layers = random_layers(60, seed=3, most=50)
    work = [
        chain.work_of(chain.with_checkpoints(layers, checkpoints), layers)
        for checkpoints in (1, 2, 3, 5, 8, 13, 20, 30, 40, 58, 59, 60)
    ]
    assert work == sorted(work, reverse=True)
    assert work[-1] == 2 * sum(layers.work) - layers.work[-1]
