"""One line for each linearized loop: what was decided about its gradient.

`JAX_REVOLVE_TRACE=1` prints these lines to the standard error stream when a program is traced:

    scan of 1000 steps, step at model.py:12; active: consts 1/1, carry 2/2, xs 0/0, ys 0/0;
    checkpoint: 1/2 leaves, 4 kB; residuals: 8 kB of 12 kB; engine: offline; plan: 1000 steps, ...

The engine is "offline" for scans, "static levels" for scans whose loops all have a static length,
and "online" for while loops, perhaps with "blocks walked back" by an inverse.
"""

import sys
from collections.abc import Sequence

from jax_revolve._compat.jaxprs import source_of_function
from jax_revolve.autodiff.check import is_on
from jax_revolve.engine.nest import block_of
from jax_revolve.engine.tape.tape import sizes_of
from jax_revolve.engine.walk_back import WalkBack
from jax_revolve.schedule.arguments import readable
from jax_revolve.step.journal import Journal
from jax_revolve.step.linearized import Linearized
from jax_revolve.step.loop import Loop, Operands, plan_of

VARIABLE = "JAX_REVOLVE_TRACE"


def show(loop: Loop, step: Linearized, operands: Operands, journal: Journal | None) -> None:
    """Print the line of a loop whose plan is chosen, if the environment variable is set."""
    if not is_on(VARIABLE):
        return
    plan, active, sizes = plan_of(loop), step.activity, sizes_of(loop, step, operands, journal)
    kept = step.restart if journal is None else journal.without(step.restart)
    logged = "" if journal is None else f"; journal: {readable(sizes.journal)}"
    if loop.condition is None:
        kind, engine = f"scan of {loop.length}", "offline"
        engine = "static levels" if plan.static_levels else engine
    else:
        kind, engine = f"while loop of at most {loop.length or 'any number of'}", "online"
    if block_of(loop, plan) is WalkBack:
        engine += ", blocks walked back"
    parts = {"consts": active.consts, "carry": active.carry, "xs": active.xs, "ys": active.ys}
    before = sizes.residuals if sizes.uncut is None else sizes.uncut
    print(
        f"{kind} steps, {source_of_function(loop.jaxpr)}; "
        f"active: {', '.join(f'{name} {_share(mask)}' for name, mask in parts.items())}; "
        f"checkpoint: {_share(kept)} leaves, {readable(sizes.checkpoint)}{logged}; "
        f"residuals: {readable(sizes.residuals)} of {readable(before)}; "
        f"engine: {engine}; plan: {plan}",
        file=sys.stderr,
    )


def _share(mask: Sequence[bool]) -> str:
    return f"{sum(mask)}/{len(mask)}"
