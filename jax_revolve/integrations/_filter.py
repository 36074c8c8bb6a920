"""Trees as the arrays that a loop of lax carries, and leaves that stay as they are.

Arrays are JAX's and NumPy's, as for `equinox.is_array`. A Python number is a valid carry of
`lax.scan`, and Equinox's modules keep settings in Python numbers. The trace of the body decides: a
number that the body returns unchanged is a setting.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax

T = TypeVar("T")


class Parts(NamedTuple):
    """A tree, and a flag for each leaf that is a loop variable."""

    leaves: list[Any]
    treedef: Any
    varies: list[bool]

    @classmethod
    def of(cls, tree: Any, is_variable: Callable[[Any], bool] = eqx.is_array) -> "Parts":
        leaves, treedef = jax.tree.flatten(tree)
        return cls(leaves, treedef, [is_variable(leaf) for leaf in leaves])

    @property
    def variables(self) -> Any:
        """The tree with `None` for leaves that are not loop variables."""
        pairs = zip(self.leaves, self.varies, strict=True)
        return jax.tree.unflatten(self.treedef, [x if varies else None for x, varies in pairs])

    def whole(self, variables: Any) -> Any:
        """The tree with these loop variables, given as in `variables`."""
        new, pairs = iter(jax.tree.leaves(variables)), zip(self.leaves, self.varies, strict=True)
        return jax.tree.unflatten(self.treedef, [next(new) if v else x for x, v in pairs])


class Varies(Exception):
    """Further Python numbers are loop variables."""

    def __init__(self, varies: list[bool]) -> None:
        self.varies = varies


def run_with_parts(init: Any, run: Callable[[Parts], T]) -> T:
    """`run(parts)` with as few Python numbers as loop variables as the body allows."""
    parts = Parts.of(init)
    while True:
        try:
            return run(parts)
        except Varies as found:
            parts = parts._replace(varies=found.varies)


def variables_of_new(parts: Parts, new: Any, name: str) -> Any:
    """The loop variables of a carry that the body returns. `name` is the name of the initial
    carry."""
    found = Parts.of(new)
    if found.treedef != parts.treedef:  # lax raises its own error
        return Parts.of(new, eqx.is_array_like).variables
    varies = list(parts.varies)
    for i, (old, leaf) in enumerate(zip(parts.leaves, found.leaves, strict=True)):
        if varies[i] or _same(old, leaf):
            continue
        if not (_is_number(old) and eqx.is_array_like(leaf)):
            path = jax.tree_util.keystr(jax.tree.leaves_with_path(new)[i][0])
            raise TypeError(
                f"{name}{path} is not an array, and must be the same after every step, but is "
                f"{leaf!r} after a step, and was {old!r}. Only arrays and numbers can change from "
                "step to step: carry an array, or keep the leaf as it is."
            )
        varies[i] = True
    if varies != parts.varies:
        raise Varies(varies)
    return found._replace(varies=varies).variables


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, (bool, int, float, complex))


def _same(old: Any, new: Any) -> bool:
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if _is_number(old):
        return repr(old) == repr(new)  # differs for zeros of different signs, and not for nan
    try:
        return bool(old == new)
    except Exception:  # the leaf's own comparison may raise anything
        return False
