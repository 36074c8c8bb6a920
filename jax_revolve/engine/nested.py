"""The nested engine: the reverse sweep as a scan inside a scan, both under `jax.checkpoint`.

It is ordinary JAX, made of the two halves of a linearized step, and JAX differentiates it. So its
higher derivatives are correct where the slots engine's are not: in steps with derivative
rules that need not be derivatives, or a derivative without reverse mode (`autodiff.sweeps`). Its
memory grows as the square root of the length:

    starts = [carry at the start of each block]
    for block in reversed(blocks):
        carries = [carry before each step of the block]     # recomputed from starts[block]
        for step in reversed(block):
            residuals = code(carries[step], xs[step])
            cotangents = transposed(residuals, cotangents)

The sweep is written out, because JAX's transposition of nested scans under `jax.checkpoint` would
store all carries of a block for each block. A while loop runs up to its bound, and a `cond` skips
the steps after its end.

Workaround for jax < 0.12: linearizing a scan partially evaluates its body, to find what all steps
share, and thereby drops `custom_jvp` rules of functions of the carry. The next derivative would
ignore them. JAX leaves a conditional on the step's number whole, so each step of a scan is the only
branch of one (`kept_whole`). Remove it once jax 0.12 is the oldest version that we support.
"""

from collections.abc import Callable
from functools import wraps
from math import isqrt
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat.interpreters import remat3
from jax_revolve.jaxprs.evaluate import kept_whole
from jax_revolve.jaxprs.parts import with_outputs
from jax_revolve.step.examples import any_example
from jax_revolve.step.linearized import Cotangents, Linearized, add, of_init, zero_cotangents
from jax_revolve.step.loop import Operands, spread
from jax_revolve.step.steps import Steps

T = TypeVar("T")


def checkpoint(fun: Callable[..., T]) -> Callable[..., T]:
    """`jax.checkpoint(fun)` that keeps symbolic zeros.

    With `jax_remat3`, JAX 0.12 instantiates zero tangents. That would apply derivative rules where
    nothing is differentiated, and functions with a `custom_vjp` would raise an error.
    """

    @wraps(fun)
    def run(*args: Any) -> T:
        with remat3(False):
            return jax.checkpoint(fun, prevent_cse=False)(*args)

    return run


_Inputs = tuple[list[Any], list[Any], jax.Array]
"""What differs from step to step: xs, the cotangents of the ys, and the step's number."""

_Gradient = tuple[list[Any], list[Any]]
"""The cotangents of the carry, and of the consts, summed over the steps so far."""


def pull_back_nested(steps: Steps, cotangents: Cotangents) -> Operands:
    """The cotangents of the active operands, from the active results' cotangents."""
    loop, linearized = steps.loop, steps.linearized
    assert linearized is not None
    if (length := loop.length) is None:
        raise ValueError(
            "max_steps must be an int to differentiate the gradient of a while loop whose step has "
            "a jax.custom_vjp function, a jax.custom_jvp rule or a derivative without reverse "
            "mode, but is None. Pass max_steps to bounded_while_loop or checkpointed_fori_loop."
        )
    nest = _Nest(steps, linearized, [ct is not None for ct in cotangents.ys])
    size = max(isqrt(length), 1)
    blocks, rest = divmod(length, size)
    # A reversed scan begins with its last entries.
    at, order = (rest, -1) if loop.reverse else (blocks * size, 1)
    ct_ys = [ct for ct in cotangents.ys if ct is not None]
    inputs: _Inputs = steps.operands.xs, ct_ys, jnp.arange(length, dtype=jnp.int32)
    parts = [jax.tree.map(lambda x: x[:at], inputs), jax.tree.map(lambda x: x[at:], inputs)]
    first, last = parts[::order]
    first = jax.tree.map(lambda x: x.reshape(blocks, size, *x.shape[1:]), first)

    carry, starts = lax.scan(nest.advance_block, steps.operands.carry, first, reverse=loop.reverse)
    activity = linearized.activity
    gradient = cotangents.carry, zero_cotangents(steps.operands.consts, activity.consts)
    gradient, last_xs = nest.pull_back_block(gradient, (carry, last))
    (ct_carry, ct_consts), ct_xs = lax.scan(
        nest.pull_back_block, gradient, (starts, first), reverse=not loop.reverse
    )
    ct_xs = [x.reshape(blocks * size, *x.shape[2:]) for x in ct_xs]
    joined = zip(*[ct_xs, last_xs][::order], strict=True)
    return Operands(ct_consts, of_init(ct_carry, activity), list(map(jnp.concatenate, joined)))


