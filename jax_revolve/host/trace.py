"""The arguments of a call, as a step and its operands."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve._compat import (
    as_array,
    callback_effects,
    is_array_type,
    with_weak_type,
    without_consts,
    without_dead_code,
)
from jax_revolve.host.inputs import Fetched
from jax_revolve.schedule.arguments import check_integer
from jax_revolve.step.loop import Loop, Operands


class Traced(NamedTuple):
    """A step, without a plan, its operands, without xs if those are fetched, and the structures of
    the carry and of one y."""

    loop: Loop
    operands: Operands
    length: int
    fetched: Fetched | None
    carry_tree: Any
    y_tree: Any

    def entry(self, step: int) -> int:
        """The index in xs and ys of a step."""
        return self.length - 1 - step if self.loop.reverse else step

    def one_slice(self, operands: Operands) -> Operands:
        """The operands with a single slice of the xs, those that are fetched included."""
        if self.fetched is None:
            return operands._replace(xs=[x[:1] for x in operands.xs])
        return operands._replace(xs=[x[None] for x in self.fetched.example])


def trace(f: Callable[..., Any], init: Any, xs: Any, length: int | None, reverse: bool) -> Traced:
    """Checks the arguments. Whatever `jax.lax.scan` rejects raises its own error."""
    if not (callable(xs) and jax.tree.leaves(xs) == [xs]):
        loop, operands, *trees = _trace(f, init, xs, length, reverse)
        return Traced(loop, operands, loop.steps, None, *trees)
    allowed = "an int >= 1 where xs is a function"
    length = check_integer("length", length, least=1, allowed=allowed)
    fetched = Fetched(xs, length - 1 if reverse else 0)
    one = jax.tree.unflatten(fetched.tree, [x[None] for x in fetched.example])
    loop, operands, *trees = _trace(f, init, one, 1, reverse)
    return Traced(loop, operands._replace(xs=[]), length, fetched, *trees)


def _trace(
    f: Callable[..., Any], init: Any, xs: Any, length: int | None, reverse: bool
) -> tuple[Loop, Operands, Any, Any]:
    """Traces `f`: once as `jax.lax.scan`, for its checks, its errors and its types, and once for a
    jaxpr that returns each carry and each y, which that of `jax.lax.scan` may not."""
    leaves, xs_tree = jax.tree.flatten(xs)
    is_numpy = [isinstance(x, np.ndarray) for x in leaves]

    def scan(in_memory: list[Any]) -> Any:
        rest = iter(in_memory)
        values = [next(rest) if n else x for n, x in zip(is_numpy, leaves, strict=True)]
        return lax.scan(f, init, jax.tree.unflatten(xs_tree, values), length, reverse)

    # A NumPy array is an input here, because a constant would be read and copied whole.
    in_memory = [x for x, n in zip(leaves, is_numpy, strict=True) if n]
    scanned, (carry_shape, y_shape) = jax.make_jaxpr(scan, return_shape=True)(in_memory)
    carry_tree, y_tree = jax.tree.structure(carry_shape), jax.tree.structure(y_shape)
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
    consts = [as_array(_own(x)) for x in consts]
    return loop, Operands(consts, carry, leaves), carry_tree, y_tree


def _like(value: Any, aval: Any) -> Any:
    """An initial carry as the array that `jax.lax.scan` makes of it."""
    if jnp.issubdtype(aval.dtype, jax.dtypes.extended):
        return value
    return with_weak_type(jnp.asarray(_own(value), aval.dtype), aval)


def _own(value: Any) -> Any:
    """A copy of a NumPy array, which its owner may change while the loop runs."""
    return np.array(value) if isinstance(value, np.ndarray) else value


def _row_type(x: Any) -> Any:
    """The type of a slice of an array of xs."""
    if isinstance(x, np.ndarray):
        return jax.ShapeDtypeStruct(x.shape[1:], jax.dtypes.canonicalize_dtype(x.dtype))
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
