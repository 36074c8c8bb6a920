"""The nested engine: a scan inside a scan, each step of both under `jax.checkpoint`.

It is ordinary JAX, and JAX differentiates it. So it is right where the slots engine's higher
derivatives are not: if the step has derivative rules that need not be derivatives, see
`autodiff.rules`. Its memory grows as the square root of the length. A while loop is nested
up to its bound, and what comes after its end is skipped.

Before jax 0.12, the linearization of a scan takes `custom_jvp` functions in its body apart: it
looks for what all steps share by partial evaluation, and drops the rules of functions of the carry.
The next derivative then does not use them. A conditional that depends on the step stays whole, so
the steps of a scan are in one without another branch.
"""

from functools import partial
from math import isqrt
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat.jaxprs import kept_whole
from jax_revolve.step.examples import any_example, guarded
from jax_revolve.step.linearized import Activity, Cotangents
from jax_revolve.step.loop import Loop, Operands, pick, substitute
from jax_revolve.step.steps import Steps

CarryAndYs = tuple[list[Any], list[Any]]

checkpoint = partial(jax.checkpoint, prevent_cse=False)


def pull_back_nested(
    loop: Loop, activity: Activity, operands: Operands, cotangents: Cotangents
) -> Operands:
    """The cotangents of the active operands, from the active results' cotangents."""
    if loop.length is None:
        raise ValueError(
            "max_steps must be an int to differentiate the gradient of a while loop whose step has "
            "a jax.custom_vjp function or a jax.custom_jvp rule, but is None. Pass max_steps to "
            "bounded_while_loop or checkpointed_fori_loop."
        )
    masks = (activity.consts, activity.init, activity.xs)
    given = [ct is not None for ct in cotangents.ys]

    def run(*active: list[Any]) -> CarryAndYs:
        carry, ys = _run(loop, Operands(*map(substitute, operands, masks, active)))
        return pick(carry, activity.carry), pick(pick(ys, activity.ys), given)

    _, pullback = jax.vjp(run, *map(pick, operands, masks))
    return Operands(*pullback((cotangents.carry, pick(cotangents.ys, given))))


def _run(loop: Loop, operands: Operands) -> CarryAndYs:
    """The final carry and the ys."""
    steps = Steps.of(loop, (True,) * loop.num_carry, operands)

    def in_branch(carry: list[Any], number: Any, run: Any) -> CarryAndYs:
        """`run()`, unless the loop is over."""
        if loop.condition is None:
            return kept_whole(run, number)
        goes_on = any_example(loop.holds(steps.operands.consts, carry))
        return lax.cond(goes_on, run, lambda: (carry, []))

    @checkpoint
    def step(carry: list[Any], inputs: tuple[list[Any], Any]) -> CarryAndYs:
        x, number = inputs
        run = guarded(loop, steps.operands.consts, steps.safe.carry, carry)
        return in_branch(carry, number, partial(run, steps.safe.consts, carry, x))

    @checkpoint
    def block(carry: list[Any], inputs: tuple[list[Any], Any]) -> CarryAndYs:
        run = lambda: _scan(loop, step, carry, inputs)  # noqa: E731
        return in_branch(carry, inputs[1][0], run)

    assert loop.length is not None
    size = max(isqrt(loop.length), 1)
    blocks, rest = divmod(loop.length, size)
    # A reversed scan begins with its last entries.
    parts = [slice(0, blocks * size), slice(blocks * size, None)]
    if loop.reverse:
        parts = [slice(rest, None), slice(0, rest)]
    xs, numbers = steps.operands.xs, jnp.arange(loop.length, dtype=jnp.int32)
    in_blocks, single = (jax.tree.map(lambda x, at=at: x[at], (xs, numbers)) for at in parts)

    carry, ys = _scan(loop, block, steps.operands.carry, jax.tree.map(_split(blocks), in_blocks))
    carry, more_ys = _scan(loop, step, carry, single)
    joined = [[y.reshape(blocks * size, *y.shape[2:]) for y in ys], more_ys]
    in_order = joined[::-1] if loop.reverse else joined
    return carry, list(map(jnp.concatenate, zip(*in_order, strict=True)))


def _scan(loop: Loop, step: Any, carry: list[Any], inputs: Any) -> CarryAndYs:
    return lax.scan(step, carry, inputs, reverse=loop.reverse)


def _split(blocks: int) -> Any:
    return lambda x: x.reshape(blocks, x.shape[0] // blocks, *x.shape[1:])
