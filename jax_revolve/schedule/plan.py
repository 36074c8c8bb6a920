"""The plan of a loop: its schedule, as users see it."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from jax_revolve.schedule import binomial
from jax_revolve.schedule import levels as static
from jax_revolve.schedule.actions import (
    Action,
    scheduled_blocks,
    useful_checkpoints,
    value_and_gradient,
)
from jax_revolve.schedule.arguments import check_integer, counted
from jax_revolve.schedule.storage import HostMemory, check_storage

_LEAST = {"length": 0, "checkpoints": 1, "block_size": 1}


@dataclass(frozen=True)
class Reversal:
    """The base class of plans."""

    length: int
    checkpoints: int
    block_size: int = 1

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:  # `selection` tries thousands
                object.__setattr__(self, name, check_integer(name, value, least=least))

    @property
    def blocks(self) -> int:
        """The number of blocks, whose steps are taped together; the last block may be shorter."""
        return -(-self.length // self.block_size)

    @property
    def scheduled_blocks(self) -> int:
        """The number of blocks, plus one for the end of the loop if steps are taped one by one: see
        `jax_revolve.schedule.actions.value_and_gradient`."""
        return scheduled_blocks(self.length, self.block_size)

    @property
    def repetitions(self) -> int:
        """The repetition number: no step is advanced more often than this."""
        raise NotImplementedError

    @property
    def advances(self) -> int:
        """The number of advances: evaluations of steps that are not taped."""
        raise NotImplementedError

    @property
    def evaluations(self) -> int:
        """The evaluations of `jax.value_and_grad`: the advances, and each step once to tape it."""
        return self.length + self.advances

    @property
    def overhead(self) -> float:
        """Advances per step: the number of forward passes besides the taped one."""
        return self.advances / self.length if self.length else 0.0

    @property
    def checkpoints_on_device(self) -> int:
        """The number of checkpoints that are not in a storage."""
        return self.checkpoints

    @property
    def static_levels(self) -> tuple[int, ...]:
        """The levels of a plan whose loops all have a static length in a scan; none for any other
        plan. On a GPU, the host waits in each iteration of a loop whose length depends on data."""
        return ()

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

        return picture(self, ax)  # pyright: ignore[reportArgumentType]

    def _summary(self, stored: str) -> str:
        taped = f" blocks of {self.block_size} steps," if self.block_size > 1 else ""
        often = {0: "", 1: " more than once"}.get(
            self.repetitions, f" more than {self.repetitions} times"
        )
        return (
            f"{counted(self.length, 'step')},{taped} {counted(self.checkpoints, 'checkpoint')}"
            f"{stored}: {counted(self.evaluations, 'evaluation')} ({self.overhead:.2f} extra "
            f"forward passes, no step advanced{often})"
        )


@dataclass(frozen=True)
class Plan(Reversal):
    """The schedule that reverses a loop of `length` steps with `checkpoints` stored carries, in
    blocks of `block_size` steps that are taped together.

    [`jax_revolve.plan`][] makes one. Iterating over a plan yields its actions in the order in which
    they run, and takes no memory, however long the loop. All checkpoints are in the `storage` if it
    is given, and otherwise on the device.

    With `levels`, the checkpoints are on several levels, and every loop in the compiled gradient of
    a scan has a static length: see [`jax_revolve.plan`][].
    """

    storage: HostMemory | None = None
    levels: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.storage is not None:
            check_storage(self.storage, (type(None), HostMemory))
        if self.levels:
            self._check_levels()

    def _check_levels(self) -> None:
        levels, most = self.levels, prod(self.levels)
        make = "Make the plan with jax_revolve.plan(..., levels=...)."
        is_enough = most - most // levels[0] < self.blocks <= most
        if len(levels) < 2 or min(levels) < 2 or not is_enough:
            raise ValueError(
                f"levels must be at least two ints >= 2 whose product is just enough for "
                f"{self.blocks} blocks, but is {levels!r}. {make}"
            )
        if self.checkpoints != static.checkpoints(levels) or self.storage:
            raise ValueError(
                f"checkpoints must be {static.checkpoints(levels)} and storage None where levels "
                f"is {levels!r}, but they are {self.checkpoints} and {self.storage}. {make}"
            )

    @property
    def checkpoints_on_device(self) -> int:
        """The number of checkpoints that are not in a storage."""
        return self.checkpoints if self.storage is None else 0

    def storage_bytes(self, state_bytes: int) -> int:
        """The bytes that the storage holds: its checkpoints, of `state_bytes` each."""
        return (self.checkpoints - self.checkpoints_on_device) * state_bytes

    @property
    def static_levels(self) -> tuple[int, ...]:
        """The places of each level, if every loop of a scan's gradient has a static length."""
        every = self.stores_every_block(is_while=False)
        return (self.blocks,) if every else self.levels

    def stores_every_block(self, *, is_while: bool) -> bool:
        """Whether every block that the forward sweep does not tape has a slot of its own."""
        every = useful_checkpoints(self.length, self.block_size, is_while=is_while)
        return not self.levels and self.checkpoints >= every

    @property
    def repetitions(self) -> int:
        """The repetition number: no step is advanced more often than this."""
        if self.levels:
            return len(self.levels)
        return binomial.repetition(self.scheduled_blocks, self.checkpoints)

    @property
    def advances(self) -> int:
        """The number of advances: evaluations of steps that are not taped. On one level it is the
        least possible: k t(N, s) for N blocks of k > 1 steps, and t(n + 1, s) for single steps."""
        if self.levels:
            return static.advances(self.length, self.levels, self.block_size)
        return self.block_size * binomial.advances(self.scheduled_blocks, self.checkpoints)

    @property
    def without_empty_storage(self) -> "Plan":
        """The plan itself: see `TwoLevelPlan.without_empty_storage`."""
        return self

    def __iter__(self) -> Iterator[Action]:
        if self.levels:
            return static.value_and_gradient(self.length, self.levels, self.block_size)
        return value_and_gradient(self.length, self.checkpoints, self.block_size)

    def __str__(self) -> str:
        if self.levels:
            return self._summary(f" on levels of {' x '.join(map(str, self.levels))}")
        return self._summary("" if self.storage is None else f" in {self.storage}")
