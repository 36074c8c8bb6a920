"""The steps of a loop: from its start, with its ys, and again from a checkpoint."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax import lax

from jax_revolve.step.examples import guarded, safe_operands
from jax_revolve.step.linearized import Linearized
from jax_revolve.step.loop import Loop, Mask, Operands, pick, substitute, with_layout
from jax_revolve.storage.buffers import read

T = TypeVar("T")


class Steps(NamedTuple):
    """A loop, its operands, and the leaves of its carry that a checkpoint holds (`restart`). `safe`
    are operands with which the step of an example that is done can be computed. If the loop is
    differentiated, its steps are the ones of `linearized`."""

    loop: Loop
    restart: Mask
    operands: Operands
    safe: Operands
    linearized: Linearized | None
    record: Mask = ()
    """The ys that an inverse reads."""

    @classmethod
    def of(
        cls,
        loop: Loop,
        restart: Mask,
        operands: Operands,
        linearized: Linearized | None = None,
        record: Mask = (),
    ) -> "Steps":
        operands = with_layout(loop, operands)
        is_mapped = linearized is None or linearized.is_mapped
        safe = safe_operands(loop, operands) if is_mapped else operands
        return cls(loop, restart, operands, safe, linearized, record)

    @property
    def shared(self) -> list[Any]:
        """What all steps share, as in `Linearized`."""
        return [*self.operands.consts, *self.safe.consts, *self.safe.carry]

    def initial(self) -> list[Any]:
        """The checkpoint at the loop's start."""
        return pick(self.operands.carry, self.restart)

    def whole(self, restarted: list[Any]) -> list[Any]:
        """The whole carry. Leaves that a checkpoint does not hold have arbitrary values: nothing
        depends on them."""
        return substitute(self.operands.carry, self.restart, restarted)

    def inputs(self, carry: list[Any], step: Any) -> Operands:
        """The operands of the step that runs as number `step`."""
        return Operands(self.safe.consts, carry, read(self.operands.xs, self.loop.entry(step)))

    def step(self, carry: list[Any], step: Any) -> tuple[list[Any], list[Any]]:
        """The carry after the step that runs as number `step`, and its y."""
        inputs = self.inputs(carry, step)
        if self.linearized is not None:
            flat = self.linearized.advance([*self.shared, *carry, *inputs.xs])
            return self.loop.results(flat)
        return guarded(self.loop, self.operands.consts, self.safe.carry, carry)(*inputs)

    def step_again(self, restarted: list[Any], step: Any) -> list[Any]:
        """The checkpoint after a step, from the one before."""
        return pick(self.step(self.whole(restarted), step)[0], self.restart)

    def advance_by(self, count: int, first: Any, restarted: list[Any]) -> list[Any]:
        """The checkpoint `count` steps after the one at step `first`, in a static loop."""
        return for_loop(0, count, lambda i, x: self.step_again(x, first + i), restarted)

    def advance(self, span: jax.Array, restarted: list[Any]) -> tuple[jax.Array, list[Any]]:
        """The checkpoint at step `span[1]`, from the one at `span[0]`, which becomes `span[1]`.

        The numbers stay in one array, with any others behind them. On CPU, each kernel that takes
        one of them out would last as long as a light step.
        """

        def step(state: tuple[jax.Array, list[Any]]) -> tuple[jax.Array, list[Any]]:
            span, restarted = state
            restarted = self.step_again(restarted, element(span, 0))
            return lax.add(span, one), restarted

        def is_before(state: tuple[jax.Array, list[Any]]) -> jax.Array:
            return lax.lt(element(state[0], 0), element(state[0], 1))

        one = np.eye(1, span.size, dtype=np.int32)[0]
        return lax.while_loop(is_before, step, (span, restarted))


def for_loop(start: Any, stop: Any, body: Callable[[Any, T], T], state: T) -> T:
    """`lax.fori_loop`, as a while loop also where the numbers are known: as a scan it would be
    traced again to be lowered, and count twice. XLA makes the same of both."""
    if not (isinstance(start, int) and isinstance(stop, int)):
        return lax.fori_loop(start, stop, body, state)

    def step(counted: tuple[Any, T]) -> tuple[Any, T]:
        i, state = counted
        return lax.add(i, np.int32(1)), body(i, state)

    is_before = lambda counted: lax.lt(counted[0], np.int32(stop))  # noqa: E731
    return lax.while_loop(is_before, step, (np.int32(start), state))[1]


def element(numbers: jax.Array, which: int) -> jax.Array:
    """One of several numbers that are one array. Here and in `engine.split`, functions of `jax.lax`
    compute with them: each operator would be traced as a function of its own."""
    return lax.index_in_dim(numbers, which, keepdims=False)
