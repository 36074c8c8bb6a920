"""Programs whose loops are inside calls, for the walk and for the names of equations."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental.compute_on import compute_on

from jax_revolve.jaxprs.walk import inner_jaxprs

X = jnp.linspace(0.1, 1.0, 200)
LENGTH = 400
NEW = jax.__version_info__ >= (0, 12)


def sines(x: Any) -> Any:
    return lax.scan(lambda c, _: (jnp.sin(c), None), x, length=LENGTH)[0]


def solved(x: Any) -> Any:
    """Of a linear solve, only the product with the matrix is differentiated."""
    factor = jnp.cos(x / 100)
    times = lambda v: lax.scan(lambda c, _: (c * factor, None), v, length=LENGTH)[0]  # noqa: E731
    solve = lambda _, b: b / factor**LENGTH  # noqa: E731
    return lax.custom_linear_solve(times, x, solve, transpose_solve=solve)


CALLS: dict[str, Callable[[Any], Any]] = {
    "traced": lambda x: jax.jit(sines).trace(x)(x),
    "linear_solve": solved,
    "remat": jax.checkpoint(sines),
    "remat_of_traced": jax.checkpoint(lambda x: jax.jit(sines).trace(x)(x)),
}

if NEW:
    from jax.experimental.overlap import program_order
    from jax.experimental.xla_metadata import xla_metadata_call

    space = jax.memory.Space.Device
    CALLS |= {
        "program_order": program_order(sines, enforce=False),
        "program_order_enforced": program_order(sines, enforce=True),
        "compute_on": compute_on(sines, compute_type="device_host", out_memory_spaces=space),
        "xla_metadata_call": xla_metadata_call(sines, a="1"),
        "all": program_order(
            jax.checkpoint(
                compute_on(sines, compute_type="device_host", out_memory_spaces=space),
            ),
            enforce=True,
        ),
    }


@contextmanager
def option(name: str) -> Iterator[None]:
    """JAX's option, on; the test is skipped if this JAX has none of that name."""
    if name not in jax.config.values:
        pytest.skip(f"this JAX has no {name}")
    before = jax.config.values[name]
    jax.config.update(name, True)
    try:
        yield
    finally:
        jax.config.update(name, before)


def ruled(kind: str) -> Callable[[Any], Any]:
    """A function with a derivative rule that is twice its derivative, and runs a loop."""
    if kind == "custom_jvp":
        forwards = jax.custom_jvp(sines)
        forwards.defjvp(lambda xs, ts: (sines(*xs), 2 * jax.jvp(sines, xs, ts)[1]))
        return forwards
    backwards = jax.custom_vjp(sines)
    options = {"generic_batching": True} if kind == "generic_batching" else {}
    backwards.defvjp(lambda x: jax.vjp(sines, x), lambda f, ct: (2 * f(ct)[0],), **options)
    return backwards


def equations(jaxpr: Any) -> Iterator[Any]:
    """Those of a program, those inside others included."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in inner_jaxprs(eqn):
            yield from equations(inner)
