"""What a caller asks of a loop, before the sizes of the loop are known."""

from collections.abc import Mapping
from dataclasses import dataclass

from jax_revolve._compat import LoopEquation
from jax_revolve.progress.listener import Listener
from jax_revolve.progress.meters import ProgressMeter, listener_of
from jax_revolve.schedule import binomial
from jax_revolve.schedule.actions import scheduled_blocks
from jax_revolve.schedule.arguments import Budgets, Memory, parse_bytes
from jax_revolve.schedule.planning import (
    MOST_REPETITIONS_BY_DEFAULT,
    Checkpoints,
    check_block,
    check_integer,
    plan,
)
from jax_revolve.schedule.selection import Request, kept_in
from jax_revolve.schedule.storage import MEMORY_KINDS, HostMemory, Place, Storage, check_place
from jax_revolve.schedule.two_level import AnyPlan, TwoLevelPlan
from jax_revolve.step.loop import Loop

MOST_REPETITIONS_TO_A_BOUND = 3

LONGEST = 2**31 - 2
"""The most steps of a scan. Positions are 32-bit integers on the device, and one more than the last
step is counted."""

LARGEST_BOUND = 2**31 - 1
"""The most steps of a while loop, which is counted up to its bound."""


@dataclass(frozen=True)
class Options:
    """What a caller asks of a loop: the arguments that all loops share.

    They are checked when the object is made, so that errors in them come before those of `jax.lax`.
    """

    checkpoints: Checkpoints = None
    block_size: int | None = None
    memory: Budgets = None
    storage: Place = None
    plan: AnyPlan | None = None
    progress: bool | ProgressMeter = False

    def __post_init__(self) -> None:
        self._chosen(0, stops_by_itself=False)
        _ = self.listener
        if self.plan is None:
            return
        if not isinstance(self.plan, AnyPlan):
            raise TypeError(
                "plan must be a jax_revolve.Plan, made with jax_revolve.plan(length, checkpoints), "
                f"or None, but is {self.plan!r} of type {type(self.plan).__name__}."
            )
        for name in ("checkpoints", "block_size", "memory", "storage"):
            value = getattr(self, name)
            if value is not None:
                raise ValueError(
                    f"{name} must be None where a plan is given, but is {value!r}: the plan says "
                    "it."
                )

    @property
    def listener(self) -> Listener | None:
        """What the progress of the loop is reported to."""
        return listener_of(self.progress)

    def loop(self, equation: LoopEquation, max_steps: int | None = None) -> Loop:
        """The loop of an equation of `jax.lax`'s, to be reversed as asked."""
        if equation.length is None:
            length, plan = max_steps, self.for_bound(max_steps)
        else:
            length, plan = equation.length, self.for_scan(equation.length)
        return Loop.of(equation, length, plan, self.listener)

    def for_scan(self, length: int) -> AnyPlan | Request:
        """What is asked of a scan of `length` steps."""
        if length > LONGEST:
            raise ValueError(
                f"length must be at most {LONGEST}, but is {length}. Nest two loops instead."
            )
        return self._given(length) or self._chosen(length, stops_by_itself=False)

    def for_bound(self, max_steps: int | None) -> AnyPlan | Request | None:
        """What is asked of a loop of `max_steps` steps at most; `None` if it cannot be reversed.

        Most loops stop long before their bound. The default is therefore what the fewest
        checkpoints take with which no step is advanced more than three times, even at the bound:
        about `(6 * max_steps) ** (1 / 3)`.
        """
        max_steps = check_bound(max_steps)
        if max_steps is None:
            return self._without_bound()
        return self._given(max_steps) or self._chosen(max_steps, stops_by_itself=True)

    def _without_bound(self) -> AnyPlan | None:
        if self.plan is not None:
            raise ValueError(
                f"plan must be None where max_steps is None, but is for {self.plan.length} steps: "
                f"{self.plan}. Pass max_steps={self.plan.length}, or checkpoints."
            )
        if isinstance(self.checkpoints, str):
            raise ValueError(
                "checkpoints must be an int >= 1 or None where max_steps is None, but is "
                f"{self.checkpoints!r}: how many there would be is not known. Pass max_steps."
            )
        if self.memory is not None:
            raise ValueError(
                f"memory must be None where max_steps is None, but is {self.memory!r}: what fits "
                "depends on how many steps there may be. Pass max_steps, or checkpoints."
            )
        if isinstance(self.storage, Storage):
            raise ValueError(
                "storage must be None or a memory kind where max_steps is None, but is "
                f"{self.storage!r}: how many checkpoints it would have to hold is not known. Pass "
                "max_steps."
            )
        if self.checkpoints is None:
            return None
        made = plan(LARGEST_BOUND, self.checkpoints, block_size=check_block(self.block_size))
        return kept_in(self.storage, made)

    def _given(self, steps: int) -> AnyPlan | None:
        if self.plan is None:
            return None
        if self.plan.length != steps:
            raise ValueError(
                f"plan must be for a loop of {steps} steps, but is for {self.plan.length}: "
                f"{self.plan}. Make it with plan({steps}, ...)."
            )
        if isinstance(self.plan, TwoLevelPlan):
            return self.plan.without_empty_storage
        return self.plan

    def _chosen(self, length: int, *, stops_by_itself: bool) -> AnyPlan | Request:
        checkpoints, memory = self.checkpoints, self.memory
        block_size, storage = check_block(self.block_size), check_place(self.storage)
        if memory is not None and checkpoints is not None:
            raise ValueError(
                f"checkpoints must be None where memory is given, but is {checkpoints!r}: as many "
                f"are taken as fit into memory={memory!r}."
            )
        if block_size is not None:
            block_size = min(block_size, max(length, 1))
        if checkpoints is not None:
            return kept_in(storage, plan(length, checkpoints, block_size=block_size))
        storage_memory = None
        if isinstance(memory, Mapping):
            storage, memory, storage_memory = _budgets(memory, storage)
        elif memory is not None and storage == "pinned_host":
            raise ValueError(
                f"memory must name two budgets where storage is {storage!r}, but is {memory!r}: "
                'pass memory={"device": ..., "pinned_host": ...}, or checkpoints.'
            )
        most = MOST_REPETITIONS_TO_A_BOUND if stops_by_itself else MOST_REPETITIONS_BY_DEFAULT
        if block_size is not None and memory is None:
            return kept_in(storage, plan(length, repetitions=most, block_size=block_size))
        fewest = binomial.fewest_checkpoints(scheduled_blocks(length, 1), most)
        budget = None if memory is None else parse_bytes(memory)
        return Request(length, budget, fewest, block_size, stops_by_itself, storage, storage_memory)


def check_bound(max_steps: int | None) -> int | None:
    """Refuse a bound that is neither `None` nor a number of steps that can be counted."""
    if max_steps is None:
        return None
    max_steps = check_integer("max_steps", max_steps, least=0, allowed=_ALLOWED_BOUND)
    if max_steps > LARGEST_BOUND:
        raise ValueError(f"max_steps must be {_ALLOWED_BOUND}, but is {max_steps}.")
    return max_steps


def _budgets(memory: Mapping[str, int | str], storage: Place) -> tuple[Storage, Memory, int]:
    """Two levels of checkpoints, with the memory for each."""
    if set(memory) != set(MEMORY_KINDS) or not isinstance(storage, HostMemory | None):
        raise ValueError(
            'memory must be an int or a string, or name two budgets, {"device": ..., '
            f'"pinned_host": ...}}, with storage None or a HostMemory; but is {dict(memory)!r} '
            f"with storage={storage!r}."
        )
    return storage or HostMemory(), memory["device"], parse_bytes(memory["pinned_host"])


_ALLOWED_BOUND = f"None or an int from 0 to {LARGEST_BOUND}, known when the loop is traced"
