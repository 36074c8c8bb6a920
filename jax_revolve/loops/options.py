"""What a caller asks for, before the sizes of the loop are known."""

from collections.abc import Mapping

from jax_revolve.schedule import binomial
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
from jax_revolve.schedule.two_level import AnyPlan

MOST_REPETITIONS_TO_A_BOUND = 3

LONGEST = 2**31 - 2
"""The most steps of a scan. Positions are 32-bit integers on the device, and one more than the last
step is counted."""

LARGEST_BOUND = 2**31 - 1
"""The most steps of a while loop, which is counted up to its bound."""


def for_scan(
    length: int,
    checkpoints: Checkpoints,
    block_size: int | None = None,
    memory: Budgets = None,
    storage: Place = None,
) -> AnyPlan | Request:
    """What is asked of a scan of `length` steps."""
    if length > LONGEST:
        raise ValueError(
            f"length must be at most {LONGEST}, but is {length}. Nest two loops instead."
        )
    return _request(length, checkpoints, block_size, memory, storage, stops_by_itself=False)


def for_bound(
    max_steps: int | None,
    checkpoints: Checkpoints,
    block_size: int | None = None,
    memory: Budgets = None,
    storage: Place = None,
) -> AnyPlan | Request | None:
    """What is asked of a loop of `max_steps` steps at most; `None` if it cannot be reversed.

    Most loops stop long before their bound. The default is therefore what the fewest checkpoints
    take with which no step is advanced more than three times, even at the bound: about
    `(6 * max_steps) ** (1 / 3)`.
    """
    if max_steps is not None:
        max_steps = check_integer("max_steps", max_steps, least=0, allowed=_ALLOWED_BOUND)
        if max_steps > LARGEST_BOUND:
            raise ValueError(f"max_steps must be {_ALLOWED_BOUND}, but is {max_steps}.")
        return _request(max_steps, checkpoints, block_size, memory, storage, stops_by_itself=True)
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
    block_size, storage = check_block(block_size), check_place(storage)
    if isinstance(storage, Storage):
        raise ValueError(
            f"storage must be None or a memory kind where max_steps is None, but is {storage!r}: "
            "how many checkpoints it would have to hold is not known. Pass max_steps."
        )
    if checkpoints is None:
        return None
    return kept_in(storage, plan(LARGEST_BOUND, checkpoints, block_size=block_size))


def check_arguments(
    checkpoints: object, block_size: object, memory: object, storage: object = None
) -> None:
    """Errors in our own arguments come before any of lax's, whatever the loop is like."""
    for_scan(0, checkpoints, block_size, memory, storage)  # pyright: ignore[reportArgumentType]


def _request(
    length: int,
    checkpoints: Checkpoints,
    block_size: int | None,
    memory: Budgets,
    storage: Place,
    *,
    stops_by_itself: bool,
) -> AnyPlan | Request:
    block_size, storage = check_block(block_size), check_place(storage)
    if memory is not None and checkpoints is not None:
        raise ValueError(
            f"checkpoints must be None where memory is given, but is {checkpoints!r}: as many are "
            f"taken as fit into memory={memory!r}."
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
            f"memory must name two budgets where storage is {storage!r}, but is {memory!r}: pass "
            'memory={"device": ..., "pinned_host": ...}, or checkpoints.'
        )
    most = MOST_REPETITIONS_TO_A_BOUND if stops_by_itself else MOST_REPETITIONS_BY_DEFAULT
    if block_size is not None and memory is None:
        return kept_in(storage, plan(length, repetitions=most, block_size=block_size))
    fewest = binomial.fewest_checkpoints(length, most)
    budget = None if memory is None else parse_bytes(memory)
    return Request(length, budget, fewest, block_size, stops_by_itself, storage, storage_memory)


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
