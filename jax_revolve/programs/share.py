"""One amount of memory for several loops: after each other, in each other, and in other programs.

A loop's *outlays* are what it can do with, everything inside of it included: bytes, and the
predicted time with so many. They are found from the inside out, as in a knapsack problem, and none
depends on the amount of memory: of all that fit the quickest is taken, which is never slower if
more fit.

Loops after each other hold their checkpoints at the same time, but are reversed one by one. What a
loop holds in another one is part of the residuals of a step of that, and exists once for each step
that is taped at a time. Each step is transposed once, and with it what is in it: the time of the
gradient inside counts once for each step, whatever the plan for the loop around it.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import log
from typing import NamedTuple

from jax_revolve.schedule import cost
from jax_revolve.schedule.cost import Sizes
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.selection import candidates

FINEST = 1.02
"""Of outlays whose bytes differ by less than this factor, or one so large that few are left, only
the quickest is kept."""

FEW = 40
MANY = 1000
"""How many are few: of loops in other loops or beside them, and of those that memory is given to in
the end."""


@dataclass(frozen=True)
class Outlay:
    """What loops take: the bytes that are held from their forward sweeps to their reverse sweeps,
    those that pass while a loop is reversed, the predicted time, and the plans for it by loop."""

    held: int = 0
    passing: int = 0
    time: float = 0.0
    plans: tuple[tuple[Hashable, Plan], ...] = ()

    @property
    def memory(self) -> int:
        return self.held + self.passing


class Outlays(NamedTuple):
    """The outlay that takes the least memory, that of the plans that loops get by default, and
    others."""

    least: Outlay
    default: Outlay
    others: Sequence[Outlay] = ()

    def __call__(self, change: Callable[[Outlay], Outlay]) -> "Outlays":
        return Outlays(change(self.least), change(self.default), list(map(change, self.others)))

    @property
    def all(self) -> list[Outlay]:
        return [self.least, self.default, *self.others]

    def quickest(self, memory: int) -> Outlay | None:
        """The quickest that takes no more memory than this."""
        fitting = (outlay for outlay in self.all if outlay.memory <= memory)
        return min(fitting, key=_order, default=None)


@dataclass(frozen=True)
class SharingLoop:
    """A loop that shares, of so many steps at most, perhaps with a given block: what its default
    plan is, and its sizes, where what is inside of it holds so many bytes."""

    key: Hashable
    length: int
    block_size: int | None
    is_while: bool
    default: Callable[[Sizes], Plan]
    sizes: Callable[[int], Sizes]

    @property
    def least(self) -> Plan:
        return Plan(self.length, 1, self.block_size or 1)

    def outlays(self, inside: Outlays) -> Outlays:
        """Given those for everything that is in it."""
        least = self._outlay(self.least, self.sizes(inside.least.held), inside.least)
        sizes = self.sizes(inside.default.held)
        default = self._outlay(self.default(sizes), sizes, inside.default)
        return Outlays(least, default, list(self._others(inside)))

    def _others(self, inside: Outlays) -> Iterator[Outlay]:
        plans = candidates(self.length, block_size=self.block_size, is_while=self.is_while)
        for inner in inside.all:
            sizes = self.sizes(inner.held)
            for plan in (*plans, self.default(sizes)):
                yield self._outlay(plan, sizes, inner)

    def _outlay(self, plan: Plan, sizes: Sizes, inner: Outlay) -> Outlay:
        outlay = of_plan(plan, sizes, inner, is_while=self.is_while)
        return replace(outlay, plans=((self.key, plan), *inner.plans))


def of_plan(plan: Plan, sizes: Sizes, inner: Outlay, *, is_while: bool) -> Outlay:
    """Of a loop of these sizes, given what is in it."""
    held = cost.held(plan, sizes, is_while=is_while)
    passing = cost.passing(plan, sizes, is_while=is_while)
    time = cost.time(plan, sizes, is_while=is_while)
    # What is in a step is reversed in a copy of what the tape of a block has of it.
    inside = inner.memory if plan.block_size > 1 else inner.passing
    return Outlay(held, passing + inside, time + plan.length * inner.time)


def of_each_step(inner: Outlay, steps: int) -> Outlay:
    """Of what is in a loop of lax's: it keeps what each step holds, and reverses in a copy."""
    return Outlay(inner.held * steps, inner.memory, inner.time * steps, inner.plans)


def recomputed(outlay: Outlay) -> Outlay:
    """Of what is run again when it is transposed, and holds nothing before."""
    return Outlay(0, outlay.memory, outlay.time, outlay.plans)


def together(loops: Sequence[Outlays], most: int) -> Outlays:
    """Of loops after each other."""
    if not loops:
        return Outlays(Outlay(), Outlay())
    while len(loops) > 1:
        pairs = [loops[i : i + 2] for i in range(0, len(loops), 2)]
        loops = [_both(*pair) if len(pair) > 1 else pair[0] for pair in pairs]
    return loops[0]._replace(others=_quickest(loops[0].others, most))


def _both(first: Outlays, second: Outlays) -> Outlays:
    def both(a: Outlay, b: Outlay) -> Outlay:
        passing = max(a.passing, b.passing)
        return Outlay(a.held + b.held, passing, a.time + b.time, a.plans + b.plans)

    firsts, seconds = (_quickest(outlays.all, FEW) for outlays in (first, second))
    others = [both(a, b) for a, b in product(firsts, seconds)]
    return Outlays(both(first.least, second.least), both(first.default, second.default), others)


def _quickest(outlays: Sequence[Outlay], most: int) -> list[Outlay]:
    """The quickest of those that take about as many bytes, so closely that they are not too
    many."""
    closeness = FINEST
    kept = _quickest_of_the_like(outlays, closeness)
    while len(kept) > most:
        closeness **= 1.5
        kept = _quickest_of_the_like(kept, closeness)
    return kept


def _quickest_of_the_like(outlays: Iterable[Outlay], closeness: float) -> list[Outlay]:
    """None of those that are kept takes as little or less of everything than another one."""
    unit = log(closeness)
    quickest: dict[tuple[int, int], Outlay] = {}
    for o in outlays:
        place = (int(log(o.held + 1) / unit), int(log(o.memory + 1) / unit))
        if place not in quickest or _order(o) < _order(quickest[place]):
            quickest[place] = o
    kept: list[Outlay] = []
    for o in sorted(quickest.values(), key=_order):
        if not any(k.held <= o.held and k.memory <= o.memory for k in kept):
            kept.append(o)
    return kept


def _order(outlay: Outlay) -> tuple[float, int, int]:
    return outlay.time, outlay.memory, outlay.held
