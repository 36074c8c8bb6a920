"""Where a run stands in its schedule, and the sweep that goes on from there, action by action."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jax_revolve.host.arrays import Checkpoint, Values
from jax_revolve.host.problem import Problem
from jax_revolve.host.rows import Rows, slices_of
from jax_revolve.host.watch import Watch
from jax_revolve.progress.listener import FORWARD, REVERSE
from jax_revolve.schedule.actions import Advance, Free, Load, Read, Store, Tape, Write
from jax_revolve.schedule.arguments import readable
from jax_revolve.step.loop import Operands, pick, substitute


@dataclass
class Position:
    """Where a run stands in its schedule, and what it holds there: the number of actions that are
    done, of the steps of the next one that are, of the steps that the sweep has taken, and of
    evaluations so far, the current carry, and the checkpoints."""

    actions: int = 0
    steps: int = 0
    reached: int = 0
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


@dataclass
class Cotangents:
    """Cotangents so far: of the active carries, of the active consts, and rows for the
    active xs; and of all ys, `None` where they are zero."""

    carry: Values
    consts: Values
    xs: Rows
    ys: Values


def sweep(
    problem: Problem,
    position: Position,
    to: Rows | Cotangents,
    watch: Watch,
    keep: Callable[[Any, Values], Checkpoint],
    save: Callable[[], None] = lambda: None,
) -> Values:
    """Follow the plan from a position on: with rows for ys, to the end of the forward sweep; with
    cotangents, to the end of the reverse sweep. Returns the final carry, or the cotangents of the
    initial one."""
    operands, step = problem.operands, problem.step
    is_forward = isinstance(to, Rows)
    ct_ys = slices_of([] if is_forward else to.ys)
    xs = problem.slices(position.actions, position.steps, is_forward=is_forward)
    x: Any = next(xs, None)

    def between_steps(values: Values | None) -> None:
        """The next slice is got while the device computes: in this thread, which has the JAX
        settings of the caller."""
        nonlocal x
        x = next(xs, None)
        watch.between_steps(position.reached, values, save)

    name = FORWARD if is_forward else REVERSE
    watch.begin(name, problem.length, position.reached, lambda: position.text(problem.evaluations))
    for action in problem.actions(position.actions, is_forward=is_forward):
        if isinstance(action, Advance):
            for number in range(action.start + position.steps, action.stop):
                position.carry, y = step.forward(operands.consts, position.carry, x)
                position.steps, position.evaluations = position.steps + 1, position.evaluations + 1
                if is_forward:
                    to.put(problem.loop.entry(number), y)
                    position.reached = number + 1
                between_steps(position.carry)
            position.actions, position.steps = position.actions + 1, 0
        elif isinstance(action, Tape):
            assert not is_forward
            assert position.carry is not None
            entry = problem.loop.entry(action.start)
            inputs = Operands(operands.consts, position.carry, x)
            to.consts, to.carry, ct_x = step.pull(inputs, to.carry, ct_ys(entry), to.consts)
            to.xs.put(entry, ct_x)
            position.carry, position.reached = None, problem.length - action.start
            position.actions, position.evaluations = position.actions + 1, position.evaluations + 1
            between_steps(to.carry)
        else:
            is_slot = isinstance(action, Store | Load | Free)
            slot = f"{'slot' if is_slot else 'store'} {action[0]}"
            if isinstance(action, Store | Write):
                assert position.carry is not None
                values = pick(position.carry, problem.restart)
                position.held[slot] = keep(problem.storage_of(slot), values)
            elif isinstance(action, Load | Read):
                values = position.held[slot].on_device()
                position.carry = substitute(operands.carry, problem.restart, values)
            else:
                del position.held[slot]
            position.actions += 1
    watch.finish()
    if not is_forward:
        return to.carry
    assert position.carry is not None
    final, position.carry, position.reached = position.carry, None, 0
    return final
