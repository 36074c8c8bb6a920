"""A check of every reverse sweep, for tests and bug reports.

With the environment variable `JAX_REVOLVE_CHECK=1`, each reverse sweep compares its cotangents with
a plain pullback, and raises an error that names the loop, its plan and the cotangent if they
differ. For a scan, the oracle is the pullback of `jax.lax.scan`, which stores the residuals of all
steps; for a while loop, it is the nested engine. So the check uses the memory that we save.
"""

import os
from typing import Any

import jax
import jax.numpy as jnp

from jax_revolve._compat.callbacks import raise_if
from jax_revolve._compat.jaxprs import source_of_function
from jax_revolve._compat.values import pick, substitute
from jax_revolve.engine.nested import pull_back_nested
from jax_revolve.engine.plain import run_plain
from jax_revolve.schedule.plan import Plan
from jax_revolve.step.linearized import Cotangents
from jax_revolve.step.loop import Operands
from jax_revolve.step.steps import Steps

VARIABLE = "JAX_REVOLVE_CHECK"

LONGEST = 100_000
"""The largest bound of a checked while loop, because the nested engine visits every step."""

TOLERANCE = 0.5
"""The tolerance as an exponent of the dtype's epsilon, relative to a cotangent's largest entry:
sums in another order round differently, and a chaotic loop amplifies that."""


def is_on(variable: str = VARIABLE) -> bool:
    """Whether this environment variable is 1."""
    value = os.environ.get(variable, "0")
    if value not in ("0", "1"):
        raise ValueError(f"{variable} must be 0 or 1, but is {value!r}.")
    return value == "1"


def checked(
    steps: Steps, plan: Plan, cotangents: Cotangents, result: Operands, *, is_plain: bool
) -> Operands:
    """The result of a reverse sweep, with an error at run time if the plain pullback differs. It
    `is_plain` unless the loop was linearized again. What rules log, after the cotangents of the
    xs, is compared with nothing."""
    loop = steps.loop
    if loop.condition is None and is_plain:
        expected = _pull_back_plain(steps, cotangents)
    elif loop.length is not None and loop.length <= LONGEST:
        expected = pull_back_nested(steps, cotangents)
    else:
        return result
    where = f"the loop over {source_of_function(loop.jaxpr)} with the plan {plan}"

    def raised(path: Any, found: Any, wanted: Any) -> Any:
        name = jax.tree_util.keystr(path).removeprefix(".")  # carry[0]
        return raise_if(_differs(found, wanted), found, f"{VARIABLE}: {name} of {where} is wrong.")

    count = len(expected.xs)
    result, logs = result._replace(xs=result.xs[:count]), result.xs[count:]
    result = jax.tree.map_with_path(raised, result, expected)
    return result._replace(xs=[*result.xs, *logs])


def _pull_back_plain(steps: Steps, cotangents: Cotangents) -> Operands:
    loop, operands = steps.loop, steps.operands
    activity = steps.linearized.activity
    masks = (activity.consts, activity.init, activity.xs)
    given = [ct is not None for ct in cotangents.ys]

    def run(*active: list[Any]) -> tuple[list[Any], list[Any]]:
        inputs = Operands(*map(substitute, operands, masks, active))
        carry, ys = loop.results(run_plain(loop, inputs))
        of_ys = activity.ys[: len(ys)]  # not the entries of a journal
        return pick(carry, activity.carry), pick(pick(ys, of_ys), given)

    _, pullback = jax.vjp(run, *map(pick, operands, masks))
    return Operands(*pullback((cotangents.carry, pick(cotangents.ys, given))))


def _differs(found: Any, expected: Any) -> jax.Array:
    """Whether a cotangent differs from the expected one by more than rounding."""
    if not jnp.issubdtype(expected.dtype, jnp.inexact):
        return jnp.bool_(False)
    scale = jnp.max(jnp.abs(expected), initial=0) + jnp.finfo(expected.dtype).tiny
    most = scale * float(jnp.finfo(expected.dtype).eps) ** TOLERANCE
    is_close = (jnp.abs(found - expected) <= most) | (found == expected)
    return ~jnp.all(is_close | (jnp.isnan(found) & jnp.isnan(expected)))
