"""Every carry is stored that enters a part of the loop, in loops of static length.

With parts of single steps, this is `lax.scan` without the residuals. On levels, the parts of a
level are reversed by the next one, and each slot belongs to one place for good (`schedule.levels`).
A GPU runs these loops without waiting for its host.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from jax_revolve.engine.buffers import Slots, are_on_host, empty, write_slot
from jax_revolve.engine.placement import Stack, in_order
from jax_revolve.engine.sweep import Advances, Reverse, State, Way
from jax_revolve.schedule.levels import Level, levels_of
from jax_revolve.schedule.plan import Plan
from jax_revolve.step.cpu import turns
from jax_revolve.step.loop import for_loop


@dataclass(frozen=True)
class Every(Way):
    """One level, and the way of reversing its parts; `None` where the parts are blocks."""

    plan: Plan
    level: Level
    is_last_run: bool
    """Whether the forward sweep runs the last block by its own way."""
    inner: "Every | None"

    @classmethod
    def of(cls, plan: Plan, *, is_while: bool) -> "Every | None":
        every, levels, is_last_run = None, list[Level](), plan.block_size > 1 and not is_while
        if not is_while:
            levels = levels_of(plan.blocks, plan.static_levels, plan.stride)
        elif plan.stores_every_block(is_while=True):
            levels = [Level(plan.block_size)]  # as many parts as there are at run time
        for level in reversed(levels):
            every = cls(plan, level, is_last_run, every)
        return every

    @property
    def _left(self) -> int:
        """The parts that are left once the last one is reversed: by the next level, or as the last
        block of the forward sweep."""
        return self.level.last - (self.inner is not None or self.is_last_run)

    @property
    def advances(self) -> list[Advances]:
        """The advances of the forward sweep: on each level, to the start of its last part."""
        level, inner = self.level, [] if self.inner is None else self.inner.advances
        own = Advances(level.start, level.size, self._left, level.enclosing, level.base)
        return [own, *inner] if own.number else inner

    # In a while loop

    def placing(self) -> tuple[Stack, Callable[[Stack], Stack]]:
        return in_order(self.plan.block_size, self.plan.length)

    def empty(self, carry: list[Any]) -> Slots:
        return empty(self.plan.blocks, carry, self.plan)

    # The reverse sweep

    def reverse(self, sweep: Reverse, first: Any, count: Any, state: State) -> State:
        if sweep.is_while:
            return self._parts(sweep, 0, first, count, state)
        if self.inner is not None:
            state = self.inner.reverse(sweep, first, count, state)
        if not self._left:
            return state
        level = self.level
        start = level.start // sweep.block.size
        return self._parts(sweep, level.enclosing, start, self._left, state)

    def _parts(self, sweep: Reverse, enclosing: Any, start: Any, count: Any, state: State) -> State:
        """Reverse the first `count` parts, the last one first. They lie in the part of the level
        above that starts at block `start`, with its checkpoint in slot `enclosing`."""
        level, inner = self.level, self.inner
        blocks = level.size // sweep.block.size
        is_far = are_on_host(state.slots)

        def slot_of(part: Any) -> Any:
            if isinstance(enclosing, int) and enclosing == level.base:
                return level.base + part
            return jnp.where(part == 0, enclosing, level.base + part)

        def reverse_part(turn: Any, fetched: tuple[Any, State]) -> tuple[Any, State]:
            part, (restarted, state) = count - 1 - turn, fetched
            first = start + blocks * part
            if is_far:  # fetch the next checkpoint while this part is reversed
                ahead = sweep.at(slot_of(jnp.maximum(part - 1, 0)), state)
            else:
                restarted, ahead = sweep.at(slot_of(part), state), None
            # Histories are in the first block after this part, or before.
            most = level.size + sweep.block.most
            restarted = sweep.restart(restarted, first, state, most)
            if inner is None:
                return ahead, sweep.reverse_block(restarted, first, state)
            restarted, slots = inner.fill(sweep, first, restarted, state.slots)
            last = sweep.block.size * first + inner.level.size * (inner.level.parts - 1)
            state = state._replace(slots=slots, past=sweep.reached(restarted, last)[1])
            return ahead, inner._parts(sweep, slot_of(part), first, inner.level.parts, state)

        fetched = sweep.at(slot_of(count - 1), state) if is_far else None
        return turns(count, reverse_part, (fetched, state))[1]

    def fill(self, sweep: Reverse, start: Any, restarted: list[Any], slots: Slots) -> Any:
        """The slots with the checkpoints of all parts, in the whole part of the level above that
        starts at block `start`, computed from what steps go on from there, and where that gets."""
        level, first = self.level, sweep.block.size * start

        def advance(j: Any, state: tuple[list[Any], Slots]) -> tuple[list[Any], Slots]:
            restarted, slots = state
            restarted = sweep.steps.advance_by(level.size, first + level.size * j, restarted)
            checkpoint, _ = sweep.steps.apart(restarted)
            return restarted, write_slot(slots, checkpoint, level.base + 1 + j)

        return for_loop(0, level.parts - 1, advance, (restarted, slots))
