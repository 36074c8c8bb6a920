"""While loops that `jax.vmap` has made of others: their predicate has a value for each example.

lax stops such a loop when the last example is done, and selects what of each step is kept. Here the
same is written out, as a loop whose predicate is one value: that is a loop that can be reversed.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from jax_revolve._compat.equations import call_in_place, is_shard_map
from jax_revolve._compat.jaxprs import call_jaxpr
from jax_revolve._compat.walk import inner_programs, with_equations, with_inner_programs


def with_single_predicates(jaxpr: Any, enclosing: Sequence[Any] = ()) -> Any:
    """The program with each batched while loop in it written out. The same if there is none."""
    return with_equations(jaxpr, [_written_out(eqn, enclosing) for eqn in jaxpr.eqns])


def _written_out(eqn: Any, enclosing: Sequence[Any]) -> Any:
    within = (*enclosing, eqn) if is_shard_map(eqn) else enclosing
    programs = inner_programs(eqn)
    new = [with_single_predicates(program, within) for program in programs]
    if any(a is not b for a, b in zip(new, programs, strict=True)):
        eqn = with_inner_programs(eqn, new)
    if eqn.primitive.name != "while" or not eqn.params["cond_jaxpr"].out_avals[0].shape:
        return eqn

    def vmap(*operands: Any) -> Any:
        return _run(eqn.params, operands)

    return call_in_place(vmap, eqn, enclosing)


def _run(params: dict[str, Any], operands: Sequence[Any]) -> list[Any]:
    first = params["cond_nconsts"]
    last = first + params["body_nconsts"]
    of_condition, of_body, init = operands[:first], operands[first:last], operands[last:]

    def going(carry: Sequence[Any]) -> Any:
        return call_jaxpr(params["cond_jaxpr"])(*of_condition, *carry)[0]

    # An example that is done is computed all the same, from where one began that was not: where it
    # stopped there may be no derivative, and zero times infinity is not zero.
    start = going(init)
    donor = jnp.unravel_index(jnp.argmax(start), start.shape)
    safe = [lax.stop_gradient(_select(start, x, jnp.broadcast_to(x[donor], x.shape))) for x in init]

    def step(carry: Sequence[Any]) -> list[Any]:
        on = going(carry)
        inputs = [_select(on, x, s) for x, s in zip(carry, safe, strict=True)]
        new = call_jaxpr(params["body_jaxpr"])(*of_body, *inputs)
        return [_select(on, n, x) for n, x in zip(new, carry, strict=True)]

    return lax.while_loop(lambda carry: jnp.any(going(carry)), step, list(init))


def _select(which: Any, new: Any, old: Any) -> Any:
    """Of each example, one or the other. The axes of the examples are the first ones."""
    axes = tuple(range(which.ndim))
    return lax.select(lax.broadcast_in_dim(which, jnp.shape(new), axes), new, old)
