"""The nested engine: a scan inside a scan, each step of both under `jax.checkpoint`.

It is ordinary JAX, and JAX differentiates it. So it is right where the slots engine's higher
derivatives are not: if the step has derivative rules that need not be derivatives, or a derivative
without reverse mode, see `autodiff.rules`. Its memory grows as the square root of the length. A
while loop is nested up to its bound, and what comes after its end is skipped.

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
    if (length := loop.length) is None:
        raise ValueError(
            "max_steps must be an int to differentiate the gradient of a while loop whose step has "
            "a jax.custom_vjp function, a jax.custom_jvp rule or a derivative without reverse "
            "mode, but is None. Pass max_steps to bounded_while_loop or checkpointed_fori_loop."
        )
    masks = (activity.consts, activity.init, activity.xs)
    given = [ct is not None for ct in cotangents.ys]

    def run(*active: list[Any]) -> CarryAndYs:
        carry, ys = _run(loop, length, Operands(*map(substitute, operands, masks, active)))
        return pick(carry, activity.carry), pick(pick(ys, activity.ys), given)

    _, pullback = jax.vjp(run, *map(pick, operands, masks))
    return Operands(*pullback((cotangents.carry, pick(cotangents.ys, given))))


def _run(loop: Loop, length: int, operands: Operands) -> CarryAndYs:
    """The final carry and the ys."""
    steps = Steps.of(loop, (True,) * loop.num_carry, operands)

    def in_branch(carry: list[Any], number: Any, run: Any) -> CarryAndYs:
        """`run()`, unless the loop is over."""
        if loop.condition is None:
            return kept_whole(run, number)
        goes_on = any_example(loop.holds(steps.operands.consts, carry))
        return lax.cond(goes_on, run, lambda: (carry, []))

    @checkpoint
    def step(carry: list[Any], inputs: list[Any]) -> CarryAndYs:
        *x, number = inputs
        run = guarded(loop, steps.operands.consts, steps.safe.carry, carry)
        return in_branch(carry, number, partial(run, steps.safe.consts, carry, x))

    @checkpoint
    def block(carry: list[Any], inputs: list[Any]) -> CarryAndYs:
        return in_branch(carry, inputs[-1][0], lambda: scan(step, carry, inputs))

    scan = partial(lax.scan, reverse=loop.reverse)
    size = max(isqrt(length), 1)
    blocks, rest = divmod(length, size)
    # A reversed scan begins with its last entries.
    at, order = (rest, -1) if loop.reverse else (blocks * size, 1)
    xs = [*steps.operands.xs, jnp.arange(length, dtype=jnp.int32)]
    in_blocks, single = zip(*(jnp.split(x, [at])[::order] for x in xs), strict=True)
    in_blocks = [x.reshape(blocks, size, *x.shape[1:]) for x in in_blocks]

    carry, ys = scan(block, steps.operands.carry, in_blocks)
    carry, more_ys = scan(step, carry, list(single))
    joined = [[y.reshape(blocks * size, *y.shape[2:]) for y in ys], more_ys]
    return carry, list(map(jnp.concatenate, zip(*joined[::order], strict=True)))
