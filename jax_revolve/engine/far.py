"""Checkpoints in a storage beyond the device: the carries that enter equal segments.

    forward: write the carry, and advance to the next segment      # as often as there are segments
             run the tail by the way of the device
    reverse: reverse the tail
             for segment in reversed(segments):
                 for part in reversed(segment):
                     read the segment's carry, advance to the part, and reverse it with all slots

See `schedule.segments`. In a while loop, the tail is one more segment, and the loop may stop in any
of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jax_revolve.engine.buffers import Saved, empty
from jax_revolve.engine.placement import Stack, in_order
from jax_revolve.engine.slots import Slots
from jax_revolve.engine.sweep import Advances, Forward, Results, Reverse, State, Way
from jax_revolve.schedule.storage import Storage
from jax_revolve.step.steps import for_loop
from jax_revolve.storage.buffers import Buffers
from jax_revolve.storage.stores import get, in_storage, put


@dataclass(frozen=True)
class Far(Way):
    storage: Storage

    def forward(self, sweep: Forward, results: Results) -> tuple[Results, Buffers]:
        """Advance to the tail. Also returns the storage's buffers."""
        plan = self.plan
        kept = in_storage(self.storage, sweep.checkpoint(results), plan.segments)
        segments = Advances(0, plan.block_size * plan.segment, plan.segments, 0, 0)
        return sweep.run(segments, for_loop, partial(put, self.storage), (results, kept))

    # In a while loop, where the tail is one more segment

    def placing(self) -> tuple[Stack, Callable[[Stack], Stack]]:
        plan = self.plan
        return in_order(plan.block_size * plan.segment, plan.length, plan.segments)

    def empty(self, carry: list[Any]) -> Buffers:
        return in_storage(self.storage, carry, self.plan.segments + 1)

    def store(self, buffers: Buffers, carry: list[Any], slot: Any) -> tuple[Buffers, list[Any]]:
        return put(self.storage, buffers, carry, slot), carry

    def saved(self, buffers: Buffers, stack: Stack) -> Saved:
        del stack
        return Saved([], storage=buffers)

    # The reverse sweep

    def reverse(
        self, sweep: Reverse, inner: Slots, buffers: Buffers, blocks: Any, state: State
    ) -> State:
        """Reverse the parts of all segments, the last one first."""
        steps, plan, size = sweep.steps, self.plan, self.plan.part
        all_parts = count = plan.segments * plan.parts
        if sweep.is_while:
            initial = steps.initial()
            state = state._replace(slots=empty(plan.checkpoints, initial, plan), start=initial)
            count = jnp.minimum(-(-blocks // size), all_parts + 1)
        types = list(map(jax.typeof, steps.initial()))

        def reverse_part(turn: jax.Array, state: State) -> State:
            number = count - 1 - turn
            segment, first, left = number // plan.parts, size * number, size
            if sweep.is_while:
                is_whole = (number < all_parts) & (first + size <= blocks)
                left = jnp.where(is_whole, size, blocks - first)
            is_last = number == plan.parts * segment
            restarted = get(self.storage, buffers, types, segment, is_last)
            if plan.parts > 1:
                span = plan.block_size * jnp.stack([plan.segment * segment, first])
                _, restarted = sweep.advance(span, restarted)
            positions, top = state.positions.at[0].set(first), jnp.zeros_like(state.top)
            state = state._replace(start=restarted, positions=positions, top=top)
            return inner.reverse(sweep, first, left, state)

        return sweep.reports.loop(True)(0, count, reverse_part, state)
