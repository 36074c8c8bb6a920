"""Variables of Flax NNX modules, which functions change in place.

A traced function changes copies of its arguments. So, as in `flax.nnx.jit`, it also returns the
changes, which are then made in the caller's variables. One that stands in several places is one in
the copies, too.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax


def _flatten(tree: Any) -> tuple[list[Any], Any, Callable[[Any], bool]]:
    nnx = sys.modules.get("flax.nnx")
    is_variable = lambda x: nnx is not None and isinstance(x, nnx.Variable)  # noqa: E731
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_variable)
    return leaves, structure, is_variable


def variables_in(tree: Any) -> list[Any]:
    """The variables in a tree; none where Flax is not imported."""
    leaves, _, is_variable = _flatten(tree)
    return list(filter(is_variable, leaves))


def values_of(variables: list[Any]) -> list[Any]:
    return [variable.get_raw_value() for variable in variables]


def places_of(tree: Any) -> tuple[int, ...]:
    """For each variable, the number of the first place where it stands."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(v), i) for i, v in enumerate(variables_in(tree)))


def _tied(tree: Any, places: tuple[int, ...]) -> Any:
    """A copy of a tree whose variables in the same place are one."""
    leaves, structure, is_variable = _flatten(tree)
    variables, numbers = list(filter(is_variable, leaves)), iter(places)
    return structure.unflatten(
        variables[next(numbers)] if is_variable(leaf) else leaf for leaf in leaves
    )


def with_changes(
    fun: Callable[..., Any], places: tuple[int, ...] = ()
) -> Callable[..., tuple[Any, dict[int, Any]]]:
    """The function with a second result: the new values, by number, of variables that it changes.
    Its arguments have these `places`; by default, each variable stands in one."""

    def run(*args: Any, **kwargs: Any) -> tuple[Any, dict[int, Any]]:
        if places != tuple(range(len(places))):
            args, kwargs = _tied((args, kwargs), places)
        variables = variables_in((args, kwargs))
        before = values_of(variables)
        result = fun(*args, **kwargs)
        pairs = enumerate(zip(values_of(variables), before, strict=True))
        return result, {i: new for i, (new, old) in pairs if new is not old}

    return run


def change(tree: Any, changes: Mapping[int, Any]) -> None:
    """Make the changes in the variables of a tree."""
    variables = variables_in(tree)
    for i, value in changes.items():
        variables[i].set_raw_value(value)
