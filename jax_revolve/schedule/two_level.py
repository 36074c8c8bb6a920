"""The plan of a loop with checkpoints on two levels: on the device, and in a storage."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from jax_revolve.schedule import actions, multistage
from jax_revolve.schedule.arguments import counted
from jax_revolve.schedule.plan import Plan, Reversal
from jax_revolve.schedule.storage import STORAGES, HostMemory, Storage, check_storage, with_transfer


@dataclass(frozen=True)
class TwoLevelPlan(Reversal):
    """The schedule that reverses a loop of `length` steps with `checkpoints` carries on the device
    and more of them in a `storage`, in blocks of `block_size` steps that are taped together.

    [`jax_revolve.plan`][] with `storage` makes one. No such schedule takes less time, transfers
    included: a carry is written at most once, while the value is computed, and read once or several
    times. If no transfer pays off, this is the one-level plan: it has no `stores` and no `moves`,
    and its `tail` starts at block 0.

    The initial carry is treated as any other carry: if there are `stores`, it is written first and
    read last, so that the device need not hold it meanwhile. A program that holds it anyway may use
    that instead. Iterating over a plan yields its actions one by one.
    """

    storage: Storage = field(default_factory=HostMemory)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_storage(self.storage, STORAGES)
        object.__setattr__(self, "storage", with_transfer(self.storage))
        if self.storage.memory is not None:
            raise ValueError(
                f"memory of the storage must be None, but is {self.storage.memory}: how many "
                "checkpoints it has room for depends on their size. Make the plan with "
                "jax_revolve.plan(..., state_bytes=...)."
            )

    @cached_property
    def stores(self) -> tuple[int, ...]:
        """The blocks whose entering carries the forward sweep writes to the storage, in order."""
        stores, starts, _ = self.parts
        return tuple(starts[np.diff(stores, append=-1) != 0][::-1].tolist())

    @cached_property
    def tail(self) -> int:
        """The first block of the tail, which follows the one-level schedule with the device's
        slots."""
        return self._transfers.tail

    @property
    def moves(self) -> tuple[tuple[int, int, int], ...]:
        """The parts of the reverse sweep after the tail, in order: for each the number of the
        carry that is read, the block it is advanced to, and the block before which it stops."""
        return tuple(map(tuple, self.parts.T.tolist()))

    @cached_property
    def parts(self) -> multistage.Parts:
        """The `moves`, as an array with a column for each."""
        return self._transfers.parts

    @property
    def writes(self) -> int:
        """The number of writes to the storage. The forward sweep makes all of them."""
        return self._transfers.writes

    @property
    def reads(self) -> int:
        """The number of reads from the storage. Some carries are read several times."""
        return self._transfers.reads

    @property
    def repetitions(self) -> int:
        """The repetition number: no step is advanced more often than this."""
        return self._transfers.repetition

    @property
    def advances(self) -> int:
        """The number of advances: evaluations of steps that are not taped."""
        return self.block_size * self._transfers.advances

    def stores_every_block(self, *, is_while: bool) -> bool:
        """Whether the device has a slot for every block, which would leave none to the storage."""
        del is_while
        return False

    def storage_bytes(self, state_bytes: int) -> int:
        """The bytes that the storage holds: its checkpoints, of `state_bytes` each."""
        return self.writes * state_bytes

    @cached_property
    def _transfers(self) -> multistage.Transfers:
        assert self.storage.transfer is not None
        transfer = Fraction(self.storage.transfer) / self.block_size
        most = self.storage.checkpoints
        return multistage.best(self.scheduled_blocks, self.checkpoints, transfer, most)

    @property
    def without_empty_storage(self) -> "Plan | TwoLevelPlan":
        """The one-level plan if the storage holds nothing, and otherwise the plan itself."""
        return self if self.writes else Plan(self.length, self.checkpoints, self.block_size)

    def __iter__(self) -> Iterator[actions.Action]:
        s, k, stores = self.checkpoints, self.block_size, self.stores
        for store, (start, stop) in enumerate(pairwise((*stores, self.tail))):
            yield actions.Write(store, k * start)
            yield actions.Advance(k * start, k * stop)
        yield from actions.value_and_gradient(self.length, s, k, first=self.tail)
        for store, start, stop in self.moves:
            yield actions.Read(store, k * stores[store])
            if start > stores[store]:
                yield actions.Advance(k * stores[store], k * start)
            yield from actions.revolve(k * stop, s, k, first=start)
            if start == stores[store]:
                yield actions.Discard(store)

    def __str__(self) -> str:
        if not self.writes:
            return self._summary(f" and none in {self.storage}")
        times = "once" if self.reads == self.writes else f"{counted(self.reads, 'time')} in all"
        return self._summary(f" and {self.writes} more in {self.storage}, read {times}")


AnyPlan: TypeAlias = Plan | TwoLevelPlan
"""What [`jax_revolve.plan`][] makes."""
