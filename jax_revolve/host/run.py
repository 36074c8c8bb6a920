"""A run, with or without a directory: its derivative rule for JAX, its forward sweep, and the
reverse sweep of each pullback. The loop over a plan's actions is `sweep`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax

from jax_revolve._compat.interpreters import Logs, with_plain_rules
from jax_revolve._compat.values import (
    as_array,
    is_traced,
    is_zero,
    pick,
    spread,
    substitute,
    tangent_type,
    zeros,
)
from jax_revolve.host.arrays import (
    Checkpoint,
    Rows,
    Values,
    keep,
    on_same_devices,
    put,
    sharding_of,
    slices_of,
)
from jax_revolve.host.directory import RunDirectory
from jax_revolve.host.problem import Cotangents, Position, Problem
from jax_revolve.host.watch import Processes, Watch
from jax_revolve.progress.meters import FORWARD, REVERSE
from jax_revolve.schedule.actions import Advance, Free, Load, Read, Store, Tape, Write
from jax_revolve.step.linearized import of_init
from jax_revolve.step.loop import Operands, is_inexact

Results = tuple[Values, Values]
"""The final carry, and the ys."""


def run(call: Problem) -> Results:
    """The final carry and the ys, with a rule for reverse mode."""
    # Hide NumPy arrays from JAX, which would load them: they may be files larger than the memory.
    operands, in_memory = call.operands, [isinstance(x, np.ndarray) for x in call.operands.xs]

    def whole(given: Operands) -> Operands:
        _check_known(given)
        consts, carry, xs = given
        xs = [x if m else new for new, x, m in zip(xs, operands.xs, in_memory, strict=True)]
        values = on_same_devices([*map(as_array, consts), *map(as_array, carry), *xs])
        first_x = len(consts) + len(carry)
        return Operands(values[: len(consts)], values[len(consts) : first_x], values[first_x:])

    def value(given: Operands) -> Results:
        return _run_forward(call.value(whole(given)))[0]

    def forward(given: Any) -> tuple[Results, Any]:
        values = jax.tree.map(lambda x: x.value, given)
        flags = jax.tree.map(lambda x: x.perturbed and is_inexact(jax.typeof(x.value)), given)
        flags = flags._replace(xs=list(map(bool, flags.xs)))  # None for NumPy's
        results, pullback = _run_forward(call.gradient(whole(values), flags))
        return results, jax.tree_util.Partial(pullback.pull_back)  # without leaves

    def backward(pull_back: Any, cotangents: Any) -> tuple[tuple[Operands], Logs]:
        _check_known(cotangents)
        found, logs = pull_back(*cotangents)
        return (found,), logs

    xs = [None if m else x for x, m in zip(operands.xs, in_memory, strict=True)]
    reverse_only = lambda x: _reverse_only(x) if is_inexact(jax.typeof(x)) else x  # noqa: E731
    with with_plain_rules():  # because it cannot be traced
        run = jax.custom_vjp(value)
        if hasattr(run, "defvjp_with_logs"):
            run.defvjp_with_logs(forward, backward, symbolic_zeros=True)
        else:  # before jax 0.12
            run.defvjp(forward, lambda *args: backward(*args)[0], symbolic_zeros=True)
        return run(jax.tree.map(reverse_only, operands._replace(xs=xs)))


@dataclass(eq=False)
class _Pullback:
    """The pullback of a run whose forward sweep is over. The first call uses up the position
    `left`, so that the device holds no more than the plan says. A later call resumes from the
    directory, or runs the forward sweep again."""

    problem: Problem
    watch: Watch
    directory: RunDirectory | None
    left: Position | None
    is_pulled_back: bool = False

    def pull_back(self, ct_carry: Values, ct_ys: Values) -> tuple[Operands, Logs]:
        """The cotangents of the operands, `None` for those that are not differentiated, and what
        derivative rules log."""
        problem, operands, activity = (
            self.problem,
            self.problem.operands,
            self.problem.step.activity,
        )
        if problem.consume is not None:  # consumed ys have no cotangents
            ct_ys = [None] * len(activity.ys)
        xs = [jax.ShapeDtypeStruct(x.shape[1:], tangent_type(x).dtype) for x in operands.xs]
        mask = activity.xs[: len(xs)]  # no function's
        cotangents = Cotangents(
            list(map(_like, pick(ct_carry, activity.carry), pick(operands.carry, activity.carry))),
            list(map(_zeros_like, pick(operands.consts, activity.consts))),
            Rows(problem.length, [*pick(xs, mask), *problem.step.log_types]),
            [None if is_zero(ct) else ct for ct in pick(ct_ys, activity.ys)],
        )
        if self.directory is None or not self._pull_back_saved(self.directory, cotangents):
            position, self.left = self.left, None
            if position is None:
                position = Position(carry=problem.operands.carry)
                sweep(problem, position, Rows(0, [], lambda *_: None), self.watch, keep)
            sweep(problem, position, cotangents, self.watch, keep)
        rows = cotangents.xs.result()
        count = sum(mask)
        xs = map(put, rows[:count], map(sharding_of, pick(operands.xs, mask)))
        found = Operands(
            spread(cotangents.consts, activity.consts),
            spread(of_init(cotangents.carry, activity), activity.init),
            spread(list(xs), mask),
        )
        return found, jax.tree.unflatten(problem.step.log_tree, rows[count:])

    def _pull_back_saved(self, directory: RunDirectory, cotangents: Cotangents) -> bool:
        """The reverse sweep of a saved run; false if the directory cannot serve this pullback."""
        with directory.running(self.watch):
            left, self.left = self.left if directory.is_known() else None, None
            if not directory.begin_reverse(cotangents, is_first=not self.is_pulled_back):
                return False
            self.is_pulled_back = True
            if not directory.is_over:
                position = left or directory.position()
                save = partial(directory.save, position, cotangents)
                sweep(self.problem, position, cotangents, self.watch, directory.keep, save)
                directory.save(position, cotangents, is_over=True)
        return True


def sweep(
    problem: Problem,
    position: Position,
    to: Rows | Cotangents,
    watch: Watch,
    keep: Callable[[Any, Values], Checkpoint],
    save: Callable[[], None] = lambda: None,
) -> Values:
    """Follow the plan from a position: given rows for ys, to the end of the forward sweep; given
    cotangents, to the end of the reverse sweep. Returns the final carry, or the cotangents of the
    initial carry."""
    operands, step = problem.operands, problem.step
    is_forward = isinstance(to, Rows)
    ct_ys = slices_of([] if is_forward else to.ys)
    xs = problem.slices(position.actions, position.steps, is_forward=is_forward)
    x: Any = next(xs, None)

    def between_steps(values: Values | None) -> None:
        """Get the next slice while the device computes, in the caller's thread and settings."""
        nonlocal x
        x = next(xs, None)
        watch.between_steps(position.reached, values, save)

    name = FORWARD if is_forward else REVERSE
    watch.begin(name, problem.length, position.reached, lambda: position.text(problem.evaluations))
    for action in problem.actions(position.actions, is_forward=is_forward):
        if isinstance(action, Advance):
            for i in range(action.start + position.steps, action.stop):
                position.carry, y = step.forward(operands.consts, position.carry, x)
                position.steps, position.evaluations = position.steps + 1, position.evaluations + 1
                if is_forward:
                    to.put(problem.loop.entry(i), y)
                    position.reached = i + 1
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


