"""Ways to run a loop that stops by a condition, called as `lax.while_loop` is."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from contenders import EQUINOX, OURS, Contender
from jax import lax

from jax_revolve import bounded_while_loop
from jax_revolve.loops.options import Options
from jax_revolve.schedule import online
from jax_revolve.schedule.planning import Checkpoints

PLAIN = "lax.while_loop"
BOUNDED = "equinox bounded"
MASKED = "masked lax.scan"


def plain() -> Contender:
    return Contender(PLAIN, lax.while_loop)


def ours(steps: int, max_steps: int, wanted: Checkpoints = None) -> Contender:
    """Ours, with the cost of its gradient if the loop takes `steps` steps."""
    checkpoints = checkpoints_for(max_steps, wanted)
    loop = partial(bounded_while_loop, max_steps=max_steps, checkpoints=checkpoints)
    evaluations = online.evaluations(steps, checkpoints)
    return Contender(OURS, loop, checkpoints, evaluations, max_steps=max_steps)


def checkpoints_for(max_steps: int, wanted: Checkpoints) -> int:
    """How many checkpoints are used if as many are wanted; `None` is the library's default."""
    plan = Options(wanted).for_bound(max_steps)
    assert plan is not None
    return plan.checkpoints


def equinox(max_steps: int, checkpoints: int) -> Contender:
    """Equinox's loop for reverse mode."""
    loop = partial(
        eqxi.while_loop, kind="checkpointed", max_steps=max_steps, checkpoints=checkpoints
    )
    return Contender(EQUINOX, loop, checkpoints, max_steps=max_steps)


def bounded(max_steps: int) -> Contender:
    """Equinox's loop for both modes and higher orders: nested scans with conditions."""
    loop = partial(eqxi.while_loop, kind="bounded", max_steps=max_steps)
    return Contender(BOUNDED, loop, max_steps=max_steps)


def masked(max_steps: int) -> Contender:
    """A scan of `max_steps` steps that keeps the state once the condition has failed."""
    loop = partial(_masked_scan, max_steps=max_steps)
    return Contender(MASKED, loop, evaluations=max_steps, max_steps=max_steps)


def _masked_scan(
    cond: Callable[[Any], Any], body: Callable[[Any], Any], init: Any, *, max_steps: int
) -> Any:
    """Once it is done, the body is given the initial state, where its derivative is known to be
    finite: the mask alone would not keep a NaN out of the gradient."""

    def step(state: Any, _: None) -> tuple[Any, None]:
        select = partial(jax.tree.map, partial(jnp.where, cond(state)))
        return select(body(select(state, init)), state), None

    return lax.scan(step, init, None, max_steps)[0]
