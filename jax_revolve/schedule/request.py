"""What a caller asks for, before the sizes of the loop are known."""

from dataclasses import dataclass

from jax_revolve.schedule import binomial, cost
from jax_revolve.schedule.choose import quickest
from jax_revolve.schedule.cost import Sizes
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.planning import (
    MOST_REPETITIONS_BY_DEFAULT,
    Checkpoints,
    check_block,
    check_integer,
    plan,
)
from jax_revolve.schedule.units import Memory, bytes_of

MOST_REPETITIONS_TO_A_BOUND = 3

LONGEST = 2**31 - 2
"""The most steps of a scan. Positions are 32-bit integers on the device, and one more than the last
step is counted."""

LARGEST_BOUND = 2**31 - 1
"""The most steps of a while loop, which is counted up to its bound."""


@dataclass(frozen=True)
class Request:
    """A plan that is yet to be chosen: the quickest that fits into `memory` bytes or, without them,
    into what `checkpoints` carries and the residuals of one step take."""

    length: int
    memory: int | None
    checkpoints: int
    block: int | None
    stops_by_itself: bool

    def resolve(self, sizes: Sizes) -> Plan:
        """The plan, for a loop of these sizes."""
        memory = self.memory
        if memory is None:
            memory = cost.memory(Plan(self.length, self.checkpoints), sizes)
        return quickest(
            self.length, sizes, memory, block=self.block, stops_by_itself=self.stops_by_itself
        )


def for_scan(
    length: int, checkpoints: Checkpoints, block: int | None = None, memory: Memory = None
) -> Plan | Request:
    """What is asked of a scan of `length` steps."""
    if length > LONGEST:
        raise ValueError(
            f"length must be at most {LONGEST}, but is {length}. Nest two loops instead."
        )
    return _request(length, checkpoints, block, memory, stops_by_itself=False)


def for_bound(
    max_steps: int | None,
    checkpoints: Checkpoints,
    block: int | None = None,
    memory: Memory = None,
) -> Plan | Request | None:
    """What is asked of a loop of `max_steps` steps at most; `None` if it cannot be reversed.

    Most loops stop long before their bound. The default is therefore what the fewest checkpoints
    take with which no step is advanced more than three times, even at the bound: about
    `(6 * max_steps) ** (1 / 3)`.
    """
    if max_steps is not None:
        max_steps = check_integer("max_steps", max_steps, least=0, allowed=_ALLOWED_BOUND)
        if max_steps > LARGEST_BOUND:
            raise ValueError(f"max_steps must be {_ALLOWED_BOUND}, but is {max_steps}.")
        return _request(max_steps, checkpoints, block, memory, stops_by_itself=True)
    if isinstance(checkpoints, str):
        raise ValueError(
            f"checkpoints must be an int >= 1 or None where max_steps is None, but is "
            f"{checkpoints!r}: how many there would be is not known. Pass max_steps."
        )
    if memory is not None:
        raise ValueError(
            f"memory must be None where max_steps is None, but is {memory!r}: what fits depends on "
            "how many steps there may be. Pass max_steps, or checkpoints."
        )
    block = check_block(block)
    return None if checkpoints is None else plan(LARGEST_BOUND, checkpoints, block=block)


def check_arguments(checkpoints: object, block: object, memory: object) -> None:
    """Errors in our own arguments come before any of lax's, whatever the loop is like."""
    for_scan(0, checkpoints, block, memory)  # pyright: ignore[reportArgumentType]


def _request(
    length: int,
    checkpoints: Checkpoints,
    block: int | None,
    memory: Memory,
    *,
    stops_by_itself: bool,
) -> Plan | Request:
    block = check_block(block)
    if memory is not None and checkpoints is not None:
        raise ValueError(
            f"checkpoints must be None where memory is given, but is {checkpoints!r}: as many are "
            f"taken as fit into memory={memory!r}."
        )
    if block is not None:
        block = min(block, max(length, 1))
    if checkpoints is not None:
        return plan(length, checkpoints, block=block)
    most = MOST_REPETITIONS_TO_A_BOUND if stops_by_itself else MOST_REPETITIONS_BY_DEFAULT
    if block is not None and memory is None:
        return plan(length, repetitions=most, block=block)
    fewest = binomial.fewest_checkpoints(length, most)
    budget = None if memory is None else bytes_of(memory)
    return Request(length, budget, fewest, block, stops_by_itself)


_ALLOWED_BOUND = f"None or an int from 0 to {LARGEST_BOUND}, known when the loop is traced"
