"""A computation that the compiler keeps apart from all others.

`jax.checkpoint` asks for that with an optimization barrier. XLA removes barriers on a CPU before it
merges equal computations: what is computed again becomes what was computed before, and nothing is
saved. There the computation is the branch of a conditional whose predicate XLA cannot know, as it
once was in JAX itself (https://github.com/jax-ml/jax/pull/7100).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat import call_jaxpr, zeros


def apart(fun: Callable[..., list[Any]], *operands: Any) -> list[Any]:
    """`fun(*operands)`, after all of the operands are there, and merged with nothing else."""
    traced = jax.make_jaxpr(fun)(*operands)

    def behind_a_barrier(*operands: Any) -> list[Any]:
        return call_jaxpr(traced)(*lax.optimization_barrier(operands))

    def in_a_branch(*operands: Any) -> list[Any]:
        # Random numbers without operands are neither folded nor batched.
        always = lax.rng_uniform(jnp.float32(0), jnp.float32(1), ()) < 2
        never = lambda *_: [zeros(aval) for aval in traced.out_avals]  # noqa: E731
        return lax.cond(always, call_jaxpr(traced), never, *operands)

    return lax.platform_dependent(*operands, cpu=in_a_branch, default=behind_a_barrier)
