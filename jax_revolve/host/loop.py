"""A loop that is about to run: by which steps and which plan, and its two sweeps."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax import lax

from jax_revolve._compat import is_zero, results_in, tangent_type, zeros
from jax_revolve.autodiff.sizes import sizes_of
from jax_revolve.host.directory import RunDirectory
from jax_revolve.host.fingerprint import Contents, Fingerprint, of_operands, of_platform
from jax_revolve.host.inputs import slices
from jax_revolve.host.levels import keep
from jax_revolve.host.placement import Values, put, sharding_of
from jax_revolve.host.processes import Processes
from jax_revolve.host.rows import Arriving, Consumed, Rows
from jax_revolve.host.run import (
    Cotangents,
    ForwardOnly,
    Position,
    Problem,
    run_forward,
    run_reverse,
)
from jax_revolve.host.step import CompiledStep, compiled_step
from jax_revolve.host.trace import Traced
from jax_revolve.host.watch import Watch
from jax_revolve.schedule.selection import Request
from jax_revolve.schedule.storage import Disk
from jax_revolve.schedule.two_level import AnyPlan
from jax_revolve.step.activity import Activity, Mask, find_activity
from jax_revolve.step.loop import Loop, Operands, pick
from jax_revolve.step.restart import find_restart

Results = tuple[Values, Values]
"""The final carry, and the ys."""


@dataclass(eq=False)
class Run:
    """A loop whose forward sweep is over.

    The first pullback uses up what is `left`, so that the device holds no more than the plan says.
    Another one goes on where the directory says, or runs the forward sweep again.
    """

    problem: Problem
    directory: RunDirectory | None
    left: Position | None
    is_pulled_back: bool = False


jax.tree_util.register_pytree_node(Run, lambda run: ((), run), lambda run, _: run)


@dataclass(eq=False)
class HostLoop:
    """The loop of a call of `host_scan`. Its operands come with each sweep, because JAX may be
    differentiating them."""

    traced: Traced
    plan: AnyPlan | Request
    consume: Callable[[int, Any], None] | None
    watch: Watch
    directory: str | os.PathLike[str] | None
    version: str | int | None

    def value(self, operands: Operands) -> Results:
        """One sweep that keeps nothing."""
        step = compiled_step(self.traced.loop, operands._replace(xs=[]))
        whole = (True,) * len(operands.carry)
        alone = ForwardOnly(self.traced.length)
        return self._forward(operands, step, whole, lambda: alone, "value")[0]

    def forward(self, operands: Operands, differentiated: Operands) -> tuple[Results, Run]:
        """The same, with what the reverse sweep needs."""
        loop, one = self.traced.loop, self.traced.one_slice(operands)
        if self.traced.fetched is not None:
            differentiated = differentiated._replace(xs=[False] * len(one.xs))
        activity = find_activity(loop, [flag for part in differentiated for flag in part])
        needed = find_restart(loop, activity, one)
        restart = tuple(r and not s for r, s in zip(needed, _unchanged(loop), strict=True))

        def choose() -> AnyPlan:
            if not isinstance(self.plan, Request):
                return self.plan
            sizes = sizes_of(loop, activity, needed, one)
            # All residuals of a step are there at once, and cotangents of weights are added up.
            uncut = sizes.residuals if sizes.uncut is None else sizes.uncut
            return self.plan.resolve(
                sizes._replace(residuals=uncut, weights=0, again=0, again_work=0.0, factors=0)
            )

        step = compiled_step(loop, one, activity)
        derivatives = f"gradient {differentiated} {restart}"
        return self._forward(operands, step, restart, choose, derivatives)

    def _forward(
        self,
        operands: Operands,
        step: CompiledStep,
        restart: Mask,
        choose: Callable[[], AnyPlan | ForwardOnly],
        derivatives: str,
    ) -> tuple[Results, Run]:
        """The results, and what is left for the reverse sweep."""
        traced, ys = self.traced, self._ys()

        def problem_of(plan: AnyPlan | ForwardOnly) -> Problem:
            fetch = traced.fetched or slices(operands.xs)
            parts = operands, fetch, keep, traced.entry, self.watch
            return Problem(step, traced.length, plan, restart, *parts)

        if self.directory is None:
            problem, position = problem_of(choose()), Position(carry=operands.carry)
            carry = run_forward(problem, position, ys, _nothing)
            return (carry, ys.result()), Run(problem, None, position)
        processes = Processes([x for part in operands for x in part])
        fingerprint = self._fingerprint(operands, step, derivatives, processes)
        directory = RunDirectory(Path(self.directory), fingerprint, processes)
        with directory.running(self.watch):
            problem = directory.begin(problem_of(directory.plan or choose()))
            directory.restore_ys(ys)
            carry, left = directory.final(), None
            if carry is None:
                position = directory.position()
                save = partial(directory.save_forward, position, ys)
                carry = run_forward(problem, position, ys, save, directory.reached)
                left = None if isinstance(problem.plan, ForwardOnly) else position
                directory.finish_forward(left, ys, carry)
        return (carry, ys.result()), Run(problem, directory, left)

    def reverse(self, run: Run, ct_carry: Values, ct_ys: Values) -> Operands:
        """The cotangents of the operands, `None` for those that are not differentiated."""
        problem, activity = run.problem, run.problem.step.activity
        operands = problem.operands
        if self.consume is not None:  # what a function took has no cotangents
            ct_ys = [None] * len(activity.ys)
        xs = [x.update(shape=x.shape[1:]) for x in map(tangent_type, operands.xs)]
        cotangents = Cotangents(
            list(map(_like, pick(ct_carry, activity.carry), pick(operands.carry, activity.carry))),
            list(map(_zeros_like, pick(operands.consts, activity.consts))),
            Rows(problem.length, pick(xs, activity.xs[: len(xs)])),  # no function's
            [None if is_zero(ct) else ct for ct in pick(ct_ys, activity.ys)],
        )
        if run.directory is None or not self._reverse_saved(run, run.directory, cotangents):
            position, run.left = run.left, None
            problem = problem._replace(keep=keep)
            if position is None:
                position = Position(carry=operands.carry)
                run_forward(problem, position, Consumed(lambda *_: None), _nothing)
            run_reverse(problem, position, cotangents, _nothing)
        return _spread(cotangents, activity, operands)

    def _reverse_saved(self, run: Run, directory: RunDirectory, cotangents: Cotangents) -> bool:
        """The reverse sweep of a run that is saved, whose state is that of its first pullback:
        returns false for a second one with other cotangents."""
        with directory.running(self.watch) as is_known:
            left, run.left = run.left if is_known else None, None
            if not directory.begin_reverse(cotangents, is_first=not run.is_pulled_back):
                return False
            run.is_pulled_back = True
            if not directory.is_over:
                position = left or directory.position()
                save = partial(directory.save_reverse, position, cotangents)
                run_reverse(run.problem, position, cotangents, save, directory.reached)
                directory.save_reverse(None, cotangents, run.problem.length)
        return True

    def _ys(self) -> Arriving:
        traced, take = self.traced, self.consume
        if take is not None:
            return Consumed(lambda at, y: take(at, jax.tree.unflatten(traced.y_tree, y)))
        _, types = traced.loop.results(traced.loop.jaxpr.out_avals)
        return Rows(traced.length, types)

    def _fingerprint(
        self, operands: Operands, step: CompiledStep, derivatives: str, processes: Processes
    ) -> Fingerprint:
        traced, plan, contents = self.traced, self.plan, Contents(self.version)
        if isinstance(plan.storage, Disk):  # which is the directory of the run
            plan = replace(plan, storage=replace(plan.storage, directory=""))
        options = traced.length, traced.loop.reverse, self.consume is None, plan
        function = None if traced.fetched is None else traced.fetched.function
        return {
            "step": contents.of("the step", *step.programs),
            "inputs": of_operands([*operands.consts, *operands.carry, *operands.xs]),
            "function for xs": contents.of("xs", function),
            "slices of xs": of_operands(traced.fetched.example if traced.fetched else ()),
            "derivatives": derivatives,
            "options": repr(options),
            "version": repr(self.version),
            "versions of JAX or the devices": of_platform(processes.count),
        }


def _nothing(reached: int) -> None:
    """Save nothing."""


def _unchanged(loop: Loop) -> list[bool]:
    """The leaves of the carry that no step changes."""
    carry, _ = loop.results(results_in(loop.jaxpr))
    return [result.input == loop.num_consts + i for i, result in enumerate(carry)]


def _like(cotangent: Any, value: Any) -> Any:
    """A cotangent of a value, as those that the steps compute."""
    if is_zero(cotangent):
        return _zeros_like(value)
    strong = lax.convert_element_type(cotangent, jax.typeof(cotangent).dtype)
    return put(strong, sharding_of(value))


def _zeros_like(value: Any) -> Any:
    return put(zeros(tangent_type(value)), sharding_of(value))


def _spread(cotangents: Cotangents, activity: Activity, operands: Operands) -> Operands:
    """The cotangents of all operands, `None` for those that are not differentiated."""
    consts, carry, xs = map(iter, (cotangents.consts, cotangents.carry, cotangents.xs.result()))
    ct_carry = [next(carry) if active else None for active in activity.carry]
    pairs = zip(operands.xs, activity.xs, strict=False)  # xs that are fetched are no operands
    return Operands(
        [next(consts) if active else None for active in activity.consts],
        [ct if active else None for ct, active in zip(ct_carry, activity.init, strict=True)],
        [put(next(xs), sharding_of(x)) if active else None for x, active in pairs],
    )
