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
from jax_revolve.host.inputs import Fetched, Slices
from jax_revolve.host.levels import keep
from jax_revolve.host.placement import Values, put, sharding_of
from jax_revolve.host.processes import Processes
from jax_revolve.host.resume.fingerprint import of_arrays, of_platform, of_text
from jax_revolve.host.resume.session import Session
from jax_revolve.host.reversal import Reversal, reversal_of
from jax_revolve.host.rows import Arriving, Consumed, Rows
from jax_revolve.host.run import Cotangents, Place, Problem, Step, Sweep
from jax_revolve.host.watch import Watch
from jax_revolve.schedule.actions import Advance
from jax_revolve.schedule.selection import Request
from jax_revolve.schedule.storage import Disk
from jax_revolve.schedule.two_level import AnyPlan
from jax_revolve.step.activity import Activity, Mask
from jax_revolve.step.loop import Loop, Operands, pick

Results = tuple[Values, Values]
"""The final carry, and the ys."""


@dataclass(eq=False)
class Held:
    """What the forward sweep leaves for the reverse sweep: its place, with the residuals of the
    last block if it has several steps.

    The first pullback uses it up, so that the device holds no more than the plan says. Another one
    runs the forward sweep again.
    """

    problem: Problem
    operands: Operands
    reversal: Reversal
    session: Session | None
    left: tuple[Place, list[Any] | None] | None


jax.tree_util.register_pytree_node(Held, lambda held: ((), held), lambda held, _: held)


