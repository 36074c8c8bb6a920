"""The steps of a loop: from its start, with its ys, and again from a checkpoint."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax import lax

from jax_revolve._compat.values import pick, substitute
from jax_revolve.step.examples import safe_operands
from jax_revolve.step.linearized import Linearized
from jax_revolve.step.loop import Loop, Mask, Operands, with_layout
from jax_revolve.storage.buffers import read

T = TypeVar("T")


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

    @classmethod
    def of(
        cls,
        loop: Loop,
        restart: Mask,
        operands: Operands,
        linearized: Linearized,
        record: Mask = (),
        *,
        borrows: bool = False,
    ) -> "Steps":
        operands, active = with_layout(loop, operands), linearized.activity.consts
        safe = safe_operands(loop, operands, active, borrows=borrows)
        return cls(loop, restart, operands, safe, linearized, record)

    @property
    def shared(self) -> list[Any]:
        """What all steps share, as in `Linearized`."""
        return [*self.operands.consts, *self.safe.consts, *self.safe.carry]

    def initial(self) -> list[Any]:
        """The checkpoint at the loop's start."""
        return pick(self.operands.carry, self.restart)

    def whole(self, restarted: list[Any]) -> list[Any]:
        """The whole carry. Nothing depends on leaves outside the checkpoint, so they get any
        values."""
        return substitute(self.operands.carry, self.restart, restarted)

    def inputs(self, carry: list[Any], step: Any) -> Operands:
        """The operands of step number `step`."""
        return Operands(self.operands.consts, carry, read(self.operands.xs, self.loop.entry(step)))

    def step(self, carry: list[Any], step: Any) -> tuple[list[Any], list[Any]]:
        """The carry after step number `step`, and its y."""
        inputs = self.inputs(carry, step)
        return self.loop.results(self.linearized.advance([*self.shared, *carry, *inputs.xs]))

    def step_again(self, restarted: list[Any], step: Any) -> list[Any]:
        """The checkpoint after a step, from the one before."""
        return pick(self.step(self.whole(restarted), step)[0], self.restart)

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


def for_loop(start: Any, stop: Any, body: Callable[[Any, T], T], state: T) -> T:
    """`lax.fori_loop`, as a while loop even for static numbers, where lax would make a scan, trace
    it again to lower it, and count twice. XLA compiles both to the same loop."""
    if not (isinstance(start, int) and isinstance(stop, int)):
        return lax.fori_loop(start, stop, body, state)

    def step(counted: tuple[Any, T]) -> tuple[Any, T]:
        i, state = counted
        return lax.add(i, np.int32(1)), body(i, state)

    is_before = lambda counted: lax.lt(counted[0], np.int32(stop))  # noqa: E731
    return lax.while_loop(is_before, step, (np.int32(start), state))[1]


def element(numbers: jax.Array, which: int) -> jax.Array:
    """One number of an array. The code that computes with these numbers calls `jax.lax`, because
    JAX would trace each operator as a function of its own."""
    return lax.index_in_dim(numbers, which, keepdims=False)


def one_of(numbers: jax.Array, which: int) -> jax.Array:
    """An array of one of these numbers."""
    return lax.slice_in_dim(numbers, which, which + 1)
