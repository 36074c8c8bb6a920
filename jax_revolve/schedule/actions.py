"""A schedule spelled out, action by action: for printing, drawing and checking."""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from jax_revolve.schedule.binomial import split


class Store(NamedTuple):
    """Copy the current carry, which enters step `position`, into `slot`."""

    slot: int
    position: int


class Load(NamedTuple):
    """Make the carry in `slot`, which enters step `position`, the current one."""

    slot: int
    position: int


class Advance(NamedTuple):
    """Run the steps `start`, ..., `stop - 1` without keeping their linearizations."""

    start: int
    stop: int


class Tape(NamedTuple):
    """Run the steps `start`, ..., `stop - 1` keeping their linearizations, and transpose them, the
    last one first. The carry is used up."""

    start: int
    stop: int


class Free(NamedTuple):
    """The carry in `slot` is not needed any more."""

    slot: int


class Write(NamedTuple):
    """Copy the current carry, which enters step `position`, to the storage beside the device, as
    its carry number `store`."""

    store: int
    position: int


class Read(NamedTuple):
    """Make the carry `store` of the storage, which enters step `position`, the current one."""

    store: int
    position: int


class Discard(NamedTuple):
    """The carry `store` of the storage is not needed any more."""

    store: int


Action: TypeAlias = Store | Load | Advance | Tape | Free | Write | Read | Discard


def scheduled_blocks(length: int, block_size: int) -> int:
    """The number of blocks that `value_and_gradient` reverses, with the end of the loop as one."""
    return length + 1 if block_size == 1 and length else -(-length // block_size)


def value_and_gradient(
    length: int, checkpoints: int, block_size: int = 1, first: int = 0
) -> Iterator[Action]:
    """As `revolve`, where the loop's value is needed before the derivative is asked for.

    The last block is taped while the value is computed. A block of a single step is not, since that
    would cost more than it saves: the end of the loop then stands for one step more, which is
    reached and not taped.
    """
    end = Tape(length, length + 1)
    with_end = length + 1 if block_size == 1 and length else length
    for action in revolve(with_end, checkpoints, block_size, first):
        if action != end:
            yield action


def revolve(length: int, checkpoints: int, block_size: int = 1, first: int = 0) -> Iterator[Action]:
    """Every action that reverses a loop of `length` steps with `checkpoints` slots, or its blocks
    from `first` on, which the current carry enters.

    The slots are a stack of positions, lowest at the bottom. Blocks of `block_size` steps, of which
    the last may be shorter, are taped from the last to the first; before each, checkpoints are
    placed on the way from the top of the stack to that block. A checkpoint right where the block is
    taped would never be read, so none is placed there.
    """
    if length <= block_size * first:
        return
    stack, current = [first], first
    yield Store(0, block_size * first)
    for target in reversed(range(first, -(-length // block_size))):
        if current != stack[-1]:
            current = stack[-1]
            yield Load(len(stack) - 1, block_size * current)
        while len(stack) < checkpoints:
            position = current + split(target + 1 - current, checkpoints + 1 - len(stack))
            if position >= target:
                break
            yield Advance(block_size * current, block_size * position)
            yield Store(len(stack), block_size * position)
            stack.append(position)
            current = position
        if current < target:
            yield Advance(block_size * current, block_size * target)
        yield Tape(block_size * target, min(block_size * (target + 1), length))
        current = -1
        if stack[-1] == target:
            stack.pop()
            yield Free(len(stack))
