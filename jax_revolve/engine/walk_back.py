"""Blocks that are walked back: the reverse sweep of a loop whose step has an inverse.

The inverse computes the carry before a step from the carry after it, so a block needs no tape:

    after = exact carry at the end of the block
    for step in reversed(block):
        before = inverse(after)                      # linearize the step here
        cotangents = pull_back(before, after, cotangents)
        after = before
    drift = max(drift, |after - checkpoint|)         # then continue from the exact checkpoint

Even a single block is checked, because the initial carry is an operand.

The linearization uses the known `after` instead of computing it again. The inverse of a coupled
step (leapfrog, reversible networks) computes the same terms as the step, and XLA merges them: the
way back then costs one evaluation, not two.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve._compat.jaxprs import call_jaxpr, is_literal
from jax_revolve._compat.values import pick, spread, substitute, varying_axes, zeros
from jax_revolve.engine.buffers import Carries, Record
from jax_revolve.engine.drift import drift_of, scale_of, tolerance_of
from jax_revolve.engine.sweep import Block, Forward, Pull, Reached, Results
from jax_revolve.jaxprs.parts import part_of
from jax_revolve.schedule.plan import Plan
from jax_revolve.step.cpu import in_a_branch
from jax_revolve.step.examples import done
from jax_revolve.step.linearized import union
from jax_revolve.step.loop import Loop, Operands, Trust, for_loop, is_inexact
from jax_revolve.step.steps import Steps
from jax_revolve.storage.buffers import read


class Walked(NamedTuple):
    """What the forward sweep saves: the checkpoint at the loop's end; of a scan, the ys that the
    inverse reads and the checkpoint at the start of the last block; of a while loop, the steps that
    each example took."""

    end: Carries
    record: Record = Record([])
    start: Carries | None = None
    steps: Any = None


class Walk(NamedTuple):
    """How far a sweep has walked back: the exact checkpoint at the end of the next block with its
    scales, and for each leaf the largest drift so far, in multiples of the tolerance, and the first
    step of the block in which it occurred."""

    end: list[Any]
    scales: list[jax.Array]
    drift: jax.Array
    step: jax.Array


@dataclass(frozen=True)
class Check:
    """How far the leaves of a checkpoint may drift. It holds no arrays, because it is part of
    programs, which JAX keeps."""

    trust: Trust
    tolerances: tuple[float, ...]

    @classmethod
    def of(cls, steps: Steps) -> "Check":
        trust = steps.loop.trust
        assert trust is not None
        types = pick(steps.loop.results(steps.loop.output_types)[0], steps.restart)
        leaves, examples = (tuple(pick(x, steps.restart)) for x in (trust.leaves, trust.examples))
        tolerances = tuple(tolerance_of(t, trust.tolerance) for t in types)
        return cls(trust._replace(leaves=leaves, examples=examples), tolerances)

    def scales(self, leaves: list[Any]) -> list[jax.Array]:
        return list(map(scale_of, leaves, self.trust.examples))

    def drift(self, found: list[Any], exact: list[Any], scales: list[Any]) -> jax.Array:
        """Each leaf's drift in multiples of the tolerance, the largest over all examples."""
        each = map(drift_of, found, exact, scales, self.trust.examples)
        drifts = [drift / most for drift, most in zip(each, self.tolerances, strict=True)]
        return jnp.stack(drifts) if drifts else jnp.zeros(0, jnp.float32)

    def tangents(self, gradient: Operands, *leaves: list[Any]) -> Operands:
        """The gradient. Its tangents are NaN if those of the carries drift."""
        if self.trust.tolerance == inf:
            return gradient

        @jax.custom_jvp
        def check(gradient: Operands, *leaves: list[Any]) -> Operands:
            return gradient

        @check.defjvp
        def _(primals: Any, tangents: Any) -> Any:
            pairs = zip(primals[1:], tangents[1:], strict=True)
            found, exact, end = (
                [t if is_inexact(t) else x for x, t in zip(*both, strict=True)] for both in pairs
            )
            scales = list(map(jnp.maximum, self.scales(exact), self.scales(end)))
            worst = jnp.max(self.drift(found, exact, scales), initial=0)
            return primals[0], jax.tree.map(partial(_nan_if_off, worst), tangents[0])

        return check(gradient, *leaves)

    def values(self, gradient: Operands, work: Walk) -> Operands:
        """The gradient; NaN, or an error at run time, if the drift exceeds the tolerance."""
        if self.trust.tolerance == inf:
            return gradient
        drift = work.drift
        if self.trust.throw:
            drift = jax.pure_callback(
                self, jax.typeof(drift), drift, work.step, vmap_method="sequential"
            )
        worst = jnp.max(drift, initial=0)
        return jax.tree.map(partial(_nan_if_off, lax.stop_gradient(worst)), gradient)

    def __call__(self, drift: np.ndarray, step: np.ndarray) -> np.ndarray:
        drift = np.asarray(drift)
        if not np.all(drift <= 1):
            leaf = int(np.argmax(np.where(np.isnan(drift), np.inf, drift)))
            tolerance = self.tolerances[leaf]
            raise FloatingPointError(
                f"inverse must reverse the step of {self.trust.source} within "
                f"drift_tol={tolerance:.2g}, but walked back to step {int(step[leaf])}, "
                f"{self.trust.leaves[leaf]} differs from the exact one by "
                f"{drift[leaf] * tolerance:.2g} of its largest entry. Mend the inverse or pass a "
                "smaller block_size: jax_revolve.drift shows which."
            )
        return drift


