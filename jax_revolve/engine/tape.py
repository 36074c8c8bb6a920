"""The tape of a block of consecutive steps: their residuals, kept until they are transposed.

A tape stores as few residuals of a step as possible. Slices of the xs are read again from the xs. A
residual that depends on neither carry nor xs, such as a weight or its cosine, is the same for every
step.
"""

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat import AbstractValue, ClosedJaxpr, Result, results_in, with_outputs, zeros
from jax_revolve.engine.weight_gradients import WeightGradients
from jax_revolve.step.activity import Activity
from jax_revolve.step.loop import Operands, pick, substitute
from jax_revolve.step.pullback import Cotangents, Linearized, accumulate, add, linearize, pull_back
from jax_revolve.step.steps import Steps
from jax_revolve.storage.buffers import Buffers, read, write


class Tape:
    """How the steps of a loop are taped, and transposed from their tape."""

    def __init__(self, steps: Steps, activity: Activity) -> None:
        self._steps = steps
        self._activity = activity
        self._xs = steps.operands.xs
        self._inputs = [steps.operands.carry, read(self._xs, 0)]
        found: list[Linearized] = []

        def residuals(carry: list[Any], x: list[Any]) -> list[Any]:
            linearized = self._linearize(carry, x)
            found.append(linearized.without_values())
            return linearized.residuals

        self._traced = jax.make_jaxpr(residuals)(*self._inputs)
        self._residuals = results_in(self._traced)
        self._stored = [self._is_stored(i, r) for i, r in enumerate(self._residuals)]
        self._linearized = found[0]

    @property
    def types(self) -> list[AbstractValue]:
        """The types of the residuals that are stored for each step."""
        return [r.aval for r in pick(self._residuals, self._stored)]

    @cached_property
    def weight_gradients(self) -> WeightGradients:
        """The cotangents of consts that are computed at the end of a block."""
        num_carry = sum(self._activity.carry)
        traced: list[ClosedJaxpr] = []

        def pullback(residuals: list[Any], cts: list[Any]) -> list[Any]:
            ct = Cotangents(cts[:num_carry], cts[num_carry:])
            return [x for part in pull_back(self._linearized, residuals, ct) for x in part]

        def trace() -> list[Any]:
            """Values of the right types, which are never computed."""
            residuals = [zeros(r.aval) for r in self._residuals]
            cts = list(map(zeros, self._linearized.types))
            traced.append(jax.make_jaxpr(pullback)(residuals, cts))
            return []

        jax.make_jaxpr(trace)()
        num_cts = len(self._linearized.types)
        entries = iter(range(len(self.types)))
        own = [next(entries) if stored else None for stored in self._stored]
        stored = [own[r.same_as] for r in self._residuals]
        varies = [r.varies for r in self._residuals]
        return WeightGradients(
            traced[0],
            [*varies, *[True] * num_cts],
            [*stored, *[None] * num_cts],
            sum(self._activity.consts),
        )

    def empty(self, length: int) -> Buffers:
        """Buffers for `length` steps."""
        return _buffers(self.types, length)

    def complete(self, tape: Buffers, length: int) -> Buffers:
        """The tape with the buffers that its transposition needs."""
        return [*tape, *_buffers(self.weight_gradients.types, length)]

    def run(self, carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """One step: carry and y, and the residuals that are stored."""
        linearized = self._linearize(carry, x)
        carry, y = self._steps.loop.results(linearized.results)
        return carry, y, pick(linearized.residuals, self._stored)

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
        steps, weights = self._steps, self.weight_gradients
        stored, kept = tape[: len(self.types)], tape[len(self.types) :]
        now = [not d for d in weights.deferred]

        def step(i: jax.Array, state: tuple[Operands, Buffers]) -> tuple[Operands, Buffers]:
            gradient, kept = state
            entry = count - 1 - i
            at = steps.loop.entry(start + entry)
            residuals = self._put_together(read(stored, entry), read(self._xs, at), same)
            ct_y = [zeros(t) if y is None else y for t, y in self._with_types(read(ct_ys, at))]
            flat, new = weights.of_step([*residuals, *gradient.carry, *ct_y])
            ct = _take_apart(flat, sum(now), len(gradient.carry))
            some = accumulate(gradient._replace(consts=pick(gradient.consts, now)), ct, at)
            consts = substitute(gradient.consts, now, some.consts)
            return some._replace(consts=consts), write(kept, new, entry)

        gradient, kept = loop(0, count, step, (gradient, kept))
        totals = weights.of_block(stored, kept, [*same, *self._linearized.types])
        sums = add(pick(gradient.consts, weights.deferred), totals)
        consts = substitute(gradient.consts, weights.deferred, sums)
        return gradient._replace(consts=consts), [*stored, *kept]

    def _with_types(self, ct_y: list[Any]) -> Iterable[tuple[AbstractValue, Any]]:
        return zip(self._linearized.types[sum(self._activity.carry) :], ct_y, strict=True)

    def _linearize(self, carry: list[Any], x: list[Any]) -> Linearized:
        inputs = Operands(self._steps.safe.consts, carry, x)
        return linearize(self._steps.step_from(carry), self._activity, inputs)

    def _is_stored(self, i: int, residual: Result) -> bool:
        return residual.varies and self._of_xs(residual) is None and residual.same_as == i

    def _of_xs(self, residual: Result) -> int | None:
        """The index of the x that a residual is a slice of, if it is one."""
        first = self._steps.loop.num_carry
        if residual.input is None or residual.input < first:
            return None
        return residual.input - first

    def same_for_all(self) -> list[Any]:
        """The residuals that are the same for every step; `None` for the others."""
        fixed = [not r.varies for r in self._residuals]
        of_fixed = with_outputs(
            self._traced, pick(self._traced.jaxpr.outvars, fixed), effects=False
        )
        values = of_fixed(jax.tree.leaves(self._inputs))
        return substitute([None] * len(fixed), fixed, values)

    def _put_together(self, stored: list[Any], x: list[Any], same: list[Any]) -> list[Any]:
        entries = iter(stored)
        values: list[Any] = []
        for i, residual in enumerate(self._residuals):
            of_xs = self._of_xs(residual)
            if self._stored[i]:
                values.append(next(entries))
            elif of_xs is not None:
                values.append(x[of_xs])
            else:
                values.append(values[residual.same_as] if residual.varies else same[i])
        return values


def _take_apart(flat: list[Any], num_consts: int, num_carry: int) -> Operands:
    first_x = num_consts + num_carry
    return Operands(flat[:num_consts], flat[num_consts:first_x], flat[first_x:])


def _buffers(types: list[AbstractValue], length: int) -> Buffers:
    return [jnp.broadcast_to(z, (length, *z.shape)) for z in map(zeros, types)]
