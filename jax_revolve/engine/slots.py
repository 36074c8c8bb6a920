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
from jax_revolve.engine.activity import Activity
from jax_revolve.engine.buffers import read, write
from jax_revolve.engine.loop import Operands, choose, substitute
from jax_revolve.engine.pullback import (
    Cotangents,
    accumulate,
    of_init,
    pull_back_step,
    zero_cotangents,
)
from jax_revolve.engine.steps import Steps
from jax_revolve.engine.tape import Buffers, Tape
from jax_revolve.schedule import actions
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
    each level which block its carry enters, and `places` in which slot it is, if not in that of the
    same number. Levels beyond the top are free, and so are their slots. `steps` ran in all. `tape`
    is that of the last block, if the forward sweep knew which one is the last.
    """

    slots: list[Any]
    positions: jax.Array
    places: jax.Array | None
    top: jax.Array
    steps: jax.Array | int
    tape: Buffers | None

    def place(self, level: jax.Array) -> jax.Array:
        return level if self.places is None else self.places[level]


def empty(checkpoints: int, carry: list[Any]) -> list[Any]:
    """The slot buffer: every carry leaf with a leading axis of slots. Made of the carry itself, it
    has its dtype, key type, sharding and varying axes."""
    return [jnp.broadcast_to(x, (checkpoints - 1, *x.shape)) for x in carry]


def run_forward(
    steps: Steps, plan: Plan, activity: Activity, keep_ys: Sequence[bool]
) -> tuple[list[Any], Held]:
    """Final carry and those ys that are to be kept, the checkpoints, and the last block's tape."""
    loop, operands = steps.loop, steps.operands
    starts, stops = _first_advances(plan)
    ys = [zeros(t) for t in choose(loop.results(loop.output_types)[1], keep_ys)]
    slots = empty(_slots_used(plan), choose(operands.carry, steps.restart))

    def step(i: jax.Array, state: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
        carry, ys = state
        _, *inputs = steps.inputs(carry, i)
        carry, y = loop.step(operands.consts, *inputs)
        return carry, write(ys, choose(y, keep_ys), loop.index(i))

    def store_and_advance(slot: jax.Array, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        carry, ys, slots = state
        slots = write_slot(slots, choose(carry, steps.restart), slot)
        start, stop = (plan.block * jnp.asarray(ends)[slot] for ends in (starts, stops))
        carry, ys = lax.fori_loop(start, stop, step, (carry, ys))
        return carry, ys, slots

    carry = operands.carry
    if len(stops):
        state = (carry, ys, slots)
        carry, ys, slots = lax.fori_loop(0, len(stops), store_and_advance, state)

    if not _tapes_the_last_block(plan):
        return [*carry, *ys], after_all_steps(plan, slots, [])

    tape, first = Tape(steps, activity), plan.block * (plan.blocks - 1)

    def record(i: jax.Array, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        carry, ys, entries = state
        _, *inputs = steps.inputs(carry, first + i)
        carry, y, stored = tape.run(*inputs)
        ys = write(ys, choose(y, keep_ys), loop.index(first + i))
        return carry, ys, write(entries, stored, i)

    last = plan.length - first
    # As long as any block's tape, for the reverse sweep writes the others over it.
    state = (carry, ys, tape.empty(plan.block))
    carry, ys, entries = lax.fori_loop(0, last, record, state)
    return [*carry, *ys], after_all_steps(plan, slots, entries)


def after_all_steps(plan: Plan, slots: list[Any], tape: Buffers) -> Held:
    """The stack after a loop of known length: all but the slots and the tape is in the plan."""
    starts, _ = _first_advances(plan)
    positions = np.zeros(_slots_used(plan), np.int32)
    positions[: len(starts)] = starts
    top = jnp.int32(max(len(starts) - 1, 0))
    taped = tape if _tapes_the_last_block(plan) else None
    return Held(slots, jnp.asarray(positions), None, top, plan.length, taped)


def run_reverse(
    steps: Steps, plan: Plan, activity: Activity, held: Held, cotangents: Cotangents
) -> Operands:
    """The cotangents of the active operands, from those of the active results."""
    loop, operands = steps.loop, steps.operands
    gradient = Operands(
        consts=zero_cotangents(operands.consts, activity.consts),
        carry=cotangents.carry,
        xs=zero_cotangents(operands.xs, activity.xs),
    )
    tape, size = Tape(steps, activity), plan.block
    blocks, entries = -(-held.steps // size), []
    if size > 1:
        entries = tape.complete(tape.empty(size) if held.tape is None else held.tape, size)
    if held.tape is not None:
        blocks = blocks - 1
        first, last = size * blocks, held.steps - size * blocks
        gradient, entries = tape.pull_back(entries, first, last, gradient, cotangents.ys)
        if plan.blocks == 1:
            return gradient._replace(carry=of_init(gradient.carry, activity))

    def reverse_alone(
        restarted: list[Any], block: Any, top: Any, gradient: Operands, entries: Buffers
    ) -> tuple[Operands, Buffers]:
        carry, at = steps.whole(restarted), loop.index(block)
        ct = pull_back_step(
            steps.step_from(carry),
            activity,
            steps.inputs(carry, block),
            Cotangents(gradient.carry, read(cotangents.ys, at)),
            partial(_in_a_branch, top >= 0),
        )
        return accumulate(gradient, ct, at), entries

    def reverse_taped(
        restarted: list[Any], block: Any, top: Any, gradient: Operands, entries: Buffers
    ) -> tuple[Operands, Buffers]:
        del top
        start = size * block
        # Only of a loop that stops by itself may a block here be shorter than the others.
        count = size if held.tape is not None else jnp.minimum(size, held.steps - start)
        entries = tape.record(entries, restarted, start, count)
        return tape.pull_back(entries, start, count, gradient, cotangents.ys)

    reverse = reverse_alone if size == 1 else reverse_taped

    def reverse_block(count: jax.Array, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        held, gradient, entries = state
        block = blocks - 1 - count
        held, restarted, position = _store_on_the_way(steps, plan, held, block)
        restarted = steps.advance(restarted, size * position, size * block)
        gradient, entries = reverse(restarted, block, held.top, gradient, entries)
        top = held.top - (held.positions[held.top] == block)
        return held._replace(top=top), gradient, entries

    state = (held._replace(tape=None), gradient, entries)
    if isinstance(blocks, int) and blocks == 1:
        # XLA would unroll the loop, and then tape before it has used the tape up: two tapes.
        blocks = lax.optimization_barrier(jnp.int32(blocks))
    _, gradient, _ = lax.fori_loop(0, blocks, reverse_block, state)
    return gradient._replace(carry=of_init(gradient.carry, activity))


def _store_on_the_way(
    steps: Steps, plan: Plan, held: Held, block: jax.Array
) -> tuple[Held, list[Any], jax.Array]:
    """From the newest checkpoint towards `block`, storing where the schedule wants it.

    Returns the stack, and the last carry stored with its position. A checkpoint at `block` itself
    would never be read, so none is placed there.
    """
    split, levels = _SplitTable(plan), held.positions.size

    def target(position: jax.Array, top: jax.Array) -> jax.Array:
        return position + split(block + 1 - position, levels - top)

    def worth_storing(state: tuple[Held, list[Any], jax.Array]) -> jax.Array:
        return state[2] < block

    def store(state: tuple[Held, list[Any], jax.Array]) -> tuple[Held, list[Any], jax.Array]:
        held, carry, to = state
        carry = steps.advance(carry, plan.block * held.positions[held.top], plan.block * to)
        top = held.top + 1
        slots = write_slot(held.slots, carry, held.place(top))
        positions = held.positions.at[top].set(to)
        held = held._replace(slots=slots, positions=positions, top=top)
        return held, carry, target(to, top)

    position = held.positions[held.top]
    state = (held, _newest(steps.initial(), held), target(position, held.top))
    held, carry, _ = lax.while_loop(worth_storing, store, state)
    return held, carry, held.positions[held.top]


class _SplitTable:
    """`schedule.binomial.split` on the device, for every split that a plan can ask for."""

    def __init__(self, plan: Plan) -> None:
        s = plan.checkpoints
        # An online schedule may be one repetition behind. With a single slot the repetition number
        # is as large as the loop is long, but no rule is needed.
        most = repetition(plan.blocks + 1, s) if s > 1 else 1
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


def _tapes_the_last_block(plan: Plan) -> bool:
    """Whether the forward sweep of a loop of known length tapes its last block. For a single step
    the tape would cost more than it saves: buffers between programs, another copy of the step."""
    return plan.block > 1


def _slots_used(plan: Plan) -> int:
    """A block that the forward sweep tapes needs no checkpoint."""
    taped = _tapes_the_last_block(plan)
    return min(plan.checkpoints, max(plan.blocks - 1, 1)) if taped else plan.checkpoints


def _first_advances(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Where each advance of the forward sweep starts, from a checkpoint, and stops: blocks."""
    last = plan.blocks if _tapes_the_last_block(plan) else plan.blocks + 1
    schedule = actions.revolve(last, _slots_used(plan))
    before = takewhile(lambda a: not isinstance(a, actions.Tape), schedule)
    advances = np.array([a for a in before if isinstance(a, actions.Advance)], np.int32)
    starts, stops = advances.reshape(-1, 2).T
    return starts, stops


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
    stored = read(held.slots, jnp.maximum(held.place(held.top) - 1, 0))
    return [lax.select(held.top == 0, i, x) for i, x in zip(initial, stored, strict=True)]


def write_slot(slots: list[Any], carry: list[Any], slot: jax.Array) -> list[Any]:
    """Store into a slot. What is stored into slot 0 is overwritten before slot 1 is first read."""
    if slots and slots[0].shape[0] == 0:
        return slots
    return write(slots, carry, jnp.maximum(slot - 1, 0))
