"""The tape of a block of consecutive steps, kept until they are transposed.

A tape stores for each step the fewest bytes from which its residuals can be computed again by cheap
operations: see `cut`. Slices of the xs are read again from the xs. A value that depends on neither
carry nor xs, such as a weight or its cosine, is the same for every step.
"""

from collections.abc import Callable, Iterable
from functools import cached_property
from math import inf
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat import (
    AbstractValue,
    ClosedJaxpr,
    bytes_of,
    inlined,
    is_literal,
    part_of,
    with_outputs,
    zeros,
)
from jax_revolve.engine.tape.branch import in_a_branch
from jax_revolve.engine.tape.cut import TracedStep, best_cut, without_cut
from jax_revolve.engine.tape.weight_gradients import WeightGradients
from jax_revolve.step.activity import Activity
from jax_revolve.step.loop import Operands, pick, substitute
from jax_revolve.step.pullback import Cotangents, Linearized, accumulate, add, linearize, pull_back
from jax_revolve.step.steps import Steps
from jax_revolve.storage.buffers import Buffers, read, write


class Tape:
    """How the steps of a loop are taped, and transposed from their tape."""

    def __init__(self, steps: Steps, activity: Activity, *, in_blocks: bool = True) -> None:
        """With `in_blocks=False` for steps that are taped alone: cotangents of weights are added up
        in each step."""
        self._in_blocks = in_blocks
        self._steps = steps
        self._activity = activity
        self._xs = steps.operands.xs
        self._inputs = [steps.operands.carry, read(self._xs, 0)]
        found: list[Linearized] = []

        def linearized(carry: list[Any], x: list[Any]) -> list[Any]:
            operands = Operands(steps.safe.consts, carry, x)
            linearized = linearize(steps.step_from(carry), activity, operands)
            found.append(linearized.without_values())
            return [*linearized.results, *linearized.residuals]

        closed = inlined(jax.make_jaxpr(linearized)(*self._inputs))
        self._linearized = found[0]
        self._step = TracedStep(closed, steps.loop.num_carry, len(steps.loop.output_types))
        self.cut = best_cut(self._step)
        inputs = [*self.cut.kept, *self._step.x, *self.cut.same]
        self._again = part_of(closed, inputs, self._step.residuals)
        varying = self._step.varying()
        self._varies = [not is_literal(v) and v in varying for v in self._step.residuals]

    @property
    def types(self) -> list[AbstractValue]:
        """The types of what is stored for each step."""
        return [v.aval for v in self.cut.kept]

    @property
    def uncut(self) -> list[AbstractValue]:
        """The types of the residuals that JAX would store."""
        return [v.aval for v in without_cut(self._step).kept]

    @property
    def bytes_again(self) -> int:
        """The bytes of the residuals of a step that are computed again, and not merged with what
        uses them."""
        if self.cut.is_elementwise:
            return 0
        return bytes_of(v.aval for v in without_cut(self._step).kept if v not in self.cut.kept)

    @property
    def bytes_alone(self) -> int:
        """The bytes of all residuals of a step that is taped alone."""
        return self.cut.bytes + self.bytes_again

    @cached_property
    def weight_gradients(self) -> WeightGradients:
        """The cotangents of consts that are computed at the end of a block."""
        pullback, cts = self._pullback(), len(self._linearized.types)
        stored = {v: i for i, v in enumerate(self.cut.kept)}
        buffers = [None if is_literal(v) else stored.get(v) for v in self._step.residuals]
        return WeightGradients(
            pullback,
            [*self._varies, *[True] * cts],
            [*buffers, *[None] * cts],
            sum(self._activity.consts),
            **({} if self._in_blocks else {"least_weight": inf}),
        )

    def _pullback(self) -> ClosedJaxpr:
        """Of residuals and cotangents, to cotangents."""
        num_carry = sum(self._activity.carry)
        traced: list[ClosedJaxpr] = []

        def pullback(residuals: list[Any], cts: list[Any]) -> list[Any]:
            ct = Cotangents(cts[:num_carry], cts[num_carry:])
            return [x for part in pull_back(self._linearized, residuals, ct) for x in part]

        def trace() -> list[Any]:
            """Values of the right types, which are never computed."""
            residuals = [zeros(v.aval) for v in self._step.residuals]
            cts = list(map(zeros, self._linearized.types))
            traced.append(jax.make_jaxpr(pullback)(residuals, cts))
            return []

        jax.make_jaxpr(trace)()
        return traced[0]

    def empty(self, length: int) -> Buffers:
        """Buffers for `length` steps."""
        return _buffers(self.types, length)

    def complete(self, tape: Buffers, length: int) -> Buffers:
        """The tape with the buffers that its transposition needs."""
        return [*tape, *_buffers(self.weight_gradients.types, length)]

    def run(self, carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """One step: carry and y, and the residuals that are stored."""
        step = self._step
        flat = with_outputs(step.closed, [*step.results, *self.cut.kept])([*carry, *x])
        carry, y = self._steps.loop.results(flat[: step.num_results])
        return carry, y, flat[step.num_results :]

    def record(self, tape: Buffers, restarted: list[Any], start: Any, count: Any) -> Buffers:
        """The tape of `count` steps from the checkpoint at `start`, written over another tape."""
        steps = self._steps

        def step(i: jax.Array, state: tuple[list[Any], Buffers]) -> tuple[list[Any], Buffers]:
            restarted, tape = state
            _, *inputs = steps.inputs(steps.whole(restarted), start + i)
            carry, _, stored = self.run(*inputs)
            return pick(carry, steps.restart), write(tape, stored, i)

        stored, kept = tape[: len(self.types)], tape[len(self.types) :]
        return [*lax.fori_loop(0, count, step, (restarted, stored))[1], *kept]

    def pull_back(
        self,
        tape: Buffers,
        same: list[Any],
        start: Any,
        count: Any,
        gradient: Operands,
        ct_ys: list[Any],
        loop: Callable[..., Any],
    ) -> tuple[Operands, Buffers]:
        """The cotangents before the taped steps, from those after them. The tape must be
        `complete`, and is returned for reuse. `same` is `same_for_all()`. `loop` is
        `lax.fori_loop`, or one that reports progress."""
        weights = self.weight_gradients
        stored, kept = tape[: len(self.types)], tape[len(self.types) :]

        def step(i: jax.Array, state: tuple[Operands, Buffers]) -> tuple[Operands, Buffers]:
            gradient, kept = state
            entry = count - 1 - i
            taped = read(stored, entry)
            gradient, new = self.pull_back_step(taped, same, start + entry, gradient, ct_ys)
            return gradient, write(kept, new, entry)

        gradient, kept = loop(0, count, step, (gradient, kept))
        totals = weights.of_block(stored, kept, [*self._fixed(same), *self._linearized.types])
        sums = add(pick(gradient.consts, weights.deferred), totals)
        consts = substitute(gradient.consts, weights.deferred, sums)
        return gradient._replace(consts=consts), [*stored, *kept]

    def pull_back_step(
        self, taped: list[Any], same: list[Any], step: Any, gradient: Operands, ct_ys: list[Any]
    ) -> tuple[Operands, list[Any]]:
        """The cotangents before a step, from those after it and what is taped of it; and what is
        kept for the end of the block."""
        weights, at = self.weight_gradients, self._steps.loop.entry(step)
        now = [not d for d in weights.deferred]
        inputs = [*taped, *read(self._xs, at), *same]
        residuals = (
            self._again(inputs)
            if self.cut.is_elementwise
            else in_a_branch(at >= 0, lambda: self._again(inputs))
        )
        ct_y = [zeros(t) if y is None else y for t, y in self._with_types(read(ct_ys, at))]
        flat, new = weights.of_step([*residuals, *gradient.carry, *ct_y])
        ct = _take_apart(flat, sum(now), len(gradient.carry))
        some = accumulate(gradient._replace(consts=pick(gradient.consts, now)), ct, at)
        return some._replace(consts=substitute(gradient.consts, now, some.consts)), new

    def _with_types(self, ct_y: list[Any]) -> Iterable[tuple[AbstractValue, Any]]:
        return zip(self._linearized.types[sum(self._activity.carry) :], ct_y, strict=True)

    def _computed_again(self, inputs: list[Any], at: Any) -> list[Any]:
        """All residuals. XLA computes what it merges with several uses once for each: arithmetic
        may be merged, other operations not."""
        if self.cut.is_elementwise:
            return self._again(inputs)
        return in_a_branch(at >= 0, lambda: self._again(inputs))

    def _fixed(self, same: list[Any]) -> list[Any]:
        """The residuals that are the same for every step, and the types of the others."""
        residuals = self._step.residuals
        is_fixed = [not varies for varies in self._varies]
        fixed = part_of(self._step.closed, self.cut.same, pick(residuals, is_fixed))(same)
        return substitute([v.aval for v in residuals], is_fixed, fixed)

    def same_for_all(self) -> list[Any]:
        """The values that residuals are computed from and that are the same for every step."""
        values = with_outputs(self._step.closed, self.cut.same, effects=False)
        return values(jax.tree.leaves(self._inputs))


def _take_apart(flat: list[Any], num_consts: int, num_carry: int) -> Operands:
    first_x = num_consts + num_carry
    return Operands(flat[:num_consts], flat[num_consts:first_x], flat[first_x:])


def _buffers(types: list[AbstractValue], length: int) -> Buffers:
    return [jnp.broadcast_to(z, (length, *z.shape)) for z in map(zeros, types)]
