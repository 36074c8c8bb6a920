"""While loops with a batched predicate, which `jax.vmap` makes.

lax stops such a loop when the last example is done, and in each step selects new or old values. We
write that out as a loop with a scalar predicate, which can be reversed.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from jax_revolve._compat.jaxprs import call_jaxpr, is_literal
from jax_revolve._compat.values import pick
from jax_revolve.jaxprs.walk import inner_programs
from jax_revolve.step.examples import mark_p, select
from jax_revolve.step.operations import having

ONE_BY_ONE = having("transcendental", "slow", "elementwise") - {
    *("broadcast_in_dim", "iota", "reshape", "squeeze")
}
"""Operations that compute each entry from the entries at the same place."""


def is_batched(eqn: Any) -> bool:
    return eqn.primitive.name == "while" and bool(eqn.params["cond_jaxpr"].out_avals[0].shape)


def run_batched(params: dict[str, Any], bound: int | None, *operands: Any) -> list[Any]:
    """The results of a batched while loop, from a loop that runs while any example goes on. If each
    example stops after `bound` steps, by its own values, the loop says so by a counter."""
    first = params["cond_nconsts"]
    last = first + params["body_nconsts"]
    of_condition, of_body, init = operands[:first], operands[first:last], operands[last:]

    def going(carry: Sequence[Any]) -> Any:
        return call_jaxpr(params["cond_jaxpr"])(*of_condition, *carry)[0]

    start = going(init)
    if not start.size:
        return list(init)
    axes, has_rows = tuple(range(start.ndim)), [False] * len(of_body) + [True] * len(init)
    is_independent = _rows(params["body_jaxpr"], start.ndim, has_rows) is not None

    def step(carry: Sequence[Any]) -> list[Any]:
        on, inputs = going(carry), list(carry)
        if is_independent:  # if others see what examples that are done compute, it is as in lax
            inputs = [mark_p.bind(~on, x, axes=axes)[0] for x in carry]
        new = call_jaxpr(params["body_jaxpr"])(*of_body, *inputs)
        return [select(on, n, x, axes) for n, x in zip(new, carry, strict=True)]

    has_rows = [False] * len(of_condition) + [True] * len(init)
    if bound is None or _rows(params["cond_jaxpr"], start.ndim, has_rows) is None:
        # If examples see each other, one that is done may go on later.
        return lax.while_loop(lambda carry: jnp.any(going(carry)), step, list(init))
    goes_on = lambda numbered: (numbered[0] < bound) & jnp.any(going(numbered[1]))  # noqa: E731
    count = lambda numbered: (numbered[0] + 1, step(numbered[1]))  # noqa: E731
    return lax.while_loop(goes_on, count, (jnp.int32(0), list(init)))[1]


def _rows(jaxpr: Any, rank: int, inputs: Sequence[bool]) -> list[bool] | None:
    """Which results have the `rank` axes of the examples first, given which inputs have them. The
    others are the same for all examples. `None` if an operation moves or mixes these axes, as
    unknown operations may."""
    variables = getattr(jaxpr, "jaxpr", jaxpr)
    rows = {v for v, has_rows in zip(variables.invars, inputs, strict=True) if has_rows}
    for eqn in jaxpr.eqns:
        has_rows = [not is_literal(v) and v in rows for v in eqn.invars]
        if not any(has_rows):
            continue
        if eqn.primitive.name in ("jit", "closed_call"):
            (inner,) = inner_programs(eqn)
            results = _rows(inner, rank, has_rows)
        else:
            results = [True] * len(eqn.outvars) if _keeps_rows(eqn, rank, has_rows) else None
        if results is None:
            return None
        rows.update(pick(eqn.outvars, results))
    return [not is_literal(v) and v in rows for v in variables.outvars]


def _keeps_rows(eqn: Any, rank: int, has_rows: Sequence[bool]) -> bool:
    name, params, first = eqn.primitive.name, eqn.params, tuple(range(rank))
    shapes = [v.aval.shape for v in pick(eqn.invars, has_rows)]
    out = eqn.outvars[0].aval.shape
    match name:
        case "broadcast_in_dim":
            return params["broadcast_dimensions"][:rank] == first and out[:rank] == shapes[0][:rank]
        case (
            "reduce_sum" | "reduce_max" | "reduce_min" | "reduce_prod" | "reduce_and" | "reduce_or"
        ):
            return min(params["axes"], default=rank) >= rank
        case "squeeze":
            return min(params["dimensions"], default=rank) >= rank
        case "reshape":
            return params["dimensions"] is None and out[:rank] == shapes[0][:rank]
        case "transpose":
            return tuple(params["permutation"][:rank]) == first
        case "concatenate":
            return params["dimension"] >= rank and all(has_rows)
        case "dot_general":
            (contracted, _), (batch, other) = params["dimension_numbers"]
            if all(has_rows):
                return tuple(batch[:rank]) == first == tuple(other[:rank])
            return has_rows[0] and not batch and min(contracted, default=rank) >= rank
    # Other axes of size one may be broadcast.
    have_rank = (len(shape) == len(out) and shape[:rank] == out[:rank] for shape in shapes)
    return name in ONE_BY_ONE and all(have_rank)