class WalkBack(Block):
    """A block that is walked back. Its work is a `Walk`. A block of one step is taped."""

    counts_steps_of_examples = True

    @staticmethod
    def serves(loop: Loop, plan: Plan) -> bool:
        return loop.inverse is not None and plan.block_size > 1

    @staticmethod
    def kept_ys(steps: Steps, wanted: Sequence[bool]) -> Sequence[bool]:
        return union(wanted, steps.record)

    @staticmethod
    def run_last(
        sweep: Forward, plan: Plan, results: Results, *, tapes: bool
    ) -> tuple[Results, Walked]:
        del tapes
        start, results = sweep.checkpoint(results), sweep.run_block(plan, results)
        record = pick(spread(results[1], sweep.keep_ys), sweep.steps.record)
        return results, Walked(Carries(sweep.checkpoint(results)), Record(record), Carries(start))

    @staticmethod
    def saved(end: list[Any], example_steps: Any) -> Walked:
        return Walked(Carries(end), steps=example_steps)

    def __init__(self, plan: Plan, pull: Pull, saved: Walked) -> None:
        super().__init__(plan, pull, saved)
        self._steps, step, through = pull
        steps, traced = self._steps, step.step
        self._pullback, self._saved = through(1), saved
        self._check = Check.of(steps)
        self._closed = traced.closed
        inputs = [*traced.shared, *traced.carry, *traced.x]
        after = pick(traced.results[: steps.loop.num_carry], steps.restart)
        self._is_known = [
            not is_literal(v) and v not in [*inputs, *after[:i]] for i, v in enumerate(after)
        ]
        known = pick(after, self._is_known)
        self._kept = part_of(traced.closed, [*inputs, *known], step.cut.kept)

    def begin(self) -> Walk:
        """At the end of the loop."""
        end = self._saved.end.leaves
        scales = self._check.scales(end)
        drift = self._check.drift(end, end, scales)
        return Walk(end, scales, drift, jnp.zeros_like(drift, jnp.int32))

    def reverse_last(
        self, start: int, count: int, gradient: Operands, work: Walk
    ) -> tuple[Operands, Walk]:
        assert self._saved.start is not None
        return self.reverse(self._saved.start.leaves, start, count, gradient, work)[:2]

    def reverse(
        self, restarted: list[Any], start: Any, count: Any, gradient: Operands, work: Walk
    ) -> tuple[Operands, Walk, Reached]:
        steps, own, exact, walk = self._steps, self._saved.steps, restarted, work

        def step_back(i: Any, state: tuple[list[Any], Operands, Any]) -> Any:
            after, gradient, is_wrong = state
            step = start + count - 1 - i
            # Under `jax.vmap`, an example that was already done at this step keeps its carry.
            is_over = None if own is None else done(step < own)
            before, kept = self._before(after, step, is_over)
            if own is not None:  # rounding may have flipped the condition
                goes_on = steps.loop.holds(steps.operands.consts, steps.whole(before))
                is_wrong |= is_over != done(goes_on)
            return before, self._pullback.through_step(kept, step, gradient)[0], is_wrong

        is_right = None if own is None else jnp.zeros_like(own, jnp.bool_)
        found, gradient, is_wrong = for_loop(0, count, step_back, (walk.end, gradient, is_right))
        scales = self._check.scales(exact)
        drift = self._check.drift(found, exact, list(map(jnp.maximum, scales, walk.scales)))
        gradient = self._check.tangents(gradient, found, exact, walk.end)
        drift = drift if own is None else jnp.where(is_wrong, jnp.inf, drift)
        is_new = ~(drift <= walk.drift)  # NaN is never less
        step = jnp.where(is_new, jnp.asarray(start, jnp.int32), walk.step)
        walk = Walk(exact, scales, jnp.maximum(drift, walk.drift), step)
        return gradient, walk, (restarted, start)

    def _before(self, after: list[Any], step: Any, is_over: Any) -> tuple[list[Any], list[Any]]:
        """The checkpoint before a step, from the one after it, and the step's kept residuals."""
        steps, loop = self._steps, self._steps.loop
        consts, carry, x = steps.inputs(steps.whole(after), step)
        flat = [*consts[loop.num_condition_consts :], *carry, *x]
        assert loop.inverse is not None
        unread = list(map(zeros, loop.inverse.in_avals[len(flat) :]))
        y = substitute(unread, steps.record, read(self._saved.record.leaves, loop.entry(step)))

        def run() -> list[Any]:
            before = pick(call_jaxpr(loop.inverse)(*flat, *y), steps.restart)
            if is_over is not None:
                before = [lax.select(is_over, *each) for each in zip(after, before, strict=True)]
            known = pick(after, self._is_known)
            return [*before, *self._kept([*steps.shared, *steps.whole(before), *x, *known])]

        both = in_a_branch(jnp.asarray(step) >= 0, self._closed, run)
        return both[: len(after)], both[len(after) :]

    def end(self, gradient: Operands, work: Walk) -> Operands:
        return self._check.values(gradient, work)


def _nan_if_off(worst: Any, x: Any) -> Any:
    missing = tuple(varying_axes(jax.typeof(worst)) - varying_axes(jax.typeof(x)))
    largest = lax.pmax(worst, missing) if missing else worst
    # Not `jnp.where(is_right, x, nan)`, of which the derivative is zero.
    return x * jnp.where(largest <= 1, 1, jnp.nan).astype(x.dtype)
