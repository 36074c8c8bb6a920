"""The two sweeps: the actions of a plan, run by Python."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import NamedTuple

from jax_revolve.host.inputs import Fetch, Inputs, slices_of
from jax_revolve.host.levels import Checkpoint
from jax_revolve.host.placement import Values
from jax_revolve.host.rows import Arriving, Rows
from jax_revolve.host.step import CompiledStep
from jax_revolve.host.watch import Watch
from jax_revolve.progress.listener import FORWARD, REVERSE
from jax_revolve.schedule.actions import (
    Action,
    Advance,
    Free,
    Load,
    Read,
    Store,
    Tape,
    Write,
)
from jax_revolve.schedule.arguments import readable
from jax_revolve.schedule.storage import Storage
from jax_revolve.schedule.two_level import AnyPlan, TwoLevelPlan
from jax_revolve.step.activity import Mask
from jax_revolve.step.loop import Operands, pick, substitute

_OF_SLOTS = Store | Load | Free

Save = Callable[[int], None]
"""Saves the run between two steps, if it has a directory: after so many steps of the sweep."""


@dataclass
class Position:
    """How far a sweep is, and what it holds: the number of actions that are done, of the steps of
    the next one that are, and of evaluations so far, the current carry, and the checkpoints."""

    actions: int = 0
    steps: int = 0
    evaluations: int = 0
    carry: Values | None = None
    held: dict[str, Checkpoint] = field(default_factory=dict)

    def text(self, evaluations: int) -> str:
        """The evaluations, of so many, and the bytes of the checkpoints on each level."""
        sizes = dict[str, int]()
        for _, checkpoint in sorted(self.held.items()):
            sizes[checkpoint.level] = sizes.get(checkpoint.level, 0) + checkpoint.nbytes
        levels = [f"{readable(size)} {level}" for level, size in sizes.items()]
        return ", ".join([f"{self.evaluations} of {evaluations} evaluations", *levels])


@dataclass(frozen=True)
class ForwardOnly:
    """The plan of a loop that is not differentiated."""

    length: int

    @property
    def evaluations(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Action]:
        yield Advance(0, self.length)


class Problem(NamedTuple):
    """What both sweeps know of a loop."""

    step: CompiledStep
    length: int
    plan: AnyPlan | ForwardOnly
    restart: Mask
    """The leaves of the carry that a checkpoint holds."""
    operands: Operands
    fetch: Fetch
    keep: Callable[[Storage | None, Values], Checkpoint]
    entry: Callable[[int], int]
    """The index in xs and ys of a step."""
    watch: Watch

    def storage_of(self, name: str) -> Storage | None:
        """Where the checkpoint with this name is. One-level plans have all slots in their storage,
        two-level plans have them on the device."""
        is_slot = name.startswith("slot") and isinstance(self.plan, TwoLevelPlan)
        return None if is_slot else getattr(self.plan, "storage", None)

    def move(self, position: Position, action: Action) -> None:
        """An action that runs no step."""
        name = f"slot {action[0]}" if isinstance(action, _OF_SLOTS) else f"store {action[0]}"
        if isinstance(action, Store | Write):
            assert position.carry is not None
            restart = pick(position.carry, self.restart)
            position.held[name] = self.keep(self.storage_of(name), restart)
        elif isinstance(action, Load | Read):
            values = position.held[name].on_device()
            position.carry = substitute(self.operands.carry, self.restart, values)
        else:
            del position.held[name]
        position.actions += 1

    def inputs(self, position: Position, *, until_end: bool) -> Inputs:
        """The slices of the steps from a position on, perhaps only in the forward sweep."""

        def entries() -> Iterator[int]:
            done = position.steps
            for action in islice(self.plan, position.actions, None):
                if isinstance(action, Advance | Tape):
                    yield from map(self.entry, range(action.start + done, action.stop))
                    if until_end and action.stop == self.length:
                        return
                    done = 0

        return Inputs(self.fetch, entries())


@dataclass
class Cotangents:
    """Cotangents so far: of the active carries, of the active consts, and rows of those of the
    active xs; and those of all ys, `None` where they are zero."""

    carry: Values
    consts: Values
    xs: Rows
    ys: Values


def run_forward(
    problem: Problem, position: Position, ys: Arriving, save: Save, reached: int = 0
) -> Values:
    """The final carry, from a position on, which has taken `reached` steps. The position is then
    where the reverse sweep begins."""
    xs = problem.inputs(position, until_end=True)
    describe = partial(position.text, problem.plan.evaluations)
    problem.watch.begin(FORWARD, problem.length, reached, describe)
    for action in islice(problem.plan, position.actions, None):
        if not isinstance(action, Advance):
            problem.move(position, action)
            continue
        for step in range(action.start + position.steps, action.stop):
            ys.put(problem.entry(step), _advance(problem, position, xs.take()))
            xs.look_ahead()
            problem.watch.between_steps(step + 1, position.carry, save)
        position.actions, position.steps = position.actions + 1, 0
        if action.stop == problem.length:
            break
    problem.watch.finish()
    assert position.carry is not None
    return position.carry


def run_reverse(
    problem: Problem, position: Position, cotangents: Cotangents, save: Save, reached: int = 0
) -> None:
    """The cotangents of the whole loop, from a position on, where `reached` steps are reversed."""
    xs = problem.inputs(position, until_end=False)
    describe = partial(position.text, problem.plan.evaluations)
    problem.watch.begin(REVERSE, problem.length, reached, describe)
    for action in islice(problem.plan, position.actions, None):
        if isinstance(action, Advance):
            for _ in range(action.start + position.steps, action.stop):
                _advance(problem, position, xs.take())
                xs.look_ahead()
                problem.watch.between_steps(reached, position.carry, save)
            position.actions, position.steps = position.actions + 1, 0
        elif isinstance(action, Tape):
            _pull(problem, position, cotangents, problem.entry(action.start), xs.take())
            reached = problem.length - action.start
            xs.look_ahead()
            problem.watch.between_steps(reached, cotangents.carry, save)
        else:
            problem.move(position, action)
    problem.watch.finish()


def _advance(problem: Problem, position: Position, x: Values) -> Values:
    """One step, which gives a y."""
    assert position.carry is not None
    position.carry, y = problem.step.forward(problem.operands.consts, position.carry, x)
    position.steps, position.evaluations = position.steps + 1, position.evaluations + 1
    return y


def _pull(
    problem: Problem, position: Position, cotangents: Cotangents, entry: int, x: Values
) -> None:
    """Pull cotangents back through the step that the current carry enters."""
    assert position.carry is not None
    pulled = problem.step.pull(
        Operands(problem.operands.consts, position.carry, x),
        cotangents.carry,
        slices_of(cotangents.ys, entry),
        cotangents.consts,
    )
    cotangents.carry, cotangents.consts = pulled.carry, pulled.consts
    if pulled.x:
        cotangents.xs.put(entry, pulled.x)
    position.carry, position.actions = None, position.actions + 1
    position.evaluations += 1