class _Nest:
    def __init__(self, steps: Steps, linearized: Linearized, given: list[bool]) -> None:
        """`given` marks the ys with cotangents."""
        self._steps, self._linearized, self._given = steps, linearized, given
        self._loop, code = steps.loop, linearized.code
        self._results = with_outputs(code, code.jaxpr.outvars[: len(linearized.results)])

    def _unless_over(self, carry: list[Any], run: Callable[[], T], otherwise: T) -> T:
        """`run()`, unless the loop is over before this carry."""
        if self._loop.condition is None:
            return run()
        goes_on = any_example(self._loop.holds(self._steps.operands.consts, carry))
        return lax.cond(goes_on, run, lambda: otherwise)

    def _in_branch(self, number: jax.Array, run: Callable[[], T]) -> Callable[[], T]:
        return run if self._loop.condition is not None else lambda: kept_whole(run, number)

    def advance_block(self, start: list[Any], inputs: _Inputs) -> tuple[list[Any], list[Any]]:
        """The carry after a block, and before it."""
        run = lambda: self._advance(start, inputs)[0]  # noqa: E731
        return checkpoint(lambda: self._unless_over(start, run, start))(), start

    def _advance(self, start: list[Any], inputs: _Inputs) -> tuple[list[Any], list[Any]]:
        """The carry after a block, and before each of its steps."""

        @checkpoint
        def step(carry: list[Any], inputs: _Inputs) -> tuple[list[Any], list[Any]]:
            x, _, number = inputs

            def run() -> list[Any]:
                results = self._results([*self._steps.shared, *carry, *x])
                return self._loop.results(results)[0]

            return self._unless_over(carry, self._in_branch(number, run), carry), carry

        return lax.scan(step, start, inputs, reverse=self._loop.reverse)

    def pull_back_block(
        self, gradient: _Gradient, of_block: tuple[list[Any], _Inputs]
    ) -> tuple[_Gradient, list[Any]]:
        """The cotangents before a block and of its xs, from the cotangents after it, the
        carry before it and its inputs."""

        @checkpoint
        def pull_back(gradient: _Gradient, start: list[Any], inputs: _Inputs) -> Any:
            def run() -> tuple[_Gradient, list[Any]]:
                _, carries = self._advance(start, inputs)
                reverse = not self._loop.reverse
                return lax.scan(self._pull_back_step, gradient, (carries, inputs), reverse=reverse)

            return self._unless_over(start, run, (gradient, []))

        return pull_back(gradient, *of_block)

    def _pull_back_step(
        self, gradient: _Gradient, of_step: tuple[list[Any], _Inputs]
    ) -> tuple[_Gradient, list[Any]]:
        @checkpoint
        def pull_back(gradient: _Gradient, carry: list[Any], inputs: _Inputs) -> Any:
            x, ct_ys, number = inputs
            ct_carry, ct_consts = gradient

            def run() -> tuple[_Gradient, list[Any]]:
                cts = Cotangents(ct_carry, spread(ct_ys, self._given))
                found = self._linearized.pull_back([*self._steps.shared, *carry, *x], cts)
                return (found.carry, add(ct_consts, found.consts)), found.xs

            return self._unless_over(carry, self._in_branch(number, run), (gradient, []))

        return pull_back(gradient, *of_step)
