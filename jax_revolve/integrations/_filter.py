"""Trees as the arrays that a loop of lax carries, and leaves that stay as they are.

Arrays are JAX's and NumPy's, as for `equinox.is_array`. A Python number is a valid carry of
`lax.scan`, and Equinox's modules keep settings in Python numbers. The trace of the body decides: a
number that the body returns unchanged is a setting.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax

T = TypeVar("T")


class _Varies(Exception):
    """Further Python numbers are loop variables."""

    def __init__(self, varies: Any) -> None:
        self.varies = varies


def run_with_variables(
    name: str, init: Any, run: Callable[[Any, Callable[[Any], Any], Callable[[Any], Any]], T]
) -> T:
    """`run(variables, whole, variables_of)` with as few Python numbers as loop variables as the
    body allows. `variables` are the initial carry's, `whole` makes a carry of variables, and
    `variables_of` takes them out of a carry that the body returns. `name` is the name of `init`."""
    varies = jax.tree.map(eqx.is_array, init)
    while True:
        variables, rest = eqx.partition(init, varies)
        whole = lambda variables, rest=rest: eqx.combine(variables, rest)  # noqa: E731
        variables_of = lambda new, varies=varies: _variables_of(name, init, varies, new)  # noqa: E731
        try:
            return run(variables, whole, variables_of)
        except _Varies as found:
            varies = found.varies


def _variables_of(name: str, init: Any, varies: Any, new: Any) -> Any:
    if jax.tree.structure(init) != jax.tree.structure(new):  # lax raises its own error
        return eqx.filter(new, eqx.is_array_like)

    def changes(path: Any, old: Any, new: Any, varies: bool) -> bool:
        if varies or _same(old, new):
            return varies
        if _is_number(old) and eqx.is_array_like(new):
            return True
        raise TypeError(
            f"{name}{jax.tree_util.keystr(path)} is not an array, and must be the same after every "
            f"step, but is {new!r} after a step, and was {old!r}. Only arrays and numbers can "
            "change from step to step: carry an array, or keep the leaf as it is."
        )

    found = jax.tree.map_with_path(changes, init, new, varies)
    if jax.tree.leaves(found) != jax.tree.leaves(varies):
        raise _Varies(found)
    return eqx.filter(new, varies)


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
