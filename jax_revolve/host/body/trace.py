"""The step of the user as a jaxpr, checked by `jax.lax`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat import (
    as_array,
    callback_effects,
    is_array_type,
    with_weak_type,
    without_consts,
    without_dead_code,
)
from jax_revolve.step.loop import Loop, Operands


def trace(
    f: Callable[..., Any], init: Any, xs: Any, length: int | None, reverse: bool
) -> tuple[Loop, Operands, Any, Any]:
    """A loop without a plan, its operands, and the trees of its carry and of one y.

    Traces `f`: once as `jax.lax.scan`, for its checks, its errors and its types, and once for a
    jaxpr that returns each carry and each y, which that of `jax.lax.scan` may not."""

    def scan() -> Any:
        return lax.scan(f, init, xs, length, reverse)

    scanned, (carry_shape, y_shape) = jax.make_jaxpr(scan, return_shape=True)()
    carry_tree, y_tree = jax.tree.structure(carry_shape), jax.tree.structure(y_shape)
    leaves, xs_tree = jax.tree.flatten(xs)
    carry = [
        _like(x, aval) for x, aval in zip(jax.tree.leaves(init), scanned.out_avals, strict=False)
    ]

    def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        results = f(jax.tree.unflatten(carry_tree, carry), jax.tree.unflatten(xs_tree, x))
        return jax.tree.leaves(results[0]), jax.tree.leaves(results[1])

    closed, consts = without_consts(jax.make_jaxpr(step)(carry, list(map(_row_type, leaves))))
    _check_effects(closed, consts)
    loop = Loop(
        jaxpr=without_dead_code(closed),
        condition=None,
        num_condition_consts=0,
        num_consts=len(consts),
        num_carry=len(carry),
        length=int(leaves[0].shape[0] if length is None else length),
        reverse=bool(reverse),
        unroll=1,
        output_types=tuple(scanned.out_avals),
        body_effects=frozenset(),
        plan=None,
    )
    return loop, Operands(list(map(as_array, consts)), carry, leaves), carry_tree, y_tree


def _like(value: Any, aval: Any) -> Any:
    """An initial carry as the array that `jax.lax.scan` makes of it."""
    if jnp.issubdtype(aval.dtype, jax.dtypes.extended):
        return value
    return with_weak_type(jnp.asarray(value, aval.dtype), aval)


def _row_type(x: Any) -> Any:
    """The type of a slice of an array of xs."""
    if x.shape[0]:
        return jax.eval_shape(lambda x: lax.index_in_dim(x, 0, keepdims=False), x)
    return jax.ShapeDtypeStruct(x.shape[1:], x.dtype)


def _check_effects(closed: Any, consts: list[Any]) -> None:
    if not all(is_array_type(jax.typeof(x)) for x in consts):
        raise NotImplementedError(
            "host_scan does not support mutable array references in f: its reverse sweep runs "
            "steps again, which would change the array again. Pass the array through the carry."
        )
    effects = closed.effects - callback_effects()
    if effects:
        names = ", ".join(sorted(map(str, effects)))
        raise NotImplementedError(
            f"host_scan does not support the effects of f ({names}): its reverse sweep, and a run "
            "that is resumed, run steps again, which would repeat them. Pass consume=, which is "
            "called in the forward sweep alone, or use jax.pure_callback or jax.debug.callback."
        )
