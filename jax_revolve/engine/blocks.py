"""Blocks that are taped: of single steps, and of several.

A single step is taped where it is pulled back, and its residuals are in no buffer. A longer block
is taped into one buffer, which all blocks of a sweep share. The forward sweep of a scan tapes the
last block on its way; for a block of one step, the tape would cost more than it saves: buffers
between programs, and another copy of the step's code.
"""

from typing import Any

from jax_revolve.engine.buffers import Taped
from jax_revolve.engine.sweep import Block
from jax_revolve.engine.tape.tape import Pullback, TapedStep
from jax_revolve.step.cpu import in_a_branch
from jax_revolve.step.loop import Operands
from jax_revolve.step.steps import Steps, for_loop
from jax_revolve.storage.buffers import Buffers


class Single(Block):
    """A block of one step. It has no work."""

    size = 1

    def __init__(self, steps: Steps, step: TapedStep, pullback: Pullback) -> None:
        self._steps, self._step, self._pullback = steps, step, pullback

    def reverse(
        self, restarted: list[Any], start: Any, count: Any, gradient: Operands, work: Any
    ) -> tuple[Operands, Any]:
        del count
        inputs = self._steps.inputs(self._steps.whole(restarted), start)
        tape = lambda: self._step.run(self._steps, inputs)[2]  # noqa: E731
        taped = in_a_branch(start >= 0, self._step.step.closed, tape)
        return self._pullback.through_step(taped, start, gradient)[0], work


class Tape(Block):
    """A block of several steps. Its work is the buffer of the tape."""

    def __init__(
        self, size: int, steps: Steps, step: TapedStep, pullback: Pullback, last: Taped | None
    ) -> None:
        """`last` is the tape of the last block."""
        self.size, self._last = size, last
        self._steps, self._step, self._pullback = steps, step, pullback

    def begin(self) -> Buffers:
        return self._step.empty(self.size) if self._last is None else self._last.leaves

    def reverse_last(
        self, start: int, count: int, gradient: Operands, work: Buffers, loop: Any
    ) -> tuple[Operands, Buffers]:
        return self._pullback.through_block(work, start, count, gradient, loop), work

    def reverse(
        self, restarted: list[Any], start: Any, count: Any, gradient: Operands, work: Buffers
    ) -> tuple[Operands, Buffers]:
        taped = self._step.tape_steps(self._steps, work, restarted, start, count)
        return self._pullback.through_block(taped, start, count, gradient, for_loop), taped
