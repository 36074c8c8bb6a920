"""Whether the examples of a `jax.vmap` see each other, or differ, in a step.

JAX computes most operations for each example by itself. Exceptions are collectives over a named
axis, rules of `jax.custom_batching.custom_vmap` functions, which see all examples, random bits of
some implementations, and calls back into Python. Libraries and new versions of JAX may add others.
So an operation that the table of `operations` does not call independent is assumed to mix examples:
every example then computes it from its own values, as in `jax.lax`.
"""

from functools import cache
from typing import Any

import jax

from jax_revolve._compat.interpreters import names_axes
from jax_revolve._compat.jaxprs import name_of
from jax_revolve._compat.values import pick, substitute
from jax_revolve.jaxprs.evaluate import operands_like, run_in_place
from jax_revolve.jaxprs.walk import inner_jaxprs
from jax_revolve.step.loop import is_inexact
from jax_revolve.step.operations import having

OWN = "checkpointed_"
"""The prefix of the names of our primitives."""

_INDEPENDENT, _RANDOM, _DIFFERENT = having("independent"), having("random"), having("different")
_ENTERED, _WITH_RULES = having("entered"), having("with_rules")


def mixes_examples(eqn: Any) -> bool:
    """Whether an example's results of an equation, or their derivatives, may depend on other
    examples."""
    name = name_of(eqn)
    if name in _WITH_RULES and names_axes() and _derivative_mixes(eqn):
        return True
    if name in _ENTERED or name in _WITH_RULES or name.startswith(OWN):
        return any(map(_mixes, inner_jaxprs(eqn)))
    if name in _RANDOM:
        return eqn.invars[0].aval.dtype != _threefry()
    return name not in _INDEPENDENT or (name not in _DIFFERENT and bool(eqn.effects))


def _mixes(jaxpr: Any) -> bool:
    return any(map(mixes_examples, jaxpr.eqns))


def _derivative_mixes(eqn: Any) -> bool:
    """Whether a derivative rule may mix examples, where an axis has a name: without one, it has no
    collective. A `custom_jvp` rule is a function of Python, so we trace it. The rules of a
    `custom_vjp` cannot be looked into, because JAX keeps what their last trace has found."""
    if name_of(eqn) == "custom_vjp_call":
        return True
    operands = operands_like(eqn)
    active = [is_inexact(x) for x in operands]

    def derivative(*chosen: Any) -> Any:
        run = lambda *chosen: run_in_place(eqn, substitute(operands, active, chosen))  # noqa: E731
        return jax.jvp(run, chosen, chosen)

    try:
        traced = jax.make_jaxpr(derivative)(*pick(operands, active))
    except Exception:  # a rule may refuse, in any way, what the loop does not differentiate
        return True
    return _mixes(traced)


@cache
def _threefry() -> Any:
    """The type of keys whose numbers depend on them alone, in whatever batch."""
    return jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32")).dtype
