"""The variables of Flax NNX modules, which a function changes in place.

A traced function changes copies of its arguments. As `flax.nnx.jit` does, `checkpoint_loops`
returns the changes too, and makes them in the caller's variables.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax


def _variables(tree: Any) -> list[Any]:
    """The variables in a tree; none where Flax is not imported."""
    if (nnx := sys.modules.get("flax.nnx")) is None:
        return []
    is_variable = lambda x: isinstance(x, nnx.Variable)  # noqa: E731
    return [x for x in jax.tree.leaves(tree, is_leaf=is_variable) if is_variable(x)]


def with_changes(fun: Callable[..., Any]) -> Callable[..., tuple[Any, dict[int, Any]]]:
    """The function with a second result: the new values of the variables in its arguments that it
    changes, by number."""

    def run(*args: Any, **kwargs: Any) -> tuple[Any, dict[int, Any]]:
        variables = _variables((args, kwargs))
        before = [variable.get_raw_value() for variable in variables]
        result = fun(*args, **kwargs)
        after = [variable.get_raw_value() for variable in variables]
        pairs = enumerate(zip(after, before, strict=True))
        return result, {i: new for i, (new, old) in pairs if new is not old}

    return run


def change(tree: Any, changes: Mapping[int, Any]) -> None:
    """Make the changes in the variables of a tree."""
    variables = _variables(tree)
    for i, value in changes.items():
        if sum(other is variables[i] for other in variables) > 1:
            raise ValueError(
                f"checkpoint_loops cannot change {variables[i]!r}, which its arguments hold more "
                "than once: each place would have a change of its own. Pass the module once."
            )
        variables[i].set_raw_value(value)


def trace_error() -> type[Exception] | tuple[()]:
    """What Flax raises where a function changes a module that it closes over."""
    errors = sys.modules.get("flax.errors")
    return () if errors is None else errors.TraceContextError
