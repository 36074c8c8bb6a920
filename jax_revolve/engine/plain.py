"""The plain engine: `lax.scan` or `lax.while_loop` itself.

It is used unless the loop is differentiated in reverse mode. With progress it is the same loop in
chunks.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat import with_weak_type, zeros
from jax_revolve.engine.bars import LARGEST, Bar, vary_as
from jax_revolve.progress.listener import FORWARD, listener_of_sweep
from jax_revolve.step.loop import Loop, Operands
from jax_revolve.storage.buffers import read, write


def run_plain(loop: Loop, operands: Operands) -> list[Any]:
    """The final carry and the ys, at exactly the cost of `jax.lax` unless progress is shown."""
    consts, init, xs = operands
    if loop.length != 0 and listener_of_sweep(loop.progress, FORWARD) is not None:
        run = _scan_in_chunks if loop.condition is None else _while_in_chunks
        return list(map(with_weak_type, run(loop, operands), loop.output_types))
    if loop.condition is not None:
        return _run_while(loop, consts, init)
    carry, ys = lax.scan(
        lambda carry, x: loop.step(consts, carry, x),
        init,
        xs,
        loop.length,
        loop.reverse,
        loop.unroll,
    )
    return [*carry, *ys]


def _run_while(loop: Loop, consts: list[Any], init: list[Any]) -> list[Any]:
    bound = loop.length

    def advance(carry: list[Any]) -> list[Any]:
        return loop.step(consts, carry, [])[0]

    if bound is None:
        return lax.while_loop(lambda carry: loop.holds(consts, carry), advance, init)

    def go_on(state: tuple[jax.Array, list[Any]]) -> jax.Array:
        count, carry = state
        return (count < bound) & loop.holds(consts, carry)

    def counted(state: tuple[jax.Array, list[Any]]) -> tuple[jax.Array, list[Any]]:
        count, carry = state
        return count + 1, advance(carry)

    return lax.while_loop(go_on, counted, (jnp.int32(0), init))[1]


def _scan_in_chunks(loop: Loop, operands: Operands) -> list[Any]:
    consts, init, xs = operands
    iterations, rest = divmod(loop.steps, loop.unroll)

    def steps(first: Any, count: int, progress: Any) -> Any:
        carry, ys = progress
        for i in range(count):
            at = loop.entry(first + i)
            carry, y = loop.step(consts, carry, read(xs, at))
            ys = write(ys, y, at)
        return carry, ys

    def iteration(i: jax.Array, progress: Any) -> Any:
        return steps(rest + loop.unroll * i, loop.unroll, progress)

    ys = list(map(zeros, loop.results(loop.output_types)[1]))
    progress = steps(0, rest, (init, ys))
    bar = Bar(loop, FORWARD, loop.steps)
    carry, ys = bar.fori_loop(0, iterations, iteration, progress, size=loop.unroll, before=rest)
    return [*carry, *ys]


_Progress = tuple[jax.Array, jax.Array, list[Any]]
"""The number of steps taken, whether to go on, and the carry."""


def _while_in_chunks(loop: Loop, operands: Operands) -> list[Any]:
    consts, init, _ = operands
    bar = Bar(loop, FORWARD, None)
    bound = LARGEST if loop.length is None else loop.length

    def goes_on(progress: _Progress, stop: Any) -> jax.Array:
        count, going, _ = progress
        return going & (count < stop)

    def advance(carry: list[Any]) -> tuple[jax.Array, list[Any]]:
        carry, _ = loop.step(consts, carry, [])
        return loop.holds(consts, carry), carry

    def step(progress: _Progress) -> _Progress:
        count, _, carry = progress
        return count + 1, *advance(carry)

    def chunk(state: tuple[jax.Array, _Progress]) -> tuple[jax.Array, _Progress]:
        _, progress = state
        over = ~goes_on(progress, bound)
        stop = jnp.minimum(bar.report(progress[0], over), bound)
        return over, lax.while_loop(lambda p: goes_on(p, stop), step, progress)

    start = (jnp.int32(0), loop.holds(consts, init), init)
    over = vary_as(jnp.bool_(False), start[1])
    _, progress = lax.while_loop(lambda state: ~state[0], chunk, (over, start))
    _, going, carry = progress
    if loop.length is None:  # steps beyond the range of the counter
        _, carry = lax.while_loop(lambda s: s[0], lambda s: advance(s[1]), (going, carry))
    return carry
