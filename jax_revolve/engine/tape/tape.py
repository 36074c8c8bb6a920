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

from jax_revolve._compat.values import AbstractValue, zeros
from jax_revolve.engine.tape.taped import taped_step
from jax_revolve.step.activity import Activity
from jax_revolve.step.cpu import in_a_branch, turns
from jax_revolve.step.loop import Operands, pick, substitute
from jax_revolve.step.pullback import Cotangents, accumulate, add
from jax_revolve.step.steps import Steps
from jax_revolve.storage.buffers import Buffers, read, write

_Pieces = tuple[Operands, Buffers]
"""The cotangents, and what is kept of a piece's steps for products of weights."""


class Tape:
    """How the steps of a loop are taped."""

    def __init__(self, steps: Steps, activity: Activity, block_size: int = 1) -> None:
        self.steps, self.block_size = steps, block_size
        self.step = taped_step(steps.loop, activity, steps.operands)
        self.shared = [*steps.operands.consts, *steps.safe.consts, *steps.safe.carry]

    def empty(self) -> Buffers:
        """Buffers for the steps of a block."""
        return _buffers(self.step.types, self.block_size)

    def run(self, carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """One step: carry and y, and the residuals that are stored."""
        flat = self.step.run(self.shared, carry, x)
        count = len(self.steps.loop.output_types)
        carry, y = self.steps.loop.results(flat[:count])
        return carry, y, flat[count:]

    def record(self, tape: Buffers, restarted: list[Any], start: Any, count: Any) -> Buffers:
        """The tape of `count` steps from the checkpoint at `start`, written over another tape."""
        steps = self.steps

        def step(i: jax.Array, state: tuple[list[Any], Buffers]) -> tuple[list[Any], Buffers]:
            restarted, tape = state
            _, *inputs = steps.inputs(steps.whole(restarted), start + i)
            carry, _, stored = self.run(*inputs)
            return pick(carry, steps.restart), write(tape, stored, i)

        return lax.fori_loop(0, count, step, (restarted, tape))[1]


class Pullback:
    """How the steps of a loop are transposed from their tape, given the cotangents of the ys.
    `before_step(step)` is called before a step is transposed."""

    def __init__(self, tape: Tape, ct_ys: list[Any], before_step: Callable[[Any], None]) -> None:
        step = tape.step
        self._tape, self._step, self._ct_ys, self._before_step = tape, step, ct_ys, before_step
        self._weights = step.weight_gradients if tape.block_size > 1 else step.added_at_once
        # The values that residuals are computed from and that are the same for every step
        self._same = step.same(tape.shared)

    def of_block(
        self, taped: Buffers, start: Any, count: Any, gradient: Operands, loop: Any = lax.fori_loop
    ) -> Operands:
        """The cotangents before the `count` taped steps from `start` on, from those after them, by
        this `loop`.

        The block is pulled back in pieces: what is kept for products of weights is kept for a piece
        only. The first one may be shorter, and is then pulled back by itself if `count` is known,
        so that all loops have a static length. The buffers have entries of further steps, which
        count nothing, because what is kept of them is zero."""
        weights, size = self._weights, self._tape.block_size
        piece, is_known = weights.piece(size), isinstance(count, int)
        fixed = self._step.fixed(self._tape.shared, self._same)

        def pull_back_piece(first: Any, length: Any, loop: Any, state: _Pieces) -> _Pieces:
            base = _least(first, size - piece)

            def pull_back_step(i: jax.Array, state: _Pieces) -> _Pieces:
                gradient, kept = state
                entry = first + length - 1 - i
                gradient, new = self.of_step(read(taped, entry), start + entry, gradient)
                return gradient, write(kept, new, entry - base)

            gradient, kept = loop(0, length, pull_back_step, state)
            entries = [lax.dynamic_slice_in_dim(x, base, piece) for x in taped]
            totals = weights.of_piece(entries, kept, fixed)
            sums = add(pick(gradient.consts, weights.deferred), totals)
            consts = substitute(gradient.consts, weights.deferred, sums)
            return gradient._replace(consts=consts), kept

        state = gradient, _buffers(weights.types, piece)
        if piece == size:
            return pull_back_piece(0, count, loop, state)[0]
        pieces = count // piece if is_known else -(-count // piece)
        if is_known and count % piece:
            state = pull_back_piece(piece * pieces, count % piece, lax.fori_loop, state)

        def pull_back_next(i: Any, state: _Pieces) -> _Pieces:
            first = piece * (pieces - 1 - i)
            length = piece if is_known else jnp.minimum(piece, count - first)
            return pull_back_piece(first, length, lax.fori_loop, state)

        return turns(loop, pieces, pull_back_next, state)[0]

    def of_step(
        self, taped: list[Any], step: Any, gradient: Operands
    ) -> tuple[Operands, list[Any]]:
        """The cotangents before a step, from those after it and what is taped of it; and what is
        kept for the end of the piece."""
        self._before_step(step)
        weights, steps = self._weights, self._tape.steps
        at = steps.loop.entry(step)
        now = [not d for d in weights.deferred]
        inputs = [*self._tape.shared, *taped, *read(steps.operands.xs, at), *self._same]
        residuals = self._residuals(inputs, at)
        cotangents = Cotangents(gradient.carry, read(self._ct_ys, at))
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


def _least(a: Any, b: Any) -> Any:
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else jnp.minimum(a, b)


def _buffers(types: list[AbstractValue], length: int) -> Buffers:
    return [jnp.broadcast_to(z, (length, *z.shape)) for z in map(zeros, types)]
