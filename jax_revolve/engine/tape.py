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
    composed,
    inlined,
    with_outputs,
    zeros,
)
from jax_revolve.engine.cut import kept_values, same_values
from jax_revolve.engine.weight_gradients import WeightGradients
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

        self._traced = inlined(jax.make_jaxpr(linearized)(*self._inputs))
        self._linearized = found[0]
        count = len(steps.loop.output_types)
        outvars = self._traced.jaxpr.outvars
        self._results, self._residuals = outvars[:count], outvars[count:]
        carry, self._x = steps.loop.results(self._traced.jaxpr.invars)
        self._kept = kept_values(self._traced.jaxpr, self._residuals, carry, self._x)
        self._same = same_values(self._traced.jaxpr, [*self._kept, *self._x], self._residuals)

    @property
    def types(self) -> list[AbstractValue]:
        """The types of what is stored for each step."""
        return [v.aval for v in self._kept]

    @cached_property
    def weight_gradients(self) -> WeightGradients:
        """The cotangents of consts that are computed at the end of a block."""
        inputs = [*self._kept, *self._x, *self._same]
        pullback = composed(self._pullback(), self._traced, inputs, self._residuals)
        count = len(pullback.jaxpr.invars)
        varies = [*[True] * (len(inputs) - len(self._same)), *[False] * len(self._same)]
        stored = range(len(self._kept))
        return WeightGradients(
            pullback,
            [*varies, *[True] * (count - len(varies))],
            [*stored, *[None] * (count - len(stored))],
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
            residuals = [zeros(v.aval) for v in self._residuals]
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
        run = with_outputs(self._traced, [*self._results, *self._kept])
        flat = run([*carry, *x])
        carry, y = self._steps.loop.results(flat[: len(self._results)])
        return carry, y, flat[len(self._results) :]

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
        unused = [v.aval for v in [*self._kept, *self._x]]
        totals = weights.of_block(stored, kept, [*unused, *same, *self._linearized.types])
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
        ct_y = [zeros(t) if y is None else y for t, y in self._with_types(read(ct_ys, at))]
        flat, new = weights.of_step([*inputs, *gradient.carry, *ct_y])
        ct = _take_apart(flat, sum(now), len(gradient.carry))
        some = accumulate(gradient._replace(consts=pick(gradient.consts, now)), ct, at)
        return some._replace(consts=substitute(gradient.consts, now, some.consts)), new

    def _with_types(self, ct_y: list[Any]) -> Iterable[tuple[AbstractValue, Any]]:
        return zip(self._linearized.types[sum(self._activity.carry) :], ct_y, strict=True)

    def same_for_all(self) -> list[Any]:
        """The values that residuals are computed from and that are the same for every step."""
        return with_outputs(self._traced, self._same, effects=False)(jax.tree.leaves(self._inputs))


def _take_apart(flat: list[Any], num_consts: int, num_carry: int) -> Operands:
    first_x = num_consts + num_carry
    return Operands(flat[:num_consts], flat[num_consts:first_x], flat[first_x:])


def _buffers(types: list[AbstractValue], length: int) -> Buffers:
    return [jnp.broadcast_to(z, (length, *z.shape)) for z in map(zeros, types)]
