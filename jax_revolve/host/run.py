"""A run: its forward sweep, and the reverse sweep of each pullback, with or without a directory."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax import lax

from jax_revolve._compat.values import is_zero, tangent_type, zeros
from jax_revolve.host.arrays import Values, keep, put, sharding_of
from jax_revolve.host.directory import RunDirectory
from jax_revolve.host.position import Cotangents, Position, sweep
from jax_revolve.host.problem import Problem
from jax_revolve.host.rows import Rows
from jax_revolve.host.watch import Processes, Watch
from jax_revolve.step.linearized import of_init
from jax_revolve.step.loop import Operands, pick, substitute

Results = tuple[Values, Values]
"""The final carry, and the ys."""


@dataclass(eq=False)
class Run:
    """A run whose forward sweep is over.

    The first pullback uses up what is `left`, so that the device holds no more than the plan says.
    Another one goes on where the directory says, or runs the forward sweep again.
    """

    problem: Problem
    watch: Watch
    directory: RunDirectory | None
    left: Position | None
    is_pulled_back: bool = False

    def pull_back(self, ct_carry: Values, ct_ys: Values) -> Operands:
        """The cotangents of the operands, `None` for those that are not differentiated."""
        problem, cotangents = self.problem, self._begin(ct_carry, ct_ys)
        if self.directory is None or not self._pull_back_saved(self.directory, cotangents):
            position, self.left = self.left, None
            if position is None:
                position = Position(carry=problem.operands.carry)
                sweep(problem, position, Rows(0, [], lambda *_: None), self.watch, keep)
                position.after_forward()
            sweep(problem, position, cotangents, self.watch, keep)
        return self._spread(cotangents)

    def _pull_back_saved(self, directory: RunDirectory, cotangents: Cotangents) -> bool:
        """The reverse sweep of a run that is saved, whose state belongs to its first pullback:
        returns false for a second one with other cotangents."""
        with directory.running(self.watch) as is_known:
            left, self.left = self.left if is_known else None, None
            if not directory.begin_reverse(cotangents, is_first=not self.is_pulled_back):
                return False
            self.is_pulled_back = True
            if not directory.is_over:
                position = left or directory.position()
                save = partial(directory.save, position, cotangents)
                sweep(self.problem, position, cotangents, self.watch, directory.keep, save)
                directory.save(position, cotangents, is_over=True)
        return True

    def _begin(self, ct_carry: Values, ct_ys: Values) -> Cotangents:
        problem, activity = self.problem, self.problem.step.activity
        operands = problem.operands
        if problem.consume is not None:  # what a function took has no cotangents
            ct_ys = [None] * len(activity.ys)
        xs = [x.update(shape=x.shape[1:]) for x in map(tangent_type, operands.xs)]
        return Cotangents(
            list(map(_like, pick(ct_carry, activity.carry), pick(operands.carry, activity.carry))),
            list(map(_zeros_like, pick(operands.consts, activity.consts))),
            Rows(problem.length, pick(xs, activity.xs[: len(xs)])),  # no function's
            [None if is_zero(ct) else ct for ct in pick(ct_ys, activity.ys)],
        )

    def _spread(self, cotangents: Cotangents) -> Operands:
        """The cotangents of all operands, `None` for those that are not differentiated."""
        activity, operands = self.problem.step.activity, self.problem.operands
        mask = activity.xs[: len(operands.xs)]
        xs = map(put, cotangents.xs.result(), map(sharding_of, pick(operands.xs, mask)))
        spread = lambda mask, chosen: substitute([None] * len(mask), mask, chosen)  # noqa: E731
        return Operands(
            spread(activity.consts, cotangents.consts),
            spread(activity.init, of_init(cotangents.carry, activity)),
            spread(mask, list(xs)),
        )


def run_forward(problem: Problem) -> tuple[Results, Run]:
    """The results, and what pulls cotangents back."""
    ys, watch = problem.ys(), Watch(problem.listener, problem.save_every)
    if problem.directory is None:
        position = Position(carry=problem.operands.carry)
        sweep(problem, position, ys, watch, keep)
        final = position.after_forward()
        return (final, ys.result()), Run(problem, watch, None, position)
    processes = Processes([x for part in problem.operands for x in part])
    directory = RunDirectory(Path(problem.directory), problem, processes)
    with directory.running(watch):
        problem = directory.begin(ys)
        final, position = directory.final(), directory.position()
        if final is None:
            save = partial(directory.save, position, ys)
            sweep(problem, position, ys, watch, directory.keep, save)
            final = position.after_forward()
            directory.save(position, ys, final, is_over=problem.plan is None)
    return (final, ys.result()), Run(problem, watch, directory, position)


def _like(cotangent: Any, value: Any) -> Any:
    """A cotangent of a value, as those that the steps compute."""
    if is_zero(cotangent):
        return _zeros_like(value)
    strong = lax.convert_element_type(cotangent, jax.typeof(cotangent).dtype)
    return put(strong, sharding_of(value))


def _zeros_like(value: Any) -> Any:
    return put(zeros(tangent_type(value)), sharding_of(value))
