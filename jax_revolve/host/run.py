"""The two sweeps: the actions of a plan, run by Python."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Protocol

from jax_revolve.host.body.compiled import Pulled
from jax_revolve.host.inputs import Inputs, slices_of
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
from jax_revolve.step.activity import Activity
from jax_revolve.step.loop import Operands, pick, substitute


class Step(Protocol):
    """`CompiledStep` or `EagerStep`."""

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
class Place:
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


class Problem(NamedTuple):
    """What both sweeps know of a loop."""

    step: Step
    length: int
    actions: Iterable[Action]
    evaluations: int
    block_size: int
    consts: Values
    init: Values
    inputs: Inputs
    restart: tuple[bool, ...]
    """The leaves of the carry that a checkpoint holds."""
    keep_slot: Callable[[Values], Checkpoint]
    keep_store: Callable[[Values], Checkpoint]
    entry: Callable[[int], int]
    """The index in xs and ys of a step."""
    watch: Watch

    def move(self, place: Place, action: Action) -> None:
        """An action that runs no step."""
        match action:
            case Store(slot, _):
                place.slots[slot] = self.keep_slot(self._restart(place))
            case Write(store, _):
                place.stores[store] = self.keep_store(self._restart(place))
            case Load(slot, _):
                place.carry = substitute(self.init, self.restart, place.slots[slot].values)
            case Read(store, _):
                place.carry = substitute(self.init, self.restart, place.stores[store].values)
            case Free(slot):
                del place.slots[slot]
            case Discard(store):
                del place.stores[store]
        place.actions += 1

    def _restart(self, place: Place) -> Values:
        assert place.carry is not None
        return pick(place.carry, self.restart)

    def steps_of(self, place: Place, *, until_end: bool) -> Iterator[int]:
        """The steps that run from a place on, in order, perhaps only those of the forward sweep."""
        actions, done = place.actions, place.steps
        for action in islice(self.actions, actions, None):
            if isinstance(action, Advance | Tape):
                yield from range(action.start + done, action.stop)
                if until_end and action.stop == self.length:
                    return
                done = 0


@dataclass
class Cotangents:
    """Cotangents so far: of the active carries, of the active consts, and rows of those of the
    active xs; and those of all ys, `None` where they are zero."""

    carry: Values
    consts: Values
    xs: Rows
    ys: Values


class Sweep:
    """A sweep from a place on, which has taken `reached` steps. `save` is called between two steps,
    with their number."""

    def __init__(
        self, problem: Problem, place: Place, save: Callable[[int], None], reached: int = 0
    ) -> None:
        self._problem, self._place, self._save, self._reached = problem, place, save, reached
        self._ys: Arriving | None = None

    def forward(self, ys: Arriving) -> tuple[Values, list[Any] | None]:
        """The final carry, and the residuals of the last block if it has several steps. The place
        is then where the reverse sweep begins, before that block."""
        problem, place, self._ys = self._problem, self._place, ys
        with self._running(FORWARD, 0):
            for action in islice(problem.actions, place.actions, None):
                if isinstance(action, Tape):
                    return self._tape(action)
                if not isinstance(action, Advance):
                    problem.move(place, action)
                    continue
                self._advance(action)
                if action.stop == problem.length:
                    assert place.carry is not None
                    return place.carry, None
        raise AssertionError("The plan ends before the loop.")

    def reverse(self, cotangents: Cotangents, taped: list[Any] | None) -> None:
        """The cotangents of the whole loop. The residuals of the first block are not computed again
        if it is `taped`."""
        problem, place = self._problem, self._place
        with self._running(REVERSE, len(taped or ())):
            for action in islice(problem.actions, place.actions, None):
                if isinstance(action, Advance):
                    self._advance(action)
                elif isinstance(action, Tape):
                    self._pull(action, cotangents, taped)
                    taped = None
                else:
                    problem.move(place, action)
        cotangents.xs.arrive()

    def _advance(self, action: Advance) -> None:
        problem, place = self._problem, self._place
        for step in range(action.start + place.steps, action.stop):
            assert place.carry is not None
            x = problem.inputs.at(problem.entry(step))
            place.carry, y = problem.step.forward(problem.consts, place.carry, x)
            place.steps, place.evaluations = place.steps + 1, place.evaluations + 1
            if self._ys is not None:
                self._ys.put(problem.entry(step), y)
                self._reached = step + 1
            problem.watch.between_steps(self._reached, place.carry, self._save)
        place.actions, place.steps = place.actions + 1, 0

    def _tape(self, action: Tape) -> tuple[Values, list[Any]]:
        """The carry after a block, and the residuals of its steps."""
        problem, carry, taped = self._problem, self._place.carry, []
        for step in range(action.start, action.stop):
            assert carry is not None
            x = problem.inputs.at(problem.entry(step))
            carry, y, residuals = problem.step.tape(Operands(problem.consts, carry, x))
            taped.append(residuals)
            self._place.evaluations += 1
            if self._ys is not None:
                self._ys.put(problem.entry(step), y)
        assert carry is not None
        return carry, taped

    def _pull(self, action: Tape, cotangents: Cotangents, taped: list[Any] | None) -> None:
        """Transpose a block. A block of several steps is taped first."""
        problem, place = self._problem, self._place
        if problem.block_size > 1 and taped is None:
            taped = self._tape(action)[1]
        for step in reversed(range(action.start, action.stop)):
            entry = problem.entry(step)
            given = cotangents.carry, slices_of(cotangents.ys, entry), cotangents.consts
            if taped is None:
                assert place.carry is not None
                inputs = Operands(problem.consts, place.carry, problem.inputs.at(entry))
                pulled = problem.step.pull(inputs, *given)
                place.evaluations += 1
            else:
                pulled = problem.step.pull_taped(taped.pop(), *given)
            cotangents.carry, cotangents.consts = pulled.carry, pulled.consts
            if pulled.x:
                cotangents.xs.put(entry, pulled.x)
        place.carry, place.actions = None, place.actions + 1
        self._reached = problem.length - action.start
        problem.watch.between_steps(self._reached, cotangents.carry, self._save)

    @contextmanager
    def _running(self, sweep: str, skipped: int) -> Iterator[None]:
        """Fetches the slices of the xs, except for the first steps if they are `skipped`, and
        reports the sweep."""
        problem = self._problem
        problem.watch.begin(
            sweep, problem.length, self._reached, partial(self._place.text, problem.evaluations)
        )
        steps = problem.steps_of(self._place, until_end=sweep == FORWARD)
        problem.inputs.begin(problem.entry(step) for step in islice(steps, skipped, None))
        try:
            yield
        finally:
            problem.inputs.end()
        problem.watch.finish()
