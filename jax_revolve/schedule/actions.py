"""The actions of a schedule, in the order in which they run.

Iterating over a [`jax_revolve.Plan`][] yields them, as named tuples. Steps are numbered from 0, and
the carry at position `p` enters step `p`. To reverse 4 steps with 2 slots:

    Store 0, Advance 0-1, Store 1, Advance 1-3, Tape 3, Load 1, Advance 1-2, Tape 2,
    Load 1, Tape 1, Free slot 1, Load 0, Tape 0, Free slot 0
"""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from jax_revolve.schedule.binomial import split

__all__ = ["Advance", "Discard", "Free", "Load", "Read", "Store", "Tape", "Write"]


SCHEDULE = 2
"""The version of the order of actions. A saved run counts actions, so a change of their order needs
a new version."""


class Store(NamedTuple):
    """Copy the current carry, which enters step `position`, into `slot`."""

    slot: int
    position: int


class Load(NamedTuple):
    """Copy the carry in `slot`, which enters step `position`, to the current one."""

    slot: int
    position: int


class Advance(NamedTuple):
    """Run the steps `start`, ..., `stop - 1` without keeping their residuals."""

    start: int
    stop: int


class Tape(NamedTuple):
    """Run the steps `start`, ..., `stop - 1` and keep their residuals; then transpose these steps,
    the last one first. Afterwards there is no current carry."""

    start: int
    stop: int


class Free(NamedTuple):
    """The carry in `slot` is no longer needed."""

    slot: int


class Write(NamedTuple):
    """Copy the current carry, which enters step `position`, to the storage, as carry `store`."""

    store: int
    position: int


class Read(NamedTuple):
    """Copy carry `store` of the storage, which enters step `position`, to the current one."""

    store: int
    position: int


class Discard(NamedTuple):
    """Carry `store` of the storage is no longer needed."""

    store: int


Action: TypeAlias = Store | Load | Advance | Tape | Free | Write | Read | Discard


def scheduled_blocks(length: int, block_size: int) -> int:
    """The number of scheduled blocks. For single steps, the end of the loop counts as one more."""
    return length + 1 if block_size == 1 and length else -(-length // block_size)


def stride(length: int, block_size: int) -> int:
    """The number of steps of every block of a scan but the last, which has the rest.

    The forward sweep tapes the last block on its way, and only the others are run again. So they
    are equally short, and the last has up to `block_size` steps, as many as a tape holds.
    """
    others = -(-length // block_size) - 1
    return -(-(length - block_size) // others) if others > 0 else block_size


def useful_checkpoints(length: int, block_size: int, *, is_while: bool) -> int:
    """The most useful checkpoints: one for each block that the forward sweep does not tape."""
    blocks = -(-length // block_size)
    return max(blocks if block_size == 1 or is_while else blocks - 1, 1)


def value_and_gradient(
    length: int, checkpoints: int, block_size: int = 1, first: int = 0
) -> Iterator[Action]:
    """`revolve` for `jax.value_and_grad`, which needs the loop's value before its derivative.

    The forward sweep tapes a last block of several steps. Taping a single step there would cost
    more than it saves, so the schedule has one more step, the end of the loop, which is not taped.
    """
    with_end = length + 1 if block_size == 1 and length else length
    blocks, size = scheduled_blocks(length, block_size), stride(length, block_size)
    actions = revolve(with_end, checkpoints, size, first, blocks)
    return (action for action in actions if action != Tape(length, length + 1))


def revolve(
    length: int, checkpoints: int, size: int = 1, first: int = 0, blocks: int | None = None
) -> Iterator[Action]:
    """The actions that reverse a loop of `length` steps with `checkpoints` slots.

    Blocks have `size` steps, except the last of so many `blocks`. They are taped from the last down
    to block `first`, which the current carry enters. Before each, checkpoints are placed between
    the top of the stack and the block, but never at the block itself, where none would be read.
    Invariant: `stack` is the increasing list of stored positions, slot i holding `stack[i]`.
    """
    if length <= size * first:
        return
    stack, current, end = [first], first, length
    yield Store(0, size * first)
    for target in reversed(range(first, -(-length // size) if blocks is None else blocks)):
        if current != stack[-1]:
            current = stack[-1]
            yield Load(len(stack) - 1, size * current)
        while len(stack) < checkpoints:
            position = current + split(target + 1 - current, checkpoints + 1 - len(stack))
            if position >= target:
                break
            yield Advance(size * current, size * position)
            yield Store(len(stack), size * position)
            stack.append(position)
            current = position
        if current < target:
            yield Advance(size * current, size * target)
        yield Tape(size * target, end)
        current, end = -1, size * target
        if stack[-1] == target:
            stack.pop()
            yield Free(len(stack))
