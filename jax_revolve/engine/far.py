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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_revolve.engine.buffers import Carries, empty, saved_slots
from jax_revolve.engine.codecs import decode, encode
from jax_revolve.engine.placement import Stack, in_order
from jax_revolve.engine.slots import Slots
from jax_revolve.engine.sweep import Advances, Forward, Results, Reverse, State, Way
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.storage import Place
from jax_revolve.step.loop import Operands, for_loop
from jax_revolve.storage.buffers import Buffers
from jax_revolve.storage.stores import get, in_storage, put


class AndTail(NamedTuple):
    """What the forward sweep of a scan saves: carries in the storage, the carry that enters the
    tail, and the tail's checkpoints."""

    segments: Any
    start: Carries
    tail: Any


@dataclass(frozen=True)
class Far(Way):
    plan: Plan
    storage: Place
    inner: Slots
    """The way of the tail, and of each part of a segment."""

    @classmethod
    def of(cls, plan: Plan, *, is_while: bool) -> "Far | None":
        del is_while
        storage = plan.storage_of_segments
        return None if storage is None else cls(plan, storage, Slots(plan))

    def _saved(self, buffers: Buffers) -> Any:
        """The storage's buffers: carries, or tickets of files."""
        is_opaque = self.storage.is_read_once or self.plan.codec is not None
        return buffers if is_opaque else Carries(buffers)

    def _encoded(self, carry: list[Any], *, is_checked: bool = False) -> list[Any]:
        codec = self.plan.codec
        return carry if codec is None else encode(codec, carry, is_checked=is_checked)

    def _in_storage(self, carry: list[Any], count: int) -> Buffers:
        return in_storage(self.storage, self._encoded(carry), count)

    def _put(self, buffers: Buffers, carry: list[Any], number: Any) -> Buffers:
        return put(self.storage, buffers, self._encoded(carry, is_checked=True), number)

    def forward(self, sweep: Forward, results: Results) -> tuple[Results, AndTail]:
        plan = self.plan
        kept = self._in_storage(sweep.checkpoint(results), plan.segments)
        segments = Advances(0, plan.stride * plan.segment, plan.segments, 0, 0)
        results, kept = sweep.run(segments, self._put, (results, kept))
        start = Carries(sweep.checkpoint(results))
        results, tail = self.inner.forward(sweep, results)
        return results, AndTail(self._saved(kept), start, tail)

    def newest(self, saved: AndTail, initial: list[Any]) -> tuple[list[Any], int]:
        del initial
        return self.inner.newest(saved.tail, saved.start.leaves)

    # In a while loop, where the tail is one more segment

    def placing(self) -> tuple[Stack, Callable[[Stack], Stack]]:
        plan = self.plan
        return in_order(plan.block_size * plan.segment, plan.length, plan.segments)

    def empty(self, carry: list[Any]) -> Buffers:
        return self._in_storage(carry, self.plan.segments + 1)

    def store(self, buffers: Buffers, carry: list[Any], slot: Any) -> tuple[Buffers, list[Any]]:
        return self._put(buffers, carry, slot), carry

    def saved(self, buffers: Buffers, stack: Stack) -> Any:
        del stack
        return self._saved(buffers)

    # The reverse sweep

    def begin(
        self, sweep: Reverse, saved: Any, gradient: Operands, work: Any
    ) -> tuple[Buffers, State]:
        if sweep.is_while:
            start = sweep.steps.initial()
            segments, tail = saved, saved_slots(empty(self.plan.checkpoints, start, self.plan))
        else:
            (segments, (start,), tail) = saved
        state = self.inner.begin(sweep, tail, gradient, work)
        return jax.tree.leaves(segments), state._replace(start=start)

    def reverse(
        self, sweep: Reverse, first: Any, count: Any, state: tuple[Buffers, State]
    ) -> State:
        """Reverse the tail, and the parts of all segments, the last one first."""
        steps, plan, size, blocks = sweep.steps, self.plan, self.plan.part, count
        (buffers, own), all_parts = state, plan.segments * plan.parts
        if sweep.is_while:
            number = jnp.minimum(-(-blocks // size), all_parts + 1)
        else:
            number = all_parts
            if blocks > plan.tail:
                own = self.inner.reverse(sweep, plan.tail, blocks - plan.tail, own)
        codec, initial = self.plan.codec, steps.initial()
        types = list(map(jax.typeof, self._encoded(initial)))

        def reverse_part(turn: jax.Array, state: State) -> State:
            part = number - 1 - turn
            segment, first, left = part // plan.parts, size * part, size
            if sweep.is_while:
                is_whole = (part < all_parts) & (first + size <= blocks)
                left = jnp.where(is_whole, size, blocks - first)
            is_last = part == plan.parts * segment
            restarted = get(self.storage, buffers, types, segment, is_last)
            restarted = restarted if codec is None else decode(codec, restarted, initial)
            restarted = sweep.restart(restarted, plan.segment * segment, state)
            if plan.parts > 1:
                span = sweep.block.size * jnp.stack([plan.segment * segment, first])
                _, restarted = sweep.advance(span, restarted)
            start, past = sweep.reached(restarted, sweep.block.size * first)
            positions, top = state.positions.at[0].set(first), jnp.zeros_like(state.top)
            state = state._replace(start=start, past=past, positions=positions, top=top)
            return self.inner.reverse(sweep, first, left, state)

        return for_loop(0, number, reverse_part, own)
