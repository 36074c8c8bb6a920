"""A schedule taken apart in the order in which it runs, for drawing.

A *part* is split at its next checkpoint: the blocks above are reversed first, those below later.
The cost of a part is a formula. So parts that are too small to be seen are never split, however
long the loop.
"""

from collections.abc import Iterator
from typing import NamedTuple

from jax_revolve.schedule import binomial
from jax_revolve.schedule.actions import Action, Advance, Free, Store, Tape
from jax_revolve.schedule.plan import Plan, Reversal
from jax_revolve.schedule.two_level import TwoLevelPlan


class Part(NamedTuple):
    """The blocks `start`, ..., `stop - 1`, to be reversed with `slots` slots, including the one
    that holds the start. These blocks and all parts below take `left` evaluations. A part whose
    start is in no slot begins with an advance from block `source`."""

    start: int
    stop: int
    slots: int
    left: int
    source: int | None


class Parts:
    """The rest of a loop, yet to be reversed: a stack of parts."""

    def __init__(self, plan: Reversal) -> None:
        self.plan = plan
        self.stack: list[Part] = []
        for source, start, stop in _from_a_source(plan):
            self.push(start, stop, plan.checkpoints, source)

    @property
    def left(self) -> int:
        return self.stack[-1].left if self.stack else 0

    @property
    def held(self) -> list[int]:
        """The starts that are in slots."""
        return [part.start for part in self.stack if part.source is None]

    def push(self, start: int, stop: int, slots: int, source: int | None = None) -> None:
        if start < stop:
            left = self.left + self.evaluations(start, stop, slots)
            left += 0 if source is None else self.plan.block_size * (start - source)
            self.stack.append(Part(start, stop, slots, left, source))

    def evaluations(self, start: int, stop: int, slots: int) -> int:
        k = self.plan.block_size
        taped = min(k * stop, self.plan.length) - k * start
        return taped + k * binomial.advances(stop - start, max(slots, 1))

    def leave(self, target: int, least: int) -> tuple[list[int], int | None]:
        """Run until the block `target` has been taped, and with it the part around it, once that
        has at most `least` blocks. Returns the checkpoints that were held before, and the lowest
        source of the parts that were begun."""
        lowest = None
        while self.stack[-1].start > target:
            source = self.stack.pop().source
            lowest = lowest if source is None else source
        start, stop, slots, _, source = self.stack.pop()
        lowest = lowest if source is None else source
        held = True
        while stop - start > least and slots > 1:
            position = start + binomial.split(stop - start, slots)
            if target < position:
                stop = position
            else:
                self.push(start, position, slots)
                held = stop - position > 1
                start, slots = position, slots - 1
        positions = self.held
        if slots == 1:
            self.push(start, target, slots)
        return [*positions, start] if held else positions, lowest


class Actions:
    """What `Parts` tells, of a plan on levels: found by running its actions."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._actions = plan, iter(plan)
        self._slots: dict[int, int] = {}
        self._last: Free | Action | None = None
        self.left = plan.evaluations

    @property
    def held(self) -> list[int]:
        """The blocks whose starts are in slots."""
        return sorted(self._slots.values())

    def leave(self, target: int, least: int) -> tuple[list[int], int | None]:
        """Run until the block `target` has been taped, or the end of the loop reached. Returns the
        checkpoints that were held before."""
        del least
        size, held = self._plan.block_size, self.held
        is_reached = False
        while True:
            action = self._last or next(self._actions, None)
            self._last = None
            if action is None or (is_reached and not isinstance(action, Free)):
                self._last = action
                return held, None
            match action:
                case Store(slot, position):
                    self._slots[slot] = position // size
                case Free(slot):
                    del self._slots[slot]
                case Advance(start, stop):
                    self.left -= stop - start
                    if target == self._plan.blocks and stop == self._plan.length:
                        is_reached, held = True, self.held
                case Tape(start, stop):
                    self.left -= stop - start
                    if start == size * target:
                        is_reached, held = True, self.held
                case _:
                    pass


def stores(plan: Reversal) -> tuple[int, ...]:
    """The blocks whose entering carries are in a storage."""
    return plan.stores if isinstance(plan, TwoLevelPlan) else ()


def _from_a_source(plan: Reversal) -> Iterator[tuple[int, int, int]]:
    """The parts whose start is in no slot before they begin, the lowest first."""
    tail = 0
    if isinstance(plan, TwoLevelPlan):
        tail = plan.tail
        for store, start, stop in reversed(plan.moves):
            yield plan.stores[store], start, stop
    yield 0, tail, plan.scheduled_blocks
