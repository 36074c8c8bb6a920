"""The two sweeps: the actions of a plan, run by Python."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Protocol

from jax_revolve.host.body.compiled import Pulled
from jax_revolve.host.inputs import Inputs, Slices, slices_of
from jax_revolve.host.levels import Checkpoint
from jax_revolve.host.placement import Values
from jax_revolve.host.rows import Arriving, Rows
from jax_revolve.host.watch import Watch
from jax_revolve.progress.listener import FORWARD, REVERSE
from jax_revolve.schedule.actions import (
    Action,
    Advance,
    Discard,
    Free,
    Load,
    Read,
    Store,
    Tape,
    Write,
)
from jax_revolve.schedule.arguments import readable
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.storage import Storage
from jax_revolve.schedule.two_level import AnyPlan, TwoLevelPlan
from jax_revolve.step.activity import Activity, Mask
from jax_revolve.step.loop import Operands, pick, substitute


class Step(Protocol):
    """`CompiledStep` or `EagerStep`."""

    @property
    def described(self) -> str | None:
        """What it has found out about its results, for another process."""

    @described.setter
    def described(self, text: str | None) -> None: ...

    @property
    def activity(self) -> Activity: ...

    def forward(self, consts: Values, carry: Values, x: Values) -> tuple[Values, Values]: ...

    def tape(self, inputs: Operands) -> tuple[Values, Values, Any]: ...

    def pull(
        self, inputs: Operands, ct_carry: Values, ct_y: Values, ct_consts: Values
    ) -> Pulled: ...

    def pull_taped(
        self, residuals: Any, ct_carry: Values, ct_y: Values, ct_consts: Values
    ) -> Pulled: ...


@dataclass
class Position:
    """How far a sweep is, and what it holds: the number of actions that are done, of the steps of
    the next one that are, and of evaluations so far, the current carry, and the checkpoints."""

    actions: int = 0
    steps: int = 0
    evaluations: int = 0
    carry: Values | None = None
    slots: dict[int, Checkpoint] = field(default_factory=dict)
    stores: dict[int, Checkpoint] = field(default_factory=dict)

    def text(self, evaluations: int) -> str:
        """The evaluations, of so many, and the bytes of the checkpoints on each level."""
        held = dict[str, int]()
        for checkpoint in (*self.slots.values(), *self.stores.values()):
            held[checkpoint.level] = held.get(checkpoint.level, 0) + checkpoint.nbytes
        levels = [f"{readable(size)} {level}" for level, size in held.items()]
        return ", ".join([f"{self.evaluations} of {evaluations} evaluations", *levels])


@dataclass(frozen=True)
class ForwardOnly:
    """The plan of a loop that is not differentiated."""

    length: int
    block_size: int = 1

    @property
    def evaluations(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Action]:
        yield Advance(0, self.length)


class Problem(NamedTuple):
    """What both sweeps know of a loop."""

    step: Step
    length: int
    plan: AnyPlan | ForwardOnly
    restart: Mask
    """The leaves of the carry that a checkpoint holds."""
    operands: Operands
    inputs: Inputs
    keep: Callable[[Storage | None, Values], Checkpoint]
    entry: Callable[[int], int]
    """The index in xs and ys of a step."""
    watch: Watch

    @property
    def slots(self) -> Storage | None:
        """Where the checkpoints are that the plan counts as slots."""
        return self.plan.storage if isinstance(self.plan, Plan) else None

    @property
    def stores(self) -> Storage | None:
        """Where the others are."""
        return self.plan.storage if isinstance(self.plan, TwoLevelPlan) else None

    def move(self, position: Position, action: Action) -> None:
        """An action that runs no step."""
        match action:
            case Store(slot, _):
                position.slots[slot] = self.keep(self.slots, self._restart(position))
            case Write(store, _):
                position.stores[store] = self.keep(self.stores, self._restart(position))
            case Load(slot, _):
                position.carry = self._whole(position.slots[slot])
            case Read(store, _):
                position.carry = self._whole(position.stores[store])
            case Free(slot):
                del position.slots[slot]
            case Discard(store):
                del position.stores[store]
        position.actions += 1

    def _restart(self, position: Position) -> Values:
        assert position.carry is not None
        return pick(position.carry, self.restart)

    def _whole(self, checkpoint: Checkpoint) -> Values:
        return substitute(self.operands.carry, self.restart, checkpoint.values)

    def steps_from(self, actions: int, steps: int, *, until_end: bool) -> Iterator[int]:
        """The steps that run after so many actions and steps of the next one, in order, perhaps
        only in the forward sweep."""
        for action in islice(self.plan, actions, None):
            if isinstance(action, Advance | Tape):
                yield from range(action.start + steps, action.stop)
                if until_end and action.stop == self.length:
                    return
                steps = 0


@dataclass
class Cotangents:
    """Cotangents so far: of the active carries, of the active consts, and rows of those of the
    active xs; and those of all ys, `None` where they are zero."""

    carry: Values
    consts: Values
    xs: Rows
    ys: Values


class Sweep:
    """A sweep from a position on, which has taken `reached` steps. `save` is called between two
    steps, with their number."""

    def __init__(
        self, problem: Problem, position: Position, save: Callable[[int], None], reached: int = 0
    ) -> None:
        self._problem, self._position, self._save, self._reached = problem, position, save, reached
        self._ys: Arriving | None = None
        self._xs: Slices

    def forward(self, ys: Arriving) -> tuple[Values, list[Any] | None]:
        """The final carry, and the residuals of the last block if it has several steps. The
        position is then where the reverse sweep begins, before that block."""
        problem, position, self._ys = self._problem, self._position, ys
        with self._running(FORWARD, 0):
            for action in islice(problem.plan, position.actions, None):
                if isinstance(action, Tape):
                    return self._tape(action)
                if not isinstance(action, Advance):
                    problem.move(position, action)
                    continue
                self._advance(action)
                if action.stop == problem.length:
                    assert position.carry is not None
                    return position.carry, None
        raise AssertionError("The plan ends before the loop.")

    def reverse(self, cotangents: Cotangents, taped: list[Any] | None) -> None:
        """The cotangents of the whole loop. The residuals of the first block are not computed again
        if it is `taped`."""
        problem, position = self._problem, self._position
        with self._running(REVERSE, len(taped or ())):
            for action in islice(problem.plan, position.actions, None):
                if isinstance(action, Advance):
                    self._advance(action)
                elif isinstance(action, Tape):
                    self._pull(action, cotangents, taped)
                    taped = None
                else:
                    problem.move(position, action)
        cotangents.xs.arrive()

    def _advance(self, action: Advance) -> None:
        problem, position = self._problem, self._position
        for step in range(action.start + position.steps, action.stop):
            assert position.carry is not None
            x = next(self._xs)
            position.carry, y = problem.step.forward(problem.operands.consts, position.carry, x)
            position.steps, position.evaluations = position.steps + 1, position.evaluations + 1
            if self._ys is not None:
                self._ys.put(problem.entry(step), y)
                self._reached = step + 1
            problem.watch.between_steps(self._reached, position.carry, self._save)
        position.actions, position.steps = position.actions + 1, 0

    def _tape(self, action: Tape) -> tuple[Values, list[Any]]:
        """The carry after a block, and the residuals of its steps."""
        problem, carry, taped = self._problem, self._position.carry, []
        for step in range(action.start, action.stop):
            assert carry is not None
            x = next(self._xs)
            carry, y, residuals = problem.step.tape(Operands(problem.operands.consts, carry, x))
            taped.append(residuals)
            self._position.evaluations += 1
            if self._ys is not None:
                self._ys.put(problem.entry(step), y)
        assert carry is not None
        return carry, taped

    def _pull(self, action: Tape, cotangents: Cotangents, taped: list[Any] | None) -> None:
        """Transpose a block. A block of several steps is taped first."""
        problem, position = self._problem, self._position
        if problem.plan.block_size > 1 and taped is None:
            taped = self._tape(action)[1]
        for step in reversed(range(action.start, action.stop)):
            entry = problem.entry(step)
            given = cotangents.carry, slices_of(cotangents.ys, entry), cotangents.consts
            if taped is None:
                assert position.carry is not None
                inputs = Operands(problem.operands.consts, position.carry, next(self._xs))
                pulled = problem.step.pull(inputs, *given)
                position.evaluations += 1
            else:
                pulled = problem.step.pull_taped(taped.pop(), *given)
            cotangents.carry, cotangents.consts = pulled.carry, pulled.consts
            if pulled.x:
                cotangents.xs.put(entry, pulled.x)
        position.carry, position.actions = None, position.actions + 1
        self._reached = problem.length - action.start
        problem.watch.between_steps(self._reached, cotangents.carry, self._save)

    @contextmanager
    def _running(self, sweep: str, skipped: int) -> Iterator[None]:
        """Fetches the slices of the xs, except for the first steps if they are `skipped`, and
        reports the sweep."""
        problem = self._problem
        evaluations = partial(self._position.text, problem.plan.evaluations)
        problem.watch.begin(sweep, problem.length, self._reached, evaluations)
        done = self._position.actions, self._position.steps
        steps = problem.steps_from(*done, until_end=sweep == FORWARD)
        entries = (problem.entry(step) for step in islice(steps, skipped, None))
        with closing(problem.inputs(entries)) as self._xs:
            yield
        problem.watch.finish()
