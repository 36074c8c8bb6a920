"""The slots engine: one buffer of checkpoints, filled and emptied in the optimal order.

Both sweeps follow `schedule.actions.revolve`. The forward sweep runs all of the steps, because JAX
wants the value before it hands over a cotangent. It is therefore the forward half of a schedule for
one step more, whose last step is the end of the loop; what is left to reverse are the others. The
forward sweep of a while loop, whose number of steps is not known, is in `online`.

The reverse sweep is the loop in `revolve` with its stack on the device: slots, positions and the
number of the top. Where to store next is a look-up in a table whose size depends on the number of
checkpoints and repetitions alone: the program does not grow with the length of the loop.

The shape of the code is made for XLA. The slot buffer is a loop variable that is read and updated
in place; it never goes through a `cond` or a gather, which would copy it. The vjp of the step
stands only where a step is taped, never in an advance; on CPU its linearisation is a branch that is
always taken (`_in_a_branch`). Slot 0 always holds the initial carry, which is an operand and is
never overwritten, so the buffer holds the slots from 1 up. A slot holds only those leaves of the
carry that are needed to start again from it (`restart`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve._compat import results_of, zeros
from jax_revolve.engine.activity import Activity, Mask
from jax_revolve.engine.examples import going, guarded, safe_operands
from jax_revolve.engine.loop import Loop, Operands, Step, choose, substitute
from jax_revolve.engine.pullback import (
    Cotangents,
    add,
    of_init,
    pull_back_step,
    zero_cotangents,
)
from jax_revolve.schedule.actions import Advance, Tape, revolve
from jax_revolve.schedule.binomial import (
    MOST_REPETITIONS_IN_TABLES,
    beta,
    repetition,
    split_terms,
)
from jax_revolve.schedule.plan import Plan


class Held(NamedTuple):
    """What the forward sweep leaves to the reverse sweep: the checkpoints, as a stack.

    Level 0 of the stack is the initial carry and `top` the newest checkpoint. `positions` tells for
    each level which step its carry enters, and `places` in which slot it is, if not in that of the
    same number. Levels beyond the top are free, and so are their slots. `steps` ran in all.
    """

    slots: list[Any]
    positions: jax.Array
    places: jax.Array | None
    top: jax.Array
    steps: jax.Array | int

    def place(self, level: jax.Array) -> jax.Array:
        return level if self.places is None else self.places[level]


def empty(checkpoints: int, carry: list[Any]) -> list[Any]:
    """The slot buffer: every carry leaf with a leading axis of slots. Made of the carry itself, it
    has its dtype, key type, sharding and varying axes."""
    return [jnp.broadcast_to(x, (checkpoints - 1, *x.shape)) for x in carry]


def run_forward(
    loop: Loop, plan: Plan, restart: Mask, operands: Operands, keep_ys: Sequence[bool]
) -> tuple[list[Any], Held]:
    """Final carry and those ys that are to be kept, and the checkpoints."""
    starts, stops = _first_advances(plan)
    ys = [zeros(t) for t in choose(loop.results(loop.output_types)[1], keep_ys)]
    slots = empty(plan.checkpoints, choose(operands.carry, restart))

    def step(i: jax.Array, state: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
        carry, ys = state
        carry, y = loop.step(operands.consts, carry, _read(operands.xs, loop.index(i)))
        return carry, _write(ys, choose(y, keep_ys), loop.index(i))

    def store_and_advance(slot: jax.Array, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        carry, ys, slots = state
        slots = write_slot(slots, choose(carry, restart), slot)
        start, stop = jnp.asarray(starts)[slot], jnp.asarray(stops)[slot]
        carry, ys = lax.fori_loop(start, stop, step, (carry, ys))
        return carry, ys, slots

    state = (operands.carry, ys, slots)
    carry, ys, slots = lax.fori_loop(0, len(stops), store_and_advance, state)
    return [*carry, *ys], after_all_steps(plan, slots)


def after_all_steps(plan: Plan, slots: list[Any]) -> Held:
    """The stack after a loop of known length: all of it but the slots is in the plan."""
    starts, _ = _first_advances(plan)
    return Held(slots, jnp.asarray(starts), None, jnp.int32(len(starts) - 1), plan.length)


def run_reverse(
    loop: Loop,
    plan: Plan,
    activity: Activity,
    restart: Mask,
    operands: Operands,
    held: Held,
    cotangents: Cotangents,
) -> Operands:
    """The cotangents of the active operands, from those of the active results."""
    consts, init, xs = operands
    safe = safe_operands(loop, operands)
    initial = choose(init, restart)
    gradient = Operands(
        consts=zero_cotangents(consts, activity.consts),
        carry=cotangents.carry,
        xs=zero_cotangents(xs, activity.xs),
    )

    def whole(restarted: list[Any]) -> list[Any]:
        """A carry with whatever is at hand for those leaves that nothing here depends on."""
        return substitute(init, restart, restarted)

    def step_from(carry: list[Any]) -> Step:
        return guarded(loop, safe.carry, going(loop, consts, carry))

    def advance(restarted: list[Any], start: jax.Array, stop: jax.Array) -> list[Any]:
        def step(i: jax.Array, restarted: list[Any]) -> list[Any]:
            carry = whole(restarted)
            x = _read(xs, loop.index(i))
            return choose(step_from(carry)(safe.consts, carry, x)[0], restart)

        return lax.fori_loop(start, stop, step, restarted)

    def tape(carry: list[Any], step: jax.Array, top: jax.Array, gradient: Operands) -> Operands:
        at = loop.index(step)
        inputs = Operands(safe.consts, carry, _read(xs, at))
        ct_y = [None if ct is None else _read([ct], at)[0] for ct in cotangents.ys]
        ct = pull_back_step(
            step_from(carry),
            activity,
            inputs,
            Cotangents(gradient.carry, ct_y),
            partial(_in_a_branch, top >= 0),
        )
        return Operands(
            consts=add(gradient.consts, ct.consts),
            carry=ct.carry,
            xs=_write(gradient.xs, ct.xs, at),
        )

    def reverse_step(count: jax.Array, state: tuple[Held, Operands]) -> tuple[Held, Operands]:
        held, gradient = state
        step = held.steps - 1 - count
        held, restarted, position = _store_on_the_way(plan, initial, held, step, advance)
        restarted = advance(restarted, position, step)
        gradient = tape(whole(restarted), step, held.top, gradient)
        top = held.top - (held.positions[held.top] == step)
        return held._replace(top=top), gradient

    _, gradient = lax.fori_loop(0, held.steps, reverse_step, (held, gradient))
    return gradient._replace(carry=of_init(gradient.carry, activity))


def _store_on_the_way(
    plan: Plan, initial: list[Any], held: Held, step: jax.Array, advance: Any
) -> tuple[Held, list[Any], jax.Array]:
    """From the newest checkpoint towards `step`, storing where the schedule wants it.

    Returns the stack, and the last carry stored with its position. A checkpoint at `step` itself
    would never be read, so none is placed there.
    """
    split = _SplitTable(plan)

    def target(position: jax.Array, top: jax.Array) -> jax.Array:
        return position + split(step + 1 - position, plan.checkpoints - top)

    def worth_storing(state: tuple[Held, list[Any], jax.Array]) -> jax.Array:
        return state[2] < step

    def store(state: tuple[Held, list[Any], jax.Array]) -> tuple[Held, list[Any], jax.Array]:
        held, carry, to = state
        carry = advance(carry, held.positions[held.top], to)
        top = held.top + 1
        slots = write_slot(held.slots, carry, held.place(top))
        positions = held.positions.at[top].set(to)
        held = held._replace(slots=slots, positions=positions, top=top)
        return held, carry, target(to, top)

    position = held.positions[held.top]
    state = (held, _newest(initial, held), target(position, held.top))
    held, carry, _ = lax.while_loop(worth_storing, store, state)
    return held, carry, held.positions[held.top]


class _SplitTable:
    """`schedule.binomial.split` on the device, for every split that a plan can ask for."""

    def __init__(self, plan: Plan) -> None:
        s = plan.checkpoints
        # The plan's own splits never repeat more often than the forward sweep's, and with a single
        # slot the repetition number is as large as the loop is long, but no rule is needed.
        most = repetition(plan.length + 1, s) if s > 1 else 1
        most = min(most, MOST_REPETITIONS_IN_TABLES)
        rules = [[(0, 1, _LARGEST)] * most] + [
            [split_terms(c, r) for r in range(1, most + 1)] for c in range(2, s + 1)
        ]
        longest = [[beta(c, r) for r in range(1, most)] for c in range(1, s + 1)]
        self.rules = np.minimum(np.array(rules, dtype=object), _LARGEST).astype(np.int32)
        shape = (s, most - 1)
        self.longest = np.minimum(np.array(longest, dtype=object).reshape(shape), _LARGEST).astype(
            np.int32
        )

    def __call__(self, steps: jax.Array, checkpoints: jax.Array) -> jax.Array:
        row = checkpoints - 1
        repetitions = jnp.sum(jnp.asarray(self.longest)[row] < steps, dtype=jnp.int32)
        shortest, offset, longest = jnp.asarray(self.rules)[row, repetitions]
        return jnp.clip(steps - offset, shortest, longest)


_LARGEST = np.iinfo(np.int32).max


def _first_advances(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Where each advance of the forward sweep starts, from a checkpoint, and stops."""
    actions = takewhile(
        lambda a: not isinstance(a, Tape), revolve(plan.length + 1, plan.checkpoints)
    )
    advances = np.array([a for a in actions if isinstance(a, Advance)], np.int32)
    return advances[:, 0], advances[:, 1]


