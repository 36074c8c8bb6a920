"""What a compiled program holds and consists of; and a stencil to compile."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

WIDTH = 20000
CARRY_BYTES = 4 * WIDTH
Scan = Callable[..., Any]


def stencil_step(u: Any, _: Any) -> Any:
    return u + 0.1 * (jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1)) - 0.01 * u**3, None


def stencil(scan: Scan, length: int) -> Callable[..., Any]:
    return lambda u: jnp.sum(scan(stencil_step, u, None, length)[0] ** 2)


def state(width: int = WIDTH) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((width,), jnp.float32)


def compiled(fun: Callable[..., Any], *arguments: Any) -> Any:
    return jax.jit(fun).lower(*arguments).compile()


def temporaries(fun: Callable[..., Any], *arguments: Any) -> int:
    return compiled(fun, *arguments).memory_analysis().temp_size_in_bytes


def residuals_of_one_step() -> int:
    """What `jax.vjp` of one step keeps for its pullback."""
    _, pullback = jax.eval_shape(lambda u: jax.vjp(lambda v: stencil_step(v, None)[0], u), state())
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(pullback))


def instructions(text: str) -> int:
    return len(re.findall(r"^\s+(?:ROOT )?%\S+ = ", text, re.MULTILINE))
