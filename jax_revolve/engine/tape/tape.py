"""The tape of a block of consecutive steps, kept until they are transposed.

A tape stores for each step the fewest bytes from which its residuals can be computed again by cheap
operations: see `cut`. Slices of the xs are read again from the xs. A value that depends on neither
carry nor xs, such as a weight or its cosine, is the same for every step.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat import AbstractValue, zeros
from jax_revolve.engine.tape.branch import in_a_branch
from jax_revolve.engine.tape.taped import taped_step
from jax_revolve.engine.tape.weight_gradients import WeightGradients
from jax_revolve.step.activity import Activity
from jax_revolve.step.loop import Operands, pick, substitute
from jax_revolve.step.pullback import Cotangents, accumulate, add
from jax_revolve.step.steps import Steps
from jax_revolve.storage.buffers import Buffers, read, write


class Tape:
    """How the steps of a loop are taped, and transposed from their tape."""

    def __init__(self, steps: Steps, activity: Activity, block_size: int = 1) -> None:
        self._steps = steps
        self._step = taped_step(steps.loop, activity, steps.operands)
        self._shared = [*steps.operands.consts, *steps.safe.consts, *steps.safe.carry]
        self._block_size = block_size

    @property
    def types(self) -> list[AbstractValue]:
        """The types of what is stored for each step."""
        return self._step.types

    @property
    def _gradients(self) -> WeightGradients:
        return self._step.weight_gradients if self._block_size > 1 else self._step.added_at_once

    def empty(self) -> Buffers:
        """Buffers for the steps of a block."""
        return _buffers(self.types, self._block_size)

    def run(self, carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """One step: carry and y, and the residuals that are stored."""
        flat = self._step.run(self._shared, carry, x)
        count = len(self._steps.loop.output_types)
        carry, y = self._steps.loop.results(flat[:count])
        return carry, y, flat[count:]

    def record(self, tape: Buffers, restarted: list[Any], start: Any, count: Any) -> Buffers:
        """The tape of `count` steps from the checkpoint at `start`, written over another tape."""
        steps = self._steps

        def step(i: jax.Array, state: tuple[list[Any], Buffers]) -> tuple[list[Any], Buffers]:
            restarted, tape = state
            _, *inputs = steps.inputs(steps.whole(restarted), start + i)
            carry, _, stored = self.run(*inputs)
            return pick(carry, steps.restart), write(tape, stored, i)

        return lax.fori_loop(0, count, step, (restarted, tape))[1]

    def pull_back(
        self,
        tape: Buffers,
        same: list[Any],
        start: Any,
        count: Any,
        gradient: Operands,
        ct_ys: list[Any],
        loop: Callable[..., Any],
    ) -> Operands:
        """The cotangents before the `count` taped steps from `start` on, from those after them.
        `same` is `same_for_all()`. `loop(length, body, state, before)` is a `lax.fori_loop` that is
        told how many steps of the block were pulled back before it.

        The block is pulled back in pieces: what is kept for products of weights is kept for a piece
        only. The first one may be shorter, and is then pulled back by itself if `count` is known,
        so that all loops have a static length. The buffers have entries of further steps, which
        count nothing, because what is kept of them is zero."""
        weights, size = self._gradients, self._block_size
        piece = weights.piece(size)
        pieces = 1 if piece == size else -(-count // piece)
        is_known = isinstance(count, int)
        fixed = [*self._step.fixed(self._shared, same), *self._step.cotangent_types]

        def pull_back_piece(
            number: Any, state: tuple[Operands, Buffers]
        ) -> tuple[Operands, Buffers]:
            first = piece * (pieces - 1 - number)
            is_short = is_known and count % piece and isinstance(number, int)
            stop = _least(first + piece, count) if is_short or not is_known else first + piece
            base = _least(first, size - piece)

            def step(i: jax.Array, state: tuple[Operands, Buffers]) -> tuple[Operands, Buffers]:
                gradient, kept = state
                entry = stop - 1 - i
                taped = read(tape, entry)
                gradient, new = self.pull_back_step(taped, same, start + entry, gradient, ct_ys)
                return gradient, write(kept, new, entry - base)

            length = piece if is_known and not is_short else stop - first
            gradient, kept = loop(length, step, state, count - stop)
            entries = [lax.dynamic_slice_in_dim(x, base, piece) for x in tape]
            totals = weights.of_piece(entries, kept, fixed)
            sums = add(pick(gradient.consts, weights.deferred), totals)
            consts = substitute(gradient.consts, weights.deferred, sums)
            return gradient._replace(consts=consts), kept

        state = (gradient, _buffers(weights.types, piece))
        if piece == size:
            return pull_back_piece(0, state)[0]
        if not is_known or not count % piece:
            return lax.fori_loop(0, pieces, pull_back_piece, state)[0]
        state = pull_back_piece(0, state)
        return lax.fori_loop(1, pieces, pull_back_piece, state)[0]

    def pull_back_step(
        self, taped: list[Any], same: list[Any], step: Any, gradient: Operands, ct_ys: list[Any]
    ) -> tuple[Operands, list[Any]]:
        """The cotangents before a step, from those after it and what is taped of it; and what is
        kept for the end of the piece."""
        weights, at = self._gradients, self._steps.loop.entry(step)
        now = [not d for d in weights.deferred]
        inputs = [*self._shared, *taped, *read(self._steps.operands.xs, at), *same]
        residuals = self._residuals(inputs, at)
        cotangents = Cotangents(gradient.carry, read(ct_ys, at))
        flat, new = weights.of_step([*residuals, *self._step.step.linearized.filled(cotangents)])
        ct = self._step.of_operands(flat, sum(now))
        some = accumulate(gradient._replace(consts=pick(gradient.consts, now)), ct, at)
        return some._replace(consts=substitute(gradient.consts, now, some.consts)), new

    def _residuals(self, inputs: list[Any], at: Any) -> list[Any]:
        """XLA computes what it merges with several uses once for each: arithmetic may be merged,
        other operations not."""
        if self._step.cut.is_elementwise:
            return self._step.residuals(inputs)
        return in_a_branch(at >= 0, lambda: self._step.residuals(inputs))

    def same_for_all(self) -> list[Any]:
        """The values that residuals are computed from and that are the same for every step."""
        return self._step.same(self._shared)


def _least(a: Any, b: Any) -> Any:
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else jnp.minimum(a, b)


def _buffers(types: list[AbstractValue], length: int) -> Buffers:
    return [jnp.broadcast_to(z, (length, *z.shape)) for z in map(zeros, types)]
