"""What several loops take together, one after another or one inside another.

An *outlay* of a loop is a choice of plans for it and everything inside it, with its bytes and its
predicted time. We find outlays from the inside out, as in a knapsack problem, independently of the
budget, and then take the fastest that fits. So a larger budget is never predicted slower.

Loops one after another hold their checkpoints at the same time, but are reversed one by one. The
checkpoints of an inner loop are residuals of an outer step, so they are multiplied by the outer
block size. Each outer step, with the loops inside, is transposed once, so the time of an inner
gradient counts once for each outer step, regardless of the outer plan.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import inf, log
from typing import TypeAlias

from jax_revolve.programs.find import FoundLoop, Key
from jax_revolve.schedule import cost
from jax_revolve.schedule.cost import Sizes
from jax_revolve.schedule.plan import Plan

FINEST = 1.02
"""Of outlays whose bytes differ by less than this factor, we keep only the fastest. The factor
grows until few enough are left."""

FEW = 40
MANY = 1000
"""The most outlays to keep: `FEW` of loops that are combined with others, `MANY` of the program."""


@dataclass(frozen=True)
class Outlay:
    """The cost of loops: the bytes `held` between their sweeps, the additional bytes `passing`
    during a reverse sweep, the predicted time, and the plan of each loop."""

    held: int = 0
    passing: int = 0
    time: float = 0.0
    plans: tuple[tuple[Key, Plan], ...] = ()

    @property
    def memory(self) -> int:
        return self.held + self.passing


Outlays: TypeAlias = list[Outlay]
"""The outlay with the least memory, the one with the default plans, and others."""


def quickest(outlays: Outlays, memory: int) -> Outlay | None:
    return min((o for o in outlays if o.memory <= memory), key=_order, default=None)


def of_plan(plan: Plan, sizes: Sizes, inner: Outlay, *, is_while: bool) -> Outlay:
    """The outlay of a loop of these sizes around `inner`."""
    held = cost.held(plan, sizes, is_while=is_while)
    passing = cost.passing(plan, sizes, is_while=is_while)
    time = cost.time(plan, sizes, is_while=is_while)
    # The loops in a step are reversed from a copy of their slice of the block's tape.
    inside = inner.memory if plan.block_size > 1 else inner.passing
    return Outlay(held, passing + inside, time + plan.length * inner.time)


def of_each_step(inner: Outlay, steps: int) -> Outlay:
    """The outlay of loops in a loop of lax, which keeps `inner.held` for every step, and reverses a
    step from a copy."""
    return Outlay(inner.held * steps, inner.memory, inner.time * steps, inner.plans)


def together(loops: Sequence[Outlays], most: int) -> Outlays:
    """The outlays of loops one after another."""
    while len(loops) > 1:
        pairs = [loops[i : i + 2] for i in range(0, len(loops), 2)]
        loops = [_both(*pair) if len(pair) > 1 else pair[0] for pair in pairs]
    least, default, *others = loops[0] if loops else [Outlay(), Outlay()]
    return [least, default, *_quickest(others, most)]


def _both(first: Outlays, second: Outlays) -> Outlays:
    every = product(_quickest(first, FEW), _quickest(second, FEW))
    return [
        Outlay(a.held + b.held, max(a.passing, b.passing), a.time + b.time, a.plans + b.plans)
        for a, b in [(first[0], second[0]), (first[1], second[1]), *every]
    ]


def _quickest(outlays: Iterable[Outlay], most: int) -> list[Outlay]:
    """At most `most` undominated outlays, each the fastest for about the same bytes."""
    kept, closeness = sorted(outlays, key=_order), FINEST
    while True:
        unit, quickest = log(closeness), dict[tuple[int, int], Outlay]()
        for o in kept:
            quickest.setdefault((int(log(o.held + 1) / unit), int(log(o.memory + 1) / unit)), o)
        kept, helds, memories = [], [0], [inf]  # the last two are those that no other one is below
        for o in quickest.values():
            at = bisect_right(helds, o.held)
            if memories[at - 1] <= o.memory:
                continue
            kept.append(o)
            end = at
            while end < len(helds) and memories[end] >= o.memory:
                end += 1
            helds[at:end], memories[at:end] = [o.held], [o.memory]
        if len(kept) <= most:
            return kept
        closeness **= 1.5


def _order(outlay: Outlay) -> tuple[float, int, int]:
    return outlay.time, outlay.memory, outlay.held


def around(loop: FoundLoop, loops: Container[Key]) -> list[Key]:
    """The keys of loops and recomputed equations around a loop, outermost first."""
    keys = (loop.key[:end] for end in range(1, len(loop.key)))
    return [key for key in keys if key in loops or key in loop.recomputed]


def of_program(
    loops: Sequence[FoundLoop], of_loop: Callable[[FoundLoop, Outlays], Outlays]
) -> Outlays:
    """The outlays of a program. Recomputed equations hold nothing between the sweeps."""
    by_key = {loop.key: loop for loop in loops}
    inside = defaultdict[Key, dict[Key, None]](dict)
    for loop in loops:
        for outer, inner in pairwise([(), *around(loop, by_key), loop.key]):
            inside[outer][inner] = None

    def of(key: Key) -> Outlays:
        inner = together(list(map(of, inside[key])), FEW)
        if key in by_key:
            return of_loop(by_key[key], inner)
        return [Outlay(0, o.memory, o.time, o.plans) for o in inner]

    return together(list(map(of, inside[()])), MANY)
