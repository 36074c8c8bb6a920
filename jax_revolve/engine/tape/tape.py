"""The tape of a block of consecutive steps, kept until they are transposed.

    for i in range(block_size):                      # tape_steps
        carry, y, tape[i] = run(carry, xs[i])
    for i in reversed(range(block_size)):            # Pullback.through_block
        residuals = recompute(tape[i], xs[i])
        cotangents = transposed(residuals, cotangents)

A tape stores for each step the fewest bytes from which cheap operations recompute its residuals:
see `cut`. Slices are read again from the xs, and a value that depends on neither carry nor xs, such
as a weight or its cosine, is computed once for all steps.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve._compat.jaxprs import ClosedJaxpr, is_literal, name_of, variables
from jax_revolve._compat.values import (
    AbstractValue,
    added,
    bytes_of,
    pick,
    spread,
    substitute,
    zeros,
)
from jax_revolve.engine.codecs import encoded_types
from jax_revolve.engine.tape.cut import Cut, best_cut, more_in_a_block, uncut
from jax_revolve.engine.tape.layout import Layout, Tape, broadcast
from jax_revolve.engine.tape.weight_gradients import WeightGradients
from jax_revolve.jaxprs.parts import between, part_of
from jax_revolve.profiles.in_force import profile_in_force, profile_of_platform
from jax_revolve.schedule.cost import Sizes
from jax_revolve.step.cpu import in_a_branch, turns, with_reads_first
from jax_revolve.step.journal import Journal
from jax_revolve.step.linearized import Cotangents, Linearized, add
from jax_revolve.step.loop import Loop, Operands, for_loop
from jax_revolve.step.operations import having
from jax_revolve.step.steps import Steps
from jax_revolve.step.work import work_of
from jax_revolve.storage.buffers import Buffers, read, write

_Pieces = tuple[Operands, Buffers]
"""The cotangents, and the factors of weight gradients, kept for the steps of a piece."""


def taped_step(step: Linearized) -> "TapedStep":
    profile = profile_of_platform()
    if profile not in step.derived:
        step.derived[profile] = TapedStep(step, best_cut(step, profile))
    return step.derived[profile]


def sizes_of(
    loop: Loop, step: Linearized, operands: Operands, journal: Journal | None = None
) -> Sizes:
    """The sizes by which a plan is chosen, from one trace of the step."""
    profile, taped = profile_in_force(), taped_step(step)
    cut = taped.cut
    # `jax.linearize` works even if the step has no reverse mode, and a part of it may have one.
    weights = taped.weight_gradients if taped.is_transposable else None
    factors = bytes_of(weights.types) if weights else 0
    carry, by_jax = list(map(jax.typeof, operands.carry)), uncut(step)
    computed = [] if cut.is_elementwise else set(by_jax).difference(cut.kept)  # not merged by XLA
    recomputed = bytes_of(v.aval for v in computed)
    start = set(step.carry).difference(by_jax)  # the carry exists anyway
    kept, logged = step.restart, 0
    if journal is not None:
        kept, logged = journal.without(kept), journal.bytes
        start.update(journal.versions(step))
    codec, checkpoint = getattr(loop.plan, "codec", None), pick(carry, kept)
    exact = 0 if codec is None else bytes_of(checkpoint)  # the newest checkpoint
    sizes = Sizes(
        checkpoint=bytes_of(encoded_types(codec, checkpoint)),
        residuals=cut.bytes,
        alone=bytes_of(v.aval for v in cut.kept if v not in start) + recomputed,
        carry=bytes_of(carry) + exact,
        weights=bytes_of(weights.weights) if weights else 0,
        work=work_of(loop.jaxpr, profile),
        again=recomputed,
        again_work=more_in_a_block(step, cut, profile),
        uncut=bytes_of(v.aval for v in by_jax),
        profile=profile,
        factors=factors,
        arrays=len(cut.kept) - len(cut.given),
        copied=_copied(step, cut, step.transposed if weights else None) + factors,
        journal=logged,
    )
    if loop.inverse is None:
        return sizes
    return sizes._replace(
        residuals=0,
        # Also count the exact carries at both ends of the block.
        again=sizes.alone + 2 * sizes.checkpoint,
        again_work=work_of(loop.inverse, profile),
        factors=0,
        arrays=0,
        copied=0,
        is_walked_back=True,
    )


def _copied(step: Linearized, cut: Cut, pullback: ClosedJaxpr | None) -> int:
    """The kept bytes of a step of a block that kernels of their own make or read, such as loops.
    These can neither write to a tape nor read from it, so XLA copies."""
    read = {v for eqn in _kernels(step.closed) for v in (*variables(eqn.invars), *eqn.outvars)}
    if pullback is not None:
        of_pullback = {v for eqn in _kernels(pullback) for v in variables(eqn.invars)}
        pairs = zip(pullback.jaxpr.invars, step.residuals, strict=False)
        read.update(variables([residual for v, residual in pairs if v in of_pullback]))
    return bytes_of(v.aval for v in cut.kept if v in read and v not in cut.given)


def _kernels(closed: ClosedJaxpr) -> list[Any]:
    merged = having("elementwise", "moving", "transcendental", "slow") - having("kernel")
    return [eqn for eqn in closed.jaxpr.eqns if name_of(eqn) not in merged]


class TapedStep:
    """A step, the cut of its residuals and its pullback, all found by tracing."""

    def __init__(self, step: Linearized, cut: Cut) -> None:
        self.step, self.cut = step, cut
        self.layout = Layout(cut.kept, step.carry, cut.given)
        self.varies = [not is_literal(v) and v in step.varying for v in step.residuals]

    def empty(self, block_size: int, at: Sequence[Any]) -> Tape:
        """An empty tape, made where these values of the carry are known. XLA would merge the empty
        tapes of several loops into one, copy it for each of them, and hold all copies at once."""
        tape = self.layout.empty(block_size)
        if not at:
            return tape
        # A number, because XLA would hold an array between its barrier and the tape.
        zero = lax.optimization_barrier((np.int8(0), at[0]))[0]
        is_number = [jnp.issubdtype(x.dtype, jnp.number) for x in tape.buffers]
        pairs = zip(tape.buffers, is_number, strict=True)
        buffers = [x + zero.astype(x.dtype) if number else x for x, number in pairs]
        return tape._replace(buffers=buffers)

    def run(self, steps: Steps, inputs: Operands) -> tuple[list[Any], list[Any], list[Any]]:
        """Run one step. Returns the carry, y and the values to tape."""
        return steps.run(inputs, self.cut.kept)

    def needs_writes(self, steps: Steps) -> bool:
        """Whether a step is taped with histories as they are after its writes."""
        jaxpr, journal = self.step.closed.jaxpr, steps.journal
        if journal is None:
            return False
        made = {v for eqn in between(jaxpr, [], self.cut.kept) for v in eqn.outvars}
        after = pick(self.step.results[: len(journal.mask)], journal.mask)
        return not made.isdisjoint(after)

    def tape_steps(
        self, steps: Steps, tape: Tape, restarted: list[Any], start: Any, count: Any
    ) -> tuple[list[Any], Tape]:
        """Tape `count` steps from step `start` on, over another tape. Also returns what steps go on
        from after them."""

        def step(i: jax.Array, state: tuple[list[Any], Tape]) -> tuple[list[Any], Tape]:
            restarted, tape = state
            inputs = steps.inputs(steps.whole(restarted), start + i)
            carry, y, stored = self.run(steps, inputs)
            return steps.after(restarted, carry, y, start + i), self.layout.write(tape, stored, i)

        end, tape = for_loop(0, count, step, (restarted, tape))
        return end, self.layout.end(tape, steps.whole(end))

    @cached_property
    def residuals(self) -> Callable[[Sequence[Any]], list[Any]]:
        """The residuals, from what all steps share, the kept values, x and `cut.same`."""
        inputs = [*self.step.shared, *self.cut.kept, *self.step.x, *self.cut.same]
        return part_of(self.step.closed, inputs, self.step.residuals)

    def of_all_steps(self, shared: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The values of `cut.same`, and the residuals that are the same for every step."""
        step, is_fixed = self.step, [not varies for varies in self.varies]
        run = part_of(step.closed, step.shared, [*self.cut.same, *pick(step.residuals, is_fixed)])
        values, count = run(shared), len(self.cut.same)
        return values[:count], values[count:]

    @cached_property
    def is_transposable(self) -> bool:
        """Whether JAX can transpose the step. If not, the reverse sweep raises the error, unless it
        does not need the part that raises. A user's backward rule may raise anything."""
        try:
            _ = self._pullback
        except Exception:
            return False
        return True

    @cached_property
    def weight_gradients(self) -> WeightGradients:
        cts, stored = self.step.types, {v: i for i, v in enumerate(self.cut.kept)}
        buffers = [None if is_literal(v) else stored.get(v) for v in self.step.residuals]
        return WeightGradients(
            self._pullback,
            [*self.varies, *(True for _ in cts)],
            [*buffers, *(None for _ in cts)],
            sum(self.step.activity.consts),
        )

    @cached_property
    def _pullback(self) -> ClosedJaxpr:
        """From residuals and cotangents to cotangents."""
        return with_reads_first(self.step.transposed)