@dataclass(eq=False)
class HostLoop:
    """The loop of a call of `host_scan`. Its operands come with each sweep, because JAX may be
    differentiating them."""

    step: Loop | EagerStep
    name: str
    """What the step is, for the directory of the run."""
    length: int
    is_reversed: bool
    plan: AnyPlan | Request
    fetched: Fetched | None
    consume: Callable[[int, Values], None] | None
    watch: Watch
    directory: str | os.PathLike[str] | None

    def value(self, operands: Operands) -> Results:
        """One sweep that keeps nothing."""
        step = self.step
        if not isinstance(step, EagerStep):
            step = compiled_step(step, operands._replace(xs=[]))
        whole = (True,) * len(operands.carry)
        session = self._session(operands, whole, "value", ())
        problem = self._problem(operands, step, whole)
        place = session and session.place(None, None)
        place = place or Place(carry=operands.carry)
        return self._forward(problem, session, place, is_all=True)[0]

    def forward(self, operands: Operands, differentiated: Operands) -> tuple[Results, Held]:
        """The same, with what the reverse sweep needs."""
        xs = [x[:1] for x in operands.xs]
        if self.fetched is not None:
            xs = [x[None] for x in self.fetched.example]
            differentiated = differentiated._replace(xs=[False] * len(xs))
        found = reversal_of(self.step, self.plan, operands._replace(xs=xs), differentiated)
        plan = found.plan
        session = self._session(
            operands,
            found.restart,
            f"gradient {differentiated}",
            (plan.checkpoints, plan.block_size, getattr(plan, "stores", ())),
        )
        keep_store = partial(keep, found.stores)
        if session is not None and isinstance(found.stores, Disk):
            keep_store = session.journal.keep
        problem = self._problem(operands, found.step, found.restart)._replace(
            actions=plan,
            evaluations=plan.evaluations,
            block_size=plan.block_size,
            keep_slot=partial(keep, found.slots),
            keep_store=keep_store,
        )
        place = session and session.place(found.slots, found.stores)
        place = place or Place(carry=operands.carry)
        results, taped = self._forward(problem, session, place, is_all=False)
        return results, Held(problem, operands, found, session, (place, taped))

    def reverse(self, held: Held, ct_carry: Values, ct_ys: Values) -> Operands:
        """The cotangents of the operands, `None` for those that are not differentiated."""
        problem, operands, session = held.problem, held.operands, held.session
        activity = problem.step.activity
        if self.consume is not None:  # what a function took has no cotangents
            ct_ys = [None] * len(activity.ys)
        cotangents = Cotangents(
            list(map(_like, pick(ct_carry, activity.carry), pick(operands.carry, activity.carry))),
            list(map(_zeros_like, pick(operands.consts, activity.consts))),
            Rows(self.length),
            [None if is_zero(ct) else ct for ct in pick(ct_ys, activity.ys)],
        )
        if session is None:
            place, taped = held.left or self._run_again(held)
            held.left = None
            Sweep(problem, place, _nothing).reverse(cotangents, taped)
        elif not session.begin_reverse(cotangents):
            if held.left is None:  # an earlier pullback failed
                last = session.place(held.reversal.slots, held.reversal.stores)
                assert last is not None
                held.left = last, None
            (place, taped), held.left = held.left, None
            with session.running(self.watch):
                save = partial(session.save_reverse, place, cotangents)
                Sweep(problem, place, save, session.reached).reverse(cotangents, taped)
                session.finish_reverse(cotangents)
        return _spread(cotangents, activity, operands)

    def _forward(
        self, problem: Problem, session: Session | None, place: Place, *, is_all: bool
    ) -> tuple[Results, list[Any] | None]:
        """The results, and what is taped of the last block. The place becomes that of the reverse
        sweep, unless this sweep `is_all`."""
        ys = Rows(self.length) if self.consume is None else Consumed(self.consume)
        if session is None:
            carry, taped = Sweep(problem, place, _nothing).forward(ys)
            return (carry, ys.result()), taped
        self._restore_ys(session, ys)
        carry, taped = session.final, None
        if carry is None:
            with session.running(self.watch):
                save = partial(session.save_forward, place)
                carry, taped = Sweep(problem, place, save, session.reached).forward(ys)
                session.finish_forward(None if is_all else place, carry)
        return (carry, ys.result()), taped

    def _run_again(self, held: Held) -> tuple[Place, list[Any] | None]:
        """The forward sweep of a pullback that is not the first."""
        place = Place(carry=held.operands.carry)
        _, taped = Sweep(held.problem, place, _nothing).forward(Consumed(lambda *_: None))
        return place, taped

    def _problem(self, operands: Operands, step: Step, restart: Mask) -> Problem:
        """That of one sweep which keeps nothing."""
        return Problem(
            step=step,
            length=self.length,
            actions=(Advance(0, self.length),),
            evaluations=self.length,
            block_size=1,
            consts=operands.consts,
            init=operands.carry,
            inputs=self.fetched or Slices(operands.xs),
            restart=restart,
            keep_slot=partial(keep, None),
            keep_store=partial(keep, None),
            entry=self._entry,
            watch=self.watch,
        )

    def _entry(self, step: int) -> int:
        return self.length - 1 - step if self.is_reversed else step

    def _entries(self, first: int, last: int) -> slice:
        """The entries of the steps from `first` to before `last`."""
        n = self.length
        return slice(n - last, n - first) if self.is_reversed else slice(first, last)

    def _session(
        self, operands: Operands, restart: Mask, derivatives: str, plan: tuple[Any, ...]
    ) -> Session | None:
        if self.directory is None:
            return None
        xs = operands.xs if self.fetched is None else []
        processes = Processes([*operands.consts, *operands.carry, *xs])
        return Session(
            Path(self.directory),
            processes,
            {
                "step": of_text(self.name),
                "inputs": of_arrays([*operands.consts, *operands.carry, *xs]),
                "derivatives": of_text(derivatives),
                "options": of_text(self.length, self.is_reversed, self.consume is None, *plan),
                "versions of JAX or the devices": of_platform(processes),
            },
            operands.carry,
            restart,
            self._entries,
            self.length,
            self._describe_ys,
        )

    def _describe_ys(self) -> Any:
        """The structure of a y, where no trace of the step tells it."""
        return self.step.described if isinstance(self.step, EagerStep) else None

    def _restore_ys(self, session: Session, ys: Arriving) -> None:
        types = None
        if isinstance(self.step, EagerStep):
            self.step.described = session.described
        else:
            types = self.step.output_types[self.step.num_carry :]
            types = [jax.ShapeDtypeStruct(t.shape[1:], t.dtype) for t in types]
        session.keep_ys(ys, types)


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
