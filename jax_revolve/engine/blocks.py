"""Blocks that are taped: of single steps, and of several.

A single step is taped where it is pulled back, and its residuals are in no buffer. A longer block
is taped into one buffer, which all blocks of a sweep share. The forward sweep of a scan tapes the
last block on its way; for a block of one step, the tape would cost more than it saves: buffers
between programs, and another copy of the step's code.
"""

from typing import Any

from jax_revolve._compat.values import pick
from jax_revolve.engine.buffers import Taped
from jax_revolve.engine.sweep import Block, Forward, Pull, Reached, Results
from jax_revolve.engine.tape.layout import Tape
from jax_revolve.engine.tape.tape import taped_step
from jax_revolve.schedule.plan import Plan
from jax_revolve.step.cpu import in_a_branch
from jax_revolve.step.loop import Loop, Operands, for_loop
from jax_revolve.storage.buffers import write


class Single(Block):
    """A block of one step. It has no work."""

    @staticmethod
    def serves(loop: Loop, plan: Plan) -> bool:
        del loop
        return plan.block_size == 1

    def __init__(self, plan: Plan, pull: Pull, saved: None) -> None:
        super().__init__(plan, pull, saved)
        self._pullback = pull.through(1)

    def reverse(
        self, restarted: list[Any], start: Any, count: Any, gradient: Operands, work: Any
    ) -> tuple[Operands, Any, Reached]:
        del count
        steps, step = self.pull.steps, self.pull.step
        inputs = steps.inputs(steps.whole(restarted), start)
        if step.needs_writes(steps):  # then the histories in the tape are those after the step
            carry, y, taped = step.run(steps, inputs)
            reached = steps.after(restarted, carry, y, start), start + 1
        else:
            run = lambda: step.run(steps, inputs)[2]  # noqa: E731
            taped, reached = in_a_branch(start >= 0, step.step.closed, run), (restarted, start)
        return self._pullback.through_step(taped, start, gradient)[0], work, reached


class Several(Block):
    """A block of several steps. Its work is the tape."""

    tapes = True

    @staticmethod
    def serves(loop: Loop, plan: Plan) -> bool:
        del loop, plan
        return True

    @staticmethod
    def run_last(
        sweep: Forward, plan: Plan, results: Results, *, tapes: bool
    ) -> tuple[Results, Taped | None]:
        steps, first = sweep.steps, plan.stride * (plan.blocks - 1)
        if not tapes:
            return sweep.run_block(plan, results), None
        taped = taped_step(steps.linearized)

        def tape_step(i: Any, state: tuple[Results, Tape]) -> tuple[Results, Tape]:
            (carry, ys), tape = state
            carry, y, stored = taped.run(steps, steps.inputs(carry, first + i))
            ys = write(ys, pick(y, sweep.keep_ys), steps.loop.entry(first + i))
            return (carry, ys), taped.layout.write(tape, stored, i)

        # As long as every block's tape, because the reverse sweep reuses the buffers.
        state = results, taped.empty(plan.block_size, results[0])
        results, tape = for_loop(0, plan.length - first, tape_step, state)
        return results, Taped(taped.layout.end(tape, results[0]))

    def __init__(self, plan: Plan, pull: Pull, saved: Taped | None) -> None:
        """A while loop has saved no tape."""
        super().__init__(plan, pull, saved)
        self._last, self._pullback = saved, pull.through(self.most)

    def begin(self) -> Tape:
        if self._last is not None:
            return self._last.tape
        return self.pull.step.empty(self.most, self.pull.steps.operands.carry)

    def reverse_last(
        self, start: int, count: int, gradient: Operands, work: Tape
    ) -> tuple[Operands, Tape]:
        return self._pullback.through_block(work, start, count, gradient), work

    def reverse(
        self, restarted: list[Any], start: Any, count: Any, gradient: Operands, work: Tape
    ) -> tuple[Operands, Tape, Reached]:
        steps = self.pull.steps
        end, taped = self.pull.step.tape_steps(steps, work, restarted, start, count)
        reached = end, start + count
        return self._pullback.through_block(taped, start, count, gradient), taped, reached