class Pullback:
    """Transposes taped steps, given the cotangents of the ys, and to which cotangents of xs those
    of a step are added."""

    def __init__(
        self,
        step: TapedStep,
        steps: Steps,
        block_size: int,
        ct_ys: list[Any],
        is_sum: Sequence[bool],
    ) -> None:
        self._step, self._steps, self._size = step, steps, block_size
        self._ct_ys, self._is_sum = ct_ys, is_sum
        self._weights = weights = step.weight_gradients
        # In a block of one step, nothing is deferred.
        self._deferred = [block_size > 1 and deferred for deferred in weights.deferred]
        self._same, self._fixed = step.of_all_steps(steps.shared)

    def through_block(self, taped: Tape, start: Any, count: Any, gradient: Operands) -> Operands:
        """Pull cotangents back through the `count` taped steps from `start` on.

        The block is pulled back in pieces, so that the factors of weight gradients are kept for one
        piece only. The last piece may be shorter. If `count` is static, it is pulled back first, by
        itself, so that all loops have a static length. Entries of the buffers beyond a shorter
        piece contribute nothing, because their factors are zero."""
        weights, size = self._weights, self._size
        piece, is_known = weights.piece(size), isinstance(count, int)

        def pull_back_piece(first: Any, length: Any, state: _Pieces) -> _Pieces:
            least = min if isinstance(first, int) else jnp.minimum
            base = least(first, size - piece)

            def pull_back_step(i: jax.Array, state: _Pieces) -> _Pieces:
                gradient, kept = state
                entry = first + length - 1 - i
                stored = self._step.layout.read(taped, entry, count)
                gradient, new = self.through_step(stored, start + entry, gradient)
                return gradient, write(kept, new, entry - base)

            gradient, kept = for_loop(0, length, pull_back_step, state)
            entries = self._step.layout.slices(taped, base, piece, count)
            totals = weights.of_piece(entries, kept, self._fixed)
            sums = add(pick(gradient.consts, weights.deferred), totals)
            consts = substitute(gradient.consts, weights.deferred, sums)
            return gradient._replace(consts=consts), kept

        state = gradient, _buffers(weights.types, piece)
        if piece == size:
            return pull_back_piece(0, count, state)[0]
        pieces = count // piece if is_known else -(-count // piece)
        if is_known and count % piece:
            state = pull_back_piece(piece * pieces, count % piece, state)

        def pull_back_next(i: Any, state: _Pieces) -> _Pieces:
            first = piece * (pieces - 1 - i)
            length = piece if is_known else jnp.minimum(piece, count - first)
            return pull_back_piece(first, length, state)

        return turns(pieces, pull_back_next, state)[0]

    def through_step(
        self, taped: list[Any], step: Any, gradient: Operands
    ) -> tuple[Operands, list[Any]]:
        """Pull cotangents back through a taped step. Also returns the factors to keep until the end
        of the piece."""
        steps, at = self._steps, self._steps.loop.entry(step)
        x = read(steps.operands.xs, at)
        inputs = [*steps.shared, *taped, *x, *self._same]
        run = lambda: self._step.residuals(inputs)  # noqa: E731
        # Arithmetic alone is cheap to compute in several kernels.
        is_cheap, step = self._step.cut.is_elementwise, self._step.step.closed
        residuals = run() if is_cheap else in_a_branch(at >= 0, step, run)
        cotangents = Cotangents(gradient.carry, read(self._ct_ys, at))
        cts = cotangents.filled(self._step.step.types)
        flat, new = self._weights.of_step([*residuals, *cts], self._deferred)
        now = [not deferred for deferred in self._deferred]
        first, first_x = sum(now), sum(now) + len(gradient.carry)
        consts = add(pick(gradient.consts, now), flat[:first])
        sums = read(spread(pick(gradient.xs, self._is_sum), self._is_sum), at)
        before = Operands(
            consts=substitute(gradient.consts, now, consts),
            carry=flat[first:first_x],
            xs=write(gradient.xs, list(map(added, sums, flat[first_x:])), at),
        )
        return before, new


def _buffers(types: list[AbstractValue], length: int) -> Buffers:
    return [broadcast(z, length) for z in map(zeros, types)]