def _run_forward(problem: Problem) -> tuple[Results, _Pullback]:
    """The results and the pullback."""
    ys, watch = problem.ys(), Watch(problem.listener, problem.save_every)
    if problem.directory is None:
        position = Position(carry=problem.operands.carry)
        final = sweep(problem, position, ys, watch, keep)
        return (final, ys.result()), _Pullback(problem, watch, None, position)
    processes = Processes([x for part in problem.operands for x in part])
    directory = RunDirectory(problem.directory, problem, processes)
    with directory.running(watch):
        problem = directory.begin(ys)
        final, position = directory.final(), directory.position()
        if final is None:
            save = partial(directory.save, position, ys)
            final = sweep(problem, position, ys, watch, directory.keep, save)
            directory.save(position, ys, final, is_over=problem.plan is None)
    return (final, ys.result()), _Pullback(problem, watch, directory, position)


def _like(cotangent: Any, value: Any) -> Any:
    """A cotangent of a value, with the type and sharding that the steps compute."""
    if is_zero(cotangent):
        return _zeros_like(value)
    strong = lax.convert_element_type(cotangent, jax.typeof(cotangent).dtype)
    return put(strong, sharding_of(value))


def _zeros_like(value: Any) -> Any:
    return put(zeros(tangent_type(value)), sharding_of(value))


def _check_known(values: Any) -> None:
    if any(map(is_traced, jax.tree.leaves(values))):
        raise NotImplementedError(
            "host_scan is a loop in Python, and cannot run inside jax.jit, jax.vmap, jax.lax "
            "loops or derivatives of its gradient, where values are not known: use "
            "jax_revolve.checkpointed_scan there, or put the transformation inside f."
        )


@jax.custom_jvp
def _reverse_only(x: Any) -> Any:
    return x


@_reverse_only.defjvp
def _(primals: Any, tangents: Any) -> Any:
    # Tangents are traced in reverse mode, and known in forward mode.
    if not is_traced(tangents[0]):
        raise NotImplementedError(
            "host_scan has no forward mode (jax.jvp, jax.jacfwd): use "
            "jax_revolve.checkpointed_scan."
        )
    return primals[0], tangents[0]
