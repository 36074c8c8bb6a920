"""A computation that the compiler keeps apart from all others.

`jax.checkpoint` asks for that with an optimization barrier. XLA removes barriers on a CPU before it
merges equal computations: what is computed again becomes what was computed before, and nothing is
saved. There a conditional whose predicate XLA cannot know stands between the two, as it once did in
JAX itself (https://github.com/jax-ml/jax/pull/7100): the computation is one of its branches.

But XLA's CPU backend gives convolutions the layout that its quick routines need only outside of
branches and loops: inside, they take ten times as long. Where there are any, the conditional copies
the operands, and the computation follows it. That takes the time and the memory of the copies,
which is why it is not done always: weights can be as large as what they are multiplied with.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat import AbstractValue, call_jaxpr, has_convolution, zeros


def apart(fun: Callable[..., list[Any]], *operands: Any) -> list[Any]:
    """`fun(*operands)`, after all of the operands are there, and merged with nothing else."""
    traced = jax.make_jaxpr(fun)(*operands)
    run = jax.jit(call_jaxpr(traced))  # not traced again for each platform and branch

    def behind_a_barrier(*operands: Any) -> list[Any]:
        return run(*lax.optimization_barrier(operands))

    def in_a_branch(*operands: Any) -> list[Any]:
        return _in_a_branch(run, traced.out_avals, operands)

    def on_copies(*operands: Any) -> list[Any]:
        return run(*_in_a_branch(lambda *xs: list(xs), traced.in_avals, operands))

    on_cpu = on_copies if has_convolution(traced) else in_a_branch
    return lax.platform_dependent(*operands, cpu=on_cpu, default=behind_a_barrier)


def _in_a_branch(
    fun: Callable[..., list[Any]], results: Sequence[AbstractValue], operands: Sequence[Any]
) -> list[Any]:
    # Random numbers without operands are neither folded nor batched.
    always = lax.rng_uniform(jnp.float32(0), jnp.float32(1), ()) < 2
    never = lambda *_: [zeros(aval) for aval in results]  # noqa: E731
    return lax.cond(always, fun, never, *operands)
