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
    """Run the steps `start`, ..., `stop - 1` without keeping their linearisations."""

    start: int
    stop: int


class Tape(NamedTuple):
    """Run step `position` keeping its linearisation, and transpose it. The carry is used up."""

    position: int


class Free(NamedTuple):
    """The carry in `slot` is not needed any more."""

    slot: int


Action: TypeAlias = Store | Load | Advance | Tape | Free


def revolve(length: int, checkpoints: int) -> Iterator[Action]:
    """Every action that reverses a loop of `length` steps with `checkpoints` slots.

    The slots are a stack of positions, lowest at the bottom. Steps are taped from the last to the
    first; before each, checkpoints are placed on the way from the top of the stack to that step. A
    checkpoint right where the step is taped would never be read, so none is placed there.
    """
    if length == 0:
        return
    stack, current = [0], 0
    yield Store(0, 0)
    for step in reversed(range(length)):
        if current != stack[-1]:
            current = stack[-1]
            yield Load(len(stack) - 1, current)
        while len(stack) < checkpoints:
            target = current + split(step + 1 - current, checkpoints + 1 - len(stack))
            if target >= step:
                break
            yield Advance(current, target)
            yield Store(len(stack), target)
            stack.append(target)
            current = target
        if current < step:
            yield Advance(current, step)
        yield Tape(step)
        current = -1
        if stack[-1] == step:
            stack.pop()
            yield Free(len(stack))