def _in_a_branch(always: jax.Array, residuals: Callable[[], list[Any]]) -> list[Any]:
    """`residuals()`; on CPU as one branch of a `cond` whose predicate always holds.

    XLA would otherwise compute the residuals inside of the fused kernel of the transposed step,
    which it then takes to be worth two threads. For a 1-D stencil of 20000 numbers handing it to a
    second thread costs three times what the whole kernel does. `lax.optimization_barrier` is
    removed before XLA fuses for CPU. Elsewhere a branch would only cost a look at its predicate.

    Values that are residuals as they are, such as weights, do not go through: it would copy them.
    """
    results = results_of(residuals)
    computed = [r.passed_on is None for r in results]

    def branch() -> list[Any]:
        def other() -> list[Any]:
            return [zeros(r.aval) for r in choose(results, computed)]

        return lax.cond(always, lambda: choose(residuals(), computed), other)

    values = lax.platform_dependent(cpu=branch, default=lambda: choose(residuals(), computed))
    return substitute([r.passed_on for r in results], computed, values)


def _newest(initial: list[Any], held: Held) -> list[Any]:
    """The newest checkpoint."""
    if held.positions.size == 1:
        return initial
    stored = _read(held.slots, jnp.maximum(held.place(held.top) - 1, 0))
    return [lax.select(held.top == 0, i, x) for i, x in zip(initial, stored, strict=True)]


def write_slot(slots: list[Any], carry: list[Any], slot: jax.Array) -> list[Any]:
    """Store into a slot. What is stored into slot 0 is overwritten before slot 1 is first read."""
    if slots and slots[0].shape[0] == 0:
        return slots
    return _write(slots, carry, jnp.maximum(slot - 1, 0))


def _read(buffers: list[Any], index: jax.Array) -> list[Any]:
    return [lax.dynamic_index_in_dim(b, index, keepdims=False) for b in buffers]


def _write(buffers: list[Any], values: list[Any], index: jax.Array) -> list[Any]:
    return [
        lax.dynamic_update_index_in_dim(b, v, index, 0)
        for b, v in zip(buffers, values, strict=True)
    ]
