"""The loop primitive, which stands for a whole loop; its derivative is in `primitive`."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve import _compat
from jax_revolve._compat import LoopEquation
from jax_revolve.autodiff.batching import batched_dims, vmap_over
from jax_revolve.autodiff.family import Flat, function_types
from jax_revolve.engine.plain import run_plain
from jax_revolve.step.activity import Activity, Mask, find_activity
from jax_revolve.step.dead_code import known_part, prune_loop
from jax_revolve.step.examples import run_examples
from jax_revolve.step.loop import Loop
from jax_revolve.step.once import Batched, batch_once, once


def run_loop(loop: Loop, operands: list[Any]) -> Flat:
    """The loop primitive's results."""
    if not all(_compat.is_array_type(jax.typeof(x)) for x in operands):
        raise NotImplementedError(
            "jax_revolve does not support mutable array references in the body of a loop: its "
            "reverse pass runs steps again, which would change the array again. Pass the array "
            "through the carry, or use jax.lax.scan or jax.lax.while_loop."
        )
    if loop.length == 0:
        inputs = loop.operands(operands)
        return run_plain(loop, inputs) if loop.condition is None else inputs.carry
    return loop_p.bind(*operands, function=loop)


def run_counted(loop: Loop, operands: list[Any]) -> tuple[jax.Array, Flat]:
    """The steps that a while loop takes, of each example under `vmap`, and the loop's results."""
    consts, init, _ = loop.operands(operands)

    def count(loop: Loop) -> tuple[jax.Array, list[Any]]:
        def go_on(state: tuple[jax.Array, list[Any]]) -> jax.Array:
            return loop.holds(consts, state[1])

        def step(state: tuple[jax.Array, list[Any]]) -> tuple[jax.Array, list[Any]]:
            return state[0] + 1, loop.step(consts, state[1], [])[0]

        return lax.while_loop(go_on, step, (jnp.int32(0), init))

    return as_loop(loop, count)


def as_loop(loop: Loop, fun: Callable[[Loop], Any]) -> Any:
    """`fun(loop)`, which runs a loop of lax with as many steps, with the loop primitive for it.

    The bound of a while loop is left out of its condition here, and belongs to the result again. So
    does its progress.
    """

    def run(equation: LoopEquation, operands: list[Any]) -> Flat:
        return run_loop(Loop.of(equation, loop.length, loop.plan, loop.progress), operands)

    length = None if loop.condition is not None else loop.length
    bare = loop._replace(length=length, progress=None)
    return _compat.run_around_loop(lambda: fun(bare), run)


def loop_activity(loop: Loop, differentiated: Mask) -> Activity:
    """What has derivatives, given which operands are differentiated."""
    # The condition's consts come first. A predicate has no derivative.
    first = loop.num_condition_consts
    mask = (*[False] * first, *differentiated[first:])
    return once(loop.bare, ("activity", mask), lambda: find_activity(loop, mask))


# Its rules


def _run_loop(*operands: Any, function: Loop) -> Flat:
    return run_plain(function, function.operands(operands))


def batch_loop(axis: Any, operands: Flat, dims: Flat, function: Loop) -> Batched:
    def run(loop: Loop, *operands: Any) -> Flat:
        inputs = loop.operands(operands)
        if loop.condition is None:
            return run_plain(loop, inputs)
        return run_examples(loop, inputs)

    def batch_loop_once(*operands: Any) -> Batched:
        dims_out = batched_dims(axis, partial(run, function), operands, dims)
        results = as_loop(
            function, lambda loop: vmap_over(axis, partial(run, loop), dims, dims_out)(*operands)
        )
        return results, dims_out

    return batch_once(function, (axis,), batch_loop_once, operands, dims)


loop_p = _compat.new_primitive(
    "checkpointed_loop",
    implementation=_run_loop,
    output_types=function_types,
    batch=batch_loop,
    prune=prune_loop,
    known=known_part,
)
