"""The plan of a loop whose checkpoints are on two levels: on the device, and in a storage."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

from jax_revolve.schedule import multistage
from jax_revolve.schedule.actions import (
    Action,
    Advance,
    Discard,
    Read,
    Write,
    revolve,
    value_and_gradient,
)
from jax_revolve.schedule.multistage import Move
from jax_revolve.schedule.plan import Plan, Reversal
from jax_revolve.schedule.storage import STORAGES, HostMemory, Storage, check_storage


@dataclass(frozen=True)
class TwoLevelPlan(Reversal):
    """How a loop of `length` steps is reversed with `checkpoints` carries on the device, and more
    of them in a `storage` beside it, the steps taped in blocks of `block_size`.

    Made by [`jax_revolve.plan`][] with `storage`. No such schedule takes less time, that of
    transfers included: a carry is written at most once, while the value is computed, and read once
    or several times. If none is worth it, this is the ordinary plan: no `stores`, no `moves`, and
    a `tail` from block 0.

    The initial carry counts as any other: it is written first where there are `stores`, and read
    last, so that nothing on the device need hold it meanwhile. Whoever holds it anyhow may take it
    from there instead. Iterating over a plan gives its actions one by one.
    """

    storage: Storage = field(default_factory=HostMemory)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_storage(self.storage, STORAGES)
        if self.storage.memory is not None:
            raise ValueError(
                f"memory of the storage must be None, but is {self.storage.memory}: how many "
                "checkpoints it has room for depends on their size. Make the plan with "
                "jax_revolve.plan(..., state_bytes=...)."
            )

    @cached_property
    def stores(self) -> tuple[int, ...]:
        """The blocks whose entering carries the forward sweep writes to the storage, ascending."""
        lowest = {store: start for store, start, _ in self.moves}
        return tuple(reversed(lowest.values()))

    @cached_property
    def tail(self) -> int:
        """The block from which on the slots of the device are used by the ordinary schedule, in the
        forward sweep and in the first part of the reverse sweep."""
        return self.moves[0].stop if self.moves else 0

    @cached_property
    def moves(self) -> tuple[Move, ...]:
        """What follows once the tail has been reversed, in order."""
        return tuple(multistage.moves(self.scheduled_blocks, self.checkpoints, self._transfers))

    @property
    def writes(self) -> int:
        """Carries that are written to the storage. All are there when the forward sweep ends."""
        return self._transfers.writes

    @property
    def reads(self) -> int:
        """Carries that are read from the storage: some of them several times."""
        return self._transfers.reads

    @property
    def repetitions(self) -> int:
        """The repetition number: no step is advanced more often than this."""
        return multistage.repetition(self.scheduled_blocks, self.checkpoints, self._transfers)

    @property
    def advances(self) -> int:
        """Steps that run without being taped."""
        blocks = multistage.advances(self.scheduled_blocks, self.checkpoints, self._transfers)
        return self.block_size * blocks

    def storage_bytes(self, state_bytes: int) -> int:
        """Bytes that the storage holds: its checkpoints, of `state_bytes` each."""
        return self.writes * state_bytes

    @cached_property
    def _transfers(self) -> multistage.Transfers:
        transfer = Fraction(self.storage.transfer) / self.block_size
        most = self.storage.checkpoints
        return multistage.best(self.scheduled_blocks, self.checkpoints, transfer, most)

    @property
    def without_empty_storage(self) -> "Plan | TwoLevelPlan":
        """The ordinary plan that it is, if it stores nothing."""
        return self if self.stores else Plan(self.length, self.checkpoints, self.block_size)

    def __iter__(self) -> Iterator[Action]:
        s, k, stores = self.checkpoints, self.block_size, self.stores
        for store, (start, stop) in enumerate(pairwise((*stores, self.tail))):
            yield Write(store, k * start)
            yield Advance(k * start, k * stop)
        yield from value_and_gradient(self.length, s, k, first=self.tail)
        for store, start, stop in self.moves:
            yield Read(store, k * stores[store])
            if start > stores[store]:
                yield Advance(k * stores[store], k * start)
            yield from revolve(k * stop, s, k, first=start)
            if start == stores[store]:
                yield Discard(store)

    def __str__(self) -> str:
        if not self.writes:
            return self._summary(f"{self.checkpoints} checkpoints and none in {self.storage}")
        times = "once" if self.reads == self.writes else f"{self.reads} times in all"
        stored = f"{self.writes} more in {self.storage}, read {times}"
        return self._summary(f"{self.checkpoints} checkpoints and {stored}")


AnyPlan: TypeAlias = Plan | TwoLevelPlan
