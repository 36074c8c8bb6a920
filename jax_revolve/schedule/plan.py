"""The plan of a loop: its schedule, as users see it."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from jax_revolve.schedule import actions, binomial
from jax_revolve.schedule import levels as static
from jax_revolve.schedule.arguments import check_integer, counted
from jax_revolve.schedule.storage import Compressed, Disk, Place, check_storage

_LEAST = {"length": 0, "checkpoints": 1, "block_size": 1, "segments": 0, "segment": 0, "parts": 1}


@dataclass(frozen=True)
class Plan:
    """The schedule that reverses a loop of `length` steps with `checkpoints` stored carries, in
    blocks of at most `block_size` steps that are taped together.

    [`jax_revolve.plan`][] makes one. Iterating over a plan yields its actions in the order in which
    they run, and takes no memory, however long the loop.

    With `levels`, the checkpoints are on several levels, and every loop in the compiled gradient of
    a scan has a static length: see [`jax_revolve.plan`][].

    A `storage` without `segments` holds all checkpoints. With them, it holds the carries that enter
    so many segments of `segment` blocks each, which the forward sweep writes. The checkpoints are
    then on the device: first for the tail, which is the blocks after the segments, and then for one
    segment after another, the last one first. A segment is reversed in so many equal `parts`, and
    its carry is read for each. The initial carry is treated as any other: it is written first and
    read last, so that the device need not hold it meanwhile. A program that holds it anyway may use
    that instead.
    """

    length: int
    checkpoints: int
    block_size: int = 1
    storage: Place | None = None
    levels: tuple[int, ...] = ()
    segments: int = 0
    segment: int = 0
    parts: int = 1
    codec: Compressed | None = None
    """How checkpoints are encoded, wherever they are."""

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:  # `selection` tries thousands
                object.__setattr__(self, name, check_integer(name, value, least=least))
        storage, levels = check_storage(self.storage), self.levels
        if levels:
            most = prod(levels)
            is_as_made = (
                len(levels) > 1
                and min(levels) > 1
                and most - most // levels[0] < self.blocks <= most
                and self.checkpoints == static.checkpoints(levels)
                and not (storage or self.segments)
            )
        elif self.segments or self.segment:
            is_as_made = (
                storage is not None
                and storage.memory is None  # the room for checkpoints depends on their size
                and 0 < self.tail < self.scheduled_blocks
                and self.segment == self.part * self.parts
            )
        else:
            is_as_made = not isinstance(storage, Disk)
        if not is_as_made:
            raise ValueError(f"Plan must be made with jax_revolve.plan(...), but is {self!r}.")

    @property
    def blocks(self) -> int:
        """The number of blocks, whose steps are taped together."""
        return -(-self.length // self.block_size)

    @property
    def stride(self) -> int:
        """The steps of every block of a scan but the last, which has the rest: up to `block_size`.
        A while loop, which does not know where it ends, has blocks of `block_size`."""
        return actions.stride(self.length, self.block_size)

    @property
    def scheduled_blocks(self) -> int:
        """The number of blocks, plus one for the end of the loop if steps are taped one by one: see
        `jax_revolve.schedule.actions.value_and_gradient`."""
        return actions.scheduled_blocks(self.length, self.block_size)

    @property
    def part(self) -> int:
        """The blocks of a part."""
        return self.segment // self.parts

    @property
    def tail(self) -> int:
        """The first block after the segments."""
        return self.segments * self.segment

    @property
    def storage_of_segments(self) -> Place | None:
        """The storage, if it holds checkpoints besides those on the device."""
        return self.storage if self.segments else None

    @property
    def stores(self) -> tuple[int, ...]:
        """The blocks whose entering carries the forward sweep writes to the storage, in order."""
        return tuple(range(0, self.tail, self.segment or 1))

    @property
    def writes(self) -> int:
        """The number of carries that are written to the storage besides the device's checkpoints.
        The forward sweep writes all of them."""
        return self.segments

    @property
    def reads(self) -> int:
        """The number of reads from the storage: one for each part of a segment."""
        return self.segments * self.parts

    @property
    def checkpoints_on_device(self) -> int:
        """The number of checkpoints that are not in a storage."""
        return self.checkpoints if self.storage is None or self.segments else 0

    def storage_bytes(self, state_bytes: int) -> int:
        """The bytes that the storage holds: its checkpoints, of `state_bytes` each."""
        return (self.segments + self.checkpoints - self.checkpoints_on_device) * state_bytes

    @property
    def static_levels(self) -> tuple[int, ...]:
        """The places of each level, if every loop of a scan's gradient has a static length; none
        for any other plan. On a GPU, the host waits in each iteration of a loop whose length
        depends on data."""
        every = self.stores_every_block(is_while=False)
        return (self.blocks,) if every else self.levels

    def stores_every_block(self, *, is_while: bool) -> bool:
        """Whether every block that the forward sweep does not tape has a slot of its own."""
        every = actions.useful_checkpoints(self.length, self.block_size, is_while=is_while)
        return not self.levels and not self.segments and self.checkpoints >= every

    @property
    def repetitions(self) -> int:
        """The repetition number: no step is advanced more often than this."""
        if self.levels:
            return len(self.levels)
        of_tail = binomial.repetition(self.scheduled_blocks - self.tail, self.checkpoints)
        if not self.segments:
            return of_tail
        return max(of_tail, self.parts + binomial.repetition(self.part, self.checkpoints))

    @property
    def advances(self) -> int:
        """The number of advances: evaluations of steps that are not taped. On one level it is the
        least possible: t(N, s) times the `stride` for N blocks of several steps, and t(n + 1, s)
        for single steps."""
        if self.levels:
            return static.advances(self.length, self.levels, self.block_size)
        return self.stride * self.block_advances

    @property
    def block_advances(self) -> int:
        """The number of advances over a block, on one level."""
        if not self.segments:
            return binomial.advances(self.scheduled_blocks, self.checkpoints)
        of_segment = self.segment * (self.parts + 1) // 2
        of_segment += self.parts * binomial.advances(self.part, self.checkpoints)
        of_tail = binomial.advances(self.scheduled_blocks - self.tail, self.checkpoints)
        return self.segments * of_segment + of_tail

    @property
    def evaluations(self) -> int:
        """The evaluations of `jax.value_and_grad`: the advances, and each step once to tape it."""
        return self.length + self.advances

    @property
    def overhead(self) -> float:
        """Advances per step: the number of forward passes besides the taped one."""
        return self.advances / self.length if self.length else 0.0

    def memory(self, state_bytes: int, residual_bytes: int, carry_bytes: int | None = None) -> int:
        """The bytes that the reverse pass holds on the device: its checkpoints of `state_bytes`
        each, the residuals of a block, of `residual_bytes` for each step, and the carry that the
        loop runs on, by default as large as a checkpoint."""
        carry_bytes = state_bytes if carry_bytes is None else carry_bytes
        checkpoints = self.checkpoints_on_device * state_bytes
        return checkpoints + self.block_size * residual_bytes + carry_bytes

    def plot(self, ax: Any = None) -> Any:
        """A picture of the schedule, position over evaluations: advances, checkpoints held, and
        taped blocks.

        **Arguments:**

        - `ax`: the `matplotlib.axes.Axes` to draw into; by default the axes of a new figure.

        **Returns:**

        The axes. Needs Matplotlib, which `pip install matplotlib` installs.
        """
        from jax_revolve.schedule.picture import picture

        return picture(self, ax)

    def _summary(self, stored: str) -> str:
        stored = stored if self.codec is None else f" in {self.codec}{stored}"
        at_most = "at most " if self.length % self.block_size else ""
        taped = f" blocks of {at_most}{self.block_size} steps," if self.block_size > 1 else ""
        often = {0: "", 1: " more than once"}.get(
            self.repetitions, f" more than {self.repetitions} times"
        )
        return (
            f"{counted(self.length, 'step')},{taped} {counted(self.checkpoints, 'checkpoint')}"
            f"{stored}: {counted(self.evaluations, 'evaluation')} ({self.overhead:.2f} extra "
            f"forward passes, no step advanced{often})"
        )

    def __iter__(self) -> Iterator[actions.Action]:
        s, k = self.checkpoints, self.block_size
        if self.levels:
            yield from static.value_and_gradient(self.length, self.levels, k)
            return
        each = self.stride
        size = each * self.segment
        for store in range(self.segments):
            yield actions.Write(store, size * store)
            yield actions.Advance(size * store, size * (store + 1))
        yield from actions.value_and_gradient(self.length, s, k, first=self.tail)
        for store in reversed(range(self.segments)):
            for part in reversed(range(self.parts)):
                first = self.segment * store + self.part * part
                yield actions.Read(store, size * store)
                if part:
                    yield actions.Advance(size * store, each * first)
                yield from actions.revolve(each * (first + self.part), s, each, first)
            yield actions.Discard(store)

    def __str__(self) -> str:
        if self.levels:
            return self._summary(f" on levels of {' x '.join(map(str, self.levels))}")
        if self.segments:
            times = "once" if self.parts == 1 else f"{self.parts} times each"
            return self._summary(f" and {self.segments} more in {self.storage}, read {times}")
        return self._summary("" if self.storage is None else f" in {self.storage}")
