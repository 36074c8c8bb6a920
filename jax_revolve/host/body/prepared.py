"""The arguments of a call, as a step and its operands."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve.host.body.eager import EagerStep
from jax_revolve.host.body.trace import trace
from jax_revolve.host.inputs import Fetched
from jax_revolve.schedule.arguments import check_integer
from jax_revolve.step.loop import Loop, Operands


class Prepared(NamedTuple):
    """A step, its name for the directory of a run, the operands, without xs if those are fetched,
    and the structures of the carry and, if that is known, of one y."""

    step: Loop | EagerStep
    name: str
    operands: Operands
    length: int
    fetched: Fetched | None
    carry_tree: Any
    y_tree: Any

    def carry(self, leaves: list[Any]) -> Any:
        return jax.tree.unflatten(self.carry_tree, leaves)

    def y(self, leaves: list[Any]) -> Any:
        """A y, or all ys."""
        tree = self.step.y_tree if isinstance(self.step, EagerStep) else self.y_tree
        return jax.tree.unflatten(tree, leaves)


def prepare(
    f: Callable[..., Any], init: Any, xs: Any, length: int | None, reverse: bool, jit: bool
) -> Prepared:
    """Checks the arguments. Whatever `jax.lax.scan` rejects raises its own error."""
    fetched = None
    if callable(xs) and jax.tree.leaves(xs) == [xs]:
        allowed = "an int >= 1 where xs is a function"
        length = check_integer("length", length, least=1, allowed=allowed)
        fetched = Fetched(xs, length - 1 if reverse else 0)
    return (_traced if jit else _eager)(f, init, xs, length, reverse, fetched)


def _traced(
    f: Any, init: Any, xs: Any, length: int | None, reverse: bool, fetched: Fetched | None
) -> Prepared:
    if fetched is None:
        loop, operands, *trees = trace(f, init, xs, length, reverse)
        return Prepared(loop, str(loop.jaxpr), operands, loop.steps, None, *trees)
    assert length is not None
    one = jax.tree.unflatten(fetched.tree, [x[None] for x in fetched.example])
    loop, operands, *trees = trace(f, init, one, 1, reverse)
    operands = operands._replace(xs=[])
    return Prepared(loop, str(loop.jaxpr), operands, length, fetched, *trees)


def _eager(
    f: Any, init: Any, xs: Any, length: int | None, reverse: bool, fetched: Fetched | None
) -> Prepared:
    x_leaves, x_tree = jax.tree.flatten(xs)
    if fetched is None:
        jax.eval_shape(lambda: lax.scan(lambda c, _: (c, None), 0, xs, length, reverse))
        length = int(x_leaves[0].shape[0] if length is None else length)
        length = check_integer("length", length, least=1, allowed="an int >= 1 where jit=False")
    else:
        x_leaves, x_tree = [], fetched.tree
    assert length is not None
    carry, carry_tree = jax.tree.flatten(init)
    leaves, f_tree = jax.tree.flatten(f)
    is_const = [isinstance(x, jax.Array | np.ndarray) for x in leaves]
    step = EagerStep((leaves, is_const, f_tree), carry_tree, x_tree)
    consts = [x for x, c in zip(leaves, is_const, strict=True) if c]
    operands = Operands(consts, list(map(jnp.asarray, carry)), x_leaves)
    function = getattr(f, "func", f)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return Prepared(step, name, operands, length, fetched, carry_tree, None)
