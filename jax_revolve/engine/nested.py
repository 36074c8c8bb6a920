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
from jax_revolve._compat.values import spread
from jax_revolve.jaxprs.evaluate import kept_whole
from jax_revolve.jaxprs.parts import with_outputs
from jax_revolve.step.examples import any_example
from jax_revolve.step.linearized import Cotangents, add, of_init, zero_cotangents
from jax_revolve.step.loop import Operands
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
    loop, activity = steps.loop, steps.linearized.activity
    if (length := loop.length) is None:
        raise ValueError(
            "max_steps must be an int to differentiate the gradient of a while loop whose step has "
            "a jax.custom_vjp function, a jax.custom_jvp rule or a derivative without reverse "
            "mode, but is None. Pass max_steps to bounded_while_loop or checkpointed_fori_loop."
        )
    # Blocks of as many steps as there are blocks, about; the last one may be filled up with copies,
    # which are skipped.
    root = max(isqrt(length), 1)
    size = next((k for k in range(root, 2 * root) if length % k == 0), root)
    blocks = -(-length // size)
    missing, order = blocks * size - length, -1 if loop.reverse else 1

    def in_blocks(x: Any) -> Any:
        x = jnp.concatenate([x, x[:missing]][::order]) if missing else x
        return x.reshape(blocks, size, *x.shape[1:])

    numbers = jnp.arange(blocks * size, dtype=jnp.int32).reshape(blocks, size)
    ct_ys = [ct for ct in cotangents.ys if ct is not None]
    xs, ct_ys = jax.tree.map(in_blocks, (steps.operands.xs, ct_ys))
    inputs: _Inputs = xs, ct_ys, numbers[::order, ::order]
    nest = _Nest(steps, [ct is not None for ct in cotangents.ys], size, missing > 0)
    _, starts = lax.scan(nest.advance_block, steps.operands.carry, inputs, reverse=loop.reverse)
    gradient = cotangents.carry, zero_cotangents(steps.operands.consts, activity.consts)
    (ct_carry, ct_consts), ct_xs = lax.scan(
        nest.pull_back_block, gradient, (starts, inputs), reverse=not loop.reverse
    )
    ct_xs = [x.reshape(blocks * size, *x.shape[2:]) for x in ct_xs]
    ct_xs = [x[missing:] if loop.reverse else x[:length] for x in ct_xs]
    return Operands(ct_consts, of_init(ct_carry, activity), ct_xs)


class _Nest:
    def __init__(self, steps: Steps, given: list[bool], size: int, is_filled_up: bool) -> None:
        """`given` marks the ys with cotangents."""
        self._steps, self._linearized, self._given = steps, steps.linearized, given
        self._loop, code = steps.loop, steps.linearized.code
        self._results = with_outputs(code, code.jaxpr.outvars[: len(steps.linearized.results)])
        self._size, self._is_filled_up = size, is_filled_up

    def _unless_over(
        self, number: jax.Array, carry: list[Any], run: Callable[[], T], otherwise: T
    ) -> T:
        """`run()`, unless the loop is over before the step of this number, with this carry."""
        loop = self._loop
        if loop.condition is None and not self._is_filled_up:
            return kept_whole(run, number)
        assert loop.length is not None
        goes_on = number < loop.length
        if loop.condition is not None:
            goes_on &= any_example(loop.holds(self._steps.operands.consts, carry))
        return lax.cond(goes_on, run, lambda: otherwise)

    def _first(self, inputs: _Inputs) -> jax.Array:
        """The number of a block's first step."""
        return inputs[2][-1 if self._loop.reverse else 0]

    def advance_block(self, start: list[Any], inputs: _Inputs) -> tuple[list[Any], list[Any]]:
        """The carry after a block, and before it."""
        run = lambda: self._advance(start, inputs)[0]  # noqa: E731
        number = self._first(inputs)
        return checkpoint(lambda: self._unless_over(number, start, run, start))(), start

    def _advance(self, start: list[Any], inputs: _Inputs) -> tuple[list[Any], list[Any]]:
        """The carry after a block, and before each of its steps."""

        @checkpoint
        def step(carry: list[Any], inputs: _Inputs) -> tuple[list[Any], list[Any]]:
            x, _, number = inputs

            def run() -> list[Any]:
                results = self._results([*self._steps.shared, *carry, *x])
                return self._loop.results(results)[0]

            return self._unless_over(number, carry, run, carry), carry

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

            nothing = self._linearized.zeros_of_xs(inputs[0], self._size)
            return self._unless_over(self._first(inputs), start, run, (gradient, nothing))

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

            nothing = self._linearized.zeros_of_xs(x)
            return self._unless_over(number, carry, run, (gradient, nothing))

        return pull_back(gradient, *of_step)
