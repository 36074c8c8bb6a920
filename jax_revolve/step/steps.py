"""The steps of a loop: from its start, with its ys, and again from a checkpoint."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve._compat.values import pick, substitute
from jax_revolve.step.examples import safe_operands
from jax_revolve.step.journal import Journal
from jax_revolve.step.linearized import Linearized, Variable
from jax_revolve.step.loop import Loop, Mask, Operands, for_loop, with_layout
from jax_revolve.storage.buffers import read, write


class Steps(NamedTuple):
    """The steps of a differentiated loop, its operands, its restart set, and `safe` operands for
    examples that are done."""

    loop: Loop
    restart: Mask
    operands: Operands
    safe: Operands
    linearized: Linearized
    record: Mask = ()
    """The ys that an inverse reads."""
    journal: Journal | None = None
    """How histories are undone. Steps go on from the leaves of a checkpoint, then the histories,
    then the entries of the journal, if there is one."""
    logs: bool = False
    """Whether steps are logged."""

    @classmethod
    def of(
        cls,
        loop: Loop,
        restart: Mask,
        operands: Operands,
        linearized: Linearized,
        record: Mask = (),
        journal: Journal | None = None,
        *,
        borrows: bool = False,
    ) -> "Steps":
        operands, active = with_layout(loop, operands), linearized.activity.consts
        safe = safe_operands(loop, operands, active, borrows=borrows)
        logs = journal is not None and journal.logs_again
        return cls(loop, restart, operands, safe, linearized, record, journal, logs)

    @property
    def shared(self) -> list[Any]:
        """What all steps share, as in `Linearized`."""
        return [*self.operands.consts, *self.safe.consts, *self.safe.carry]

    @property
    def kept(self) -> Mask:
        """The leaves of the carry that a checkpoint holds."""
        return self.restart if self.journal is None else self.journal.without(self.restart)

    def initial(self) -> list[Any]:
        """The checkpoint at the loop's start."""
        return pick(self.operands.carry, self.kept)

    def whole(self, restarted: list[Any]) -> list[Any]:
        """The whole carry. Nothing depends on leaves outside the restart set, so they get any
        values."""
        checkpoint, past = self.apart(restarted)
        carry = substitute(self.operands.carry, self.kept, checkpoint)
        return carry if self.journal is None else substitute(carry, self.journal.mask, past)

    def apart(self, restarted: list[Any]) -> tuple[list[Any], list[Any]]:
        """A checkpoint, and the histories with their journal."""
        count = sum(self.kept)
        return restarted[:count], restarted[count:]

    def inputs(self, carry: list[Any], step: Any) -> Operands:
        """The operands of step number `step`."""
        return Operands(self.operands.consts, carry, read(self.operands.xs, self.loop.entry(step)))

    def step(self, carry: list[Any], step: Any) -> tuple[list[Any], list[Any]]:
        """The carry after step number `step`, and its y."""
        return self.run(self.inputs(carry, step))[:2]

    def run(
        self, inputs: Operands, kept: Sequence[Variable] = ()
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """The carry after a step, its y and, if steps are logged, the entries of the journal, and
        the values of these variables."""
        step, journal, results = self.linearized, self.journal, self.linearized.results
        if journal is not None and not self.logs:
            results = results[: len(results) - journal.size]
        outputs, flat = [*results, *kept], [*self.shared, *inputs.carry, *inputs.xs]
        if journal is not None and (self.logs or kept):
            flat = journal.run(step, outputs, flat)
        else:
            flat = step.run(outputs, flat)
        return *self.loop.results(flat[: len(results)]), flat[len(results) :]

    def empty_log(self) -> list[Any]:
        return [] if self.journal is None else self.journal.empty()

    def past(self, carry: list[Any], log: list[Any]) -> list[Any]:
        """The histories in a carry, with their journal."""
        return [] if self.journal is None else [*pick(carry, self.journal.mask), *log]

    def after(self, restarted: list[Any], carry: list[Any], y: list[Any], step: Any) -> list[Any]:
        """What steps go on from after a step with these results."""
        size = 0 if self.journal is None else self.journal.size
        log = restarted[len(restarted) - size :]
        if self.logs:
            log = write(log, y[len(y) - size :], self.loop.entry(step))
        return [*pick(carry, self.kept), *self.past(carry, log)]

    def before(self, past: list[Any], start: Any, stop: Any, most: int | None = None) -> list[Any]:
        """The histories before step `stop` with their journal, from the same before step `start`,
        which is later, by `most` steps if that is given. The loop is then static: an iteration too
        many writes what is there."""
        journal = self.journal
        if journal is None:
            return past
        histories, log = past[: -journal.size], past[-journal.size :]

        def back(at: Any, histories: list[Any], goes_on: Any = None) -> list[Any]:
            entries = read(log, self.loop.entry(at))
            return journal.before(self.operands, histories, entries, at, goes_on)

        def one(state: tuple[Any, list[Any]]) -> tuple[Any, list[Any]]:
            at = lax.sub(state[0], np.int32(1))
            return at, back(at, state[1])

        def one_of_most(i: Any, histories: list[Any]) -> list[Any]:
            at = lax.sub(lax.sub(start, np.int32(1)), i)
            return back(lax.max(at, np.int32(0)), histories, lax.ge(at, stop))

        if isinstance(start, int) and isinstance(stop, int):
            most = start - stop
        start, stop = (jnp.asarray(i, jnp.int32) for i in (start, stop))
        if most is not None:
            return [*for_loop(0, most, one_of_most, histories), *log]
        is_after = lambda state: lax.gt(state[0], stop)  # noqa: E731
        return [*lax.while_loop(is_after, one, (start, histories))[1], *log]

    def step_again(self, restarted: list[Any], step: Any) -> list[Any]:
        """What steps go on from after a step, from the same before it."""
        return self.after(restarted, *self.step(self.whole(restarted), step), step)

    def advance_by(self, count: int, first: Any, restarted: list[Any]) -> list[Any]:
        """The checkpoint `count` steps after the one at step `first`, in a static loop."""
        return for_loop(0, count, lambda i, x: self.step_again(x, first + i), restarted)

    def advance(self, span: jax.Array, restarted: list[Any]) -> tuple[jax.Array, list[Any]]:
        """The span with `span[0]` moved up to `span[1]`, and the checkpoint there, from the one at
        `span[0]`. Further numbers in the array pass through: see `cpu` for why it is one array."""

        def step(state: tuple[jax.Array, list[Any]]) -> tuple[jax.Array, list[Any]]:
            span, restarted = state
            restarted = self.step_again(restarted, element(span, 0))
            return lax.add(span, one), restarted

        def is_before(state: tuple[jax.Array, list[Any]]) -> jax.Array:
            return lax.lt(element(state[0], 0), element(state[0], 1))

        one = np.eye(1, span.size, dtype=np.int32)[0]
        return lax.while_loop(is_before, step, (span, restarted))


def element(numbers: jax.Array, which: int) -> jax.Array:
    """One number of an array. The code that computes with these numbers calls `jax.lax`, because
    JAX would trace each operator as a function of its own."""
    return lax.index_in_dim(numbers, which, keepdims=False)


def one_of(numbers: jax.Array, which: int) -> jax.Array:
    """An array of one of these numbers."""
    return lax.slice_in_dim(numbers, which, which + 1)
