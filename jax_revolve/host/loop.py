"""A loop that is about to run: what it runs, and its two sweeps."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax import lax

from jax_revolve._compat import is_zero, tangent_type, zeros
from jax_revolve.host.body.compiled import compiled_step
from jax_revolve.host.body.eager import EagerStep
from jax_revolve.host.body.prepared import Prepared
from jax_revolve.host.inputs import slices
from jax_revolve.host.levels import keep
from jax_revolve.host.placement import Values, put, sharding_of
from jax_revolve.host.processes import Processes
from jax_revolve.host.resume.fingerprint import of_arrays, of_platform, of_text
from jax_revolve.host.resume.folder import Folder
from jax_revolve.host.resume.session import Session
from jax_revolve.host.reversal import Reversal, reversal_of
from jax_revolve.host.rows import Consumed, Rows
from jax_revolve.host.run import Cotangents, ForwardOnly, Position, Problem, Sweep
from jax_revolve.host.watch import Watch
from jax_revolve.schedule.selection import Request
from jax_revolve.schedule.two_level import AnyPlan
from jax_revolve.step.activity import Activity
from jax_revolve.step.loop import Operands, pick

Results = tuple[Values, Values]
"""The final carry, and the ys."""

Left = tuple[Position, list[Any] | None]
"""What a forward sweep leaves for the reverse sweep: its place, with the residuals of the last
block if it has several steps."""


@dataclass(eq=False)
class Run:
    """A loop with its operands.

    The first pullback uses up what is `left`, so that the device holds no more than the plan says.
    Another one runs the forward sweep again.
    """

    problem: Problem
    session: Session | None
    left: Left | None


jax.tree_util.register_pytree_node(Run, lambda run: ((), run), lambda run, _: run)


@dataclass(eq=False)
class HostLoop:
    """The loop of a call of `host_scan`. Its operands come with each sweep, because JAX may be
    differentiating them."""

    prepared: Prepared
    is_reversed: bool
    plan: AnyPlan | Request
    consume: Callable[[int, Any], None] | None
    watch: Watch
    directory: str | os.PathLike[str] | None

    def value(self, operands: Operands) -> Results:
        """One sweep that keeps nothing."""
        step = self.prepared.step
        if not isinstance(step, EagerStep):
            step = compiled_step(step, operands._replace(xs=[]))
        whole = (True,) * len(operands.carry)
        alone = Reversal(step, ForwardOnly(self.prepared.length), whole)
        return self._forward(self._begin(operands, alone, "value"))

    def forward(self, operands: Operands, differentiated: Operands) -> tuple[Results, Run]:
        """The same, with what the reverse sweep needs."""
        xs, fetched = [x[:1] for x in operands.xs], self.prepared.fetched
        if fetched is not None:
            xs = [x[None] for x in fetched.example]
            differentiated = differentiated._replace(xs=[False] * len(xs))
        step, one = self.prepared.step, operands._replace(xs=xs)
        reversal = reversal_of(step, self.plan, one, differentiated)
        run = self._begin(operands, reversal, f"gradient {differentiated}")
        return self._forward(run), run

    def reverse(self, run: Run, ct_carry: Values, ct_ys: Values) -> Operands:
        """The cotangents of the operands, `None` for those that are not differentiated."""
        problem, session = run.problem, run.session
        activity, operands = problem.step.activity, problem.operands
        if self.consume is not None:  # what a function took has no cotangents
            ct_ys = [None] * len(activity.ys)
        cotangents = Cotangents(
            list(map(_like, pick(ct_carry, activity.carry), pick(operands.carry, activity.carry))),
            list(map(_zeros_like, pick(operands.consts, activity.consts))),
            Rows(problem.length),
            [None if is_zero(ct) else ct for ct in pick(ct_ys, activity.ys)],
        )
        if session is None:
            (position, taped), run.left = run.left or _run_again(problem), None
            Sweep(problem, position, _nothing).reverse(cotangents, taped)
        elif not session.begin_reverse(cotangents):
            if run.left is None:  # an earlier pullback failed
                last = session.position
                assert last is not None
                run.left = last, None
            (position, taped), run.left = run.left, None
            with session.running():
                save = partial(session.save_reverse, position, cotangents)
                Sweep(problem, position, save, session.reached).reverse(cotangents, taped)
                session.save_reverse(None, cotangents, problem.length)
        return _spread(cotangents, activity, operands)

    def _begin(self, operands: Operands, reversal: Reversal, derivatives: str) -> Run:
        """The run of these operands, at its beginning or where it goes on."""
        length, fetched = self.prepared.length, self.prepared.fetched
        problem = Problem(
            step=reversal.step,
            length=length,
            plan=reversal.plan,
            restart=reversal.restart,
            operands=operands,
            inputs=fetched or partial(slices, operands.xs),
            keep=keep,
            entry=lambda step: length - 1 - step if self.is_reversed else step,
            watch=self.watch,
        )
        session = position = None
        if self.directory is not None:
            session = self._session(Path(self.directory), problem, derivatives)
            position = session.position
            problem = problem._replace(keep=session.keep)
        return Run(problem, session, (position or Position(carry=operands.carry), None))

    def _session(self, directory: Path, problem: Problem, derivatives: str) -> Session:
        plan, values = problem.plan, [x for part in problem.operands for x in part]
        parts = getattr(plan, "checkpoints", 0), plan.block_size, getattr(plan, "stores", ())
        options = problem.length, self.is_reversed, self.consume is None, *parts
        processes = Processes(values)
        fingerprint = {
            "step": of_text(self.prepared.name),
            "inputs": of_arrays(values),
            "derivatives": of_text(derivatives),
            "options": of_text(*options),
            "versions of JAX or the devices": of_platform(processes.count),
        }
        return Session(Folder(directory, processes), fingerprint, problem)

    def _forward(self, run: Run) -> Results:
        """The results. What is left is then what the reverse sweep needs."""
        problem, session, take = run.problem, run.session, self.consume
        ys = Rows(problem.length)
        if take is not None:
            ys = Consumed(lambda entry, y: take(entry, self.prepared.y(y)))
        assert run.left is not None
        position, _ = run.left
        if session is None:
            carry, taped = Sweep(problem, position, _nothing).forward(ys)
            run.left = position, taped
            return carry, ys.result()
        session.keep_ys(ys)
        carry = session.final
        if carry is None:
            with session.running():
                save = partial(session.save_forward, position)
                carry, taped = Sweep(problem, position, save, session.reached).forward(ys)
                is_over = isinstance(problem.plan, ForwardOnly)
                session.finish_forward(None if is_over else position, carry)
            run.left = position, taped
        return carry, ys.result()


def _run_again(problem: Problem) -> Left:
    """The forward sweep of a pullback that is not the first."""
    position = Position(carry=problem.operands.carry)
    _, taped = Sweep(problem, position, _nothing).forward(Consumed(lambda *_: None))
    return position, taped


def _nothing(reached: int) -> None:
    """Save nothing."""


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
