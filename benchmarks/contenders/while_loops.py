"""Loops that are called as `lax.while_loop`, with a bound."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.contenders.scans import EQUINOX, JAX_REVOLVE
from benchmarks.runner.programs import Contender
from jax_revolve import bounded_while_loop, plan

EQUINOX_BOUNDED = "equinox bounded"
MASKED = "masked lax.scan"


def jax_revolve(max_steps: int, checkpoints: int | None = None) -> Contender:
    s = checkpoints or default_checkpoints(max_steps)
    loop = partial(bounded_while_loop, max_steps=max_steps, checkpoints=s, throw=False)
    return Contender(JAX_REVOLVE, loop, s, max_steps)


def default_checkpoints(max_steps: int) -> int:
    """The library's default: no step is advanced more than three times."""
    return plan(max_steps, repetitions=3).checkpoints


def equinox(max_steps: int, checkpoints: int) -> Contender:
    """Equinox's loop for reverse mode."""
    how = {"kind": "checkpointed", "max_steps": max_steps, "checkpoints": checkpoints}
    return Contender(EQUINOX, partial(eqxi.while_loop, **how), checkpoints, max_steps)


def bounded(max_steps: int) -> Contender:
    """Equinox's loop for both modes and higher orders: nested scans with conditions."""
    loop = partial(eqxi.while_loop, kind="bounded", max_steps=max_steps)
    return Contender(EQUINOX_BOUNDED, loop, max_steps=max_steps)


def masked(max_steps: int) -> Contender:
    """A scan of `max_steps` steps that keeps the state once the condition has failed."""
    return Contender(MASKED, partial(_masked_scan, max_steps), max_steps=max_steps)


def _masked_scan(
    max_steps: int, cond: Callable[[Any], Any], body: Callable[[Any], Any], init: Any
) -> Any:
    """Once it is done, the body is given the initial state, where its derivative is known to be
    finite: the mask alone would not keep a NaN out of the gradient."""

    def step(state: Any, _: None) -> tuple[Any, None]:
        select = partial(jax.tree.map, partial(jnp.where, cond(state)))
        return select(body(select(state, init)), state), None

    return lax.scan(step, init, None, max_steps)[0]
