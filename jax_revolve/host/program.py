"""Jaxprs as nested tuples, to tell whether two of them are the same program."""

from collections.abc import Callable, Hashable
from typing import Any

import jax
import numpy as np

from jax_revolve._compat import is_literal

_CONTEXT = ("compute_type", "threefry_partitionable", "xla_metadata", "cur_abstract_mesh")


def program(jaxpr: Any, part: Callable[[Any], Hashable], *, results_only: bool = False) -> Hashable:
    """A jaxpr, open or closed, with its variables as numbers and everything else as `part` says;
    perhaps without equations that have no results, such as `jax.debug.callback`."""
    numbers: dict[Any, int] = {}
    inner = getattr(jaxpr, "jaxpr", jaxpr)

    def use(atom: Any) -> Hashable:
        return (part(atom.aval), part(atom.val)) if is_literal(atom) else numbers[atom]

    def define(variables: Any) -> Hashable:
        return tuple((numbers.setdefault(v, len(numbers)), part(v.aval)) for v in variables)

    return (
        define([*inner.constvars, *inner.invars]),
        tuple(map(part, getattr(jaxpr, "consts", ()))),
        tuple(
            (
                part(eqn.primitive),
                tuple(map(use, eqn.invars)),
                tuple((name, part(value)) for name, value in sorted(eqn.params.items())),
                tuple(part(getattr(eqn.ctx, name, None)) for name in _CONTEXT),
                define(eqn.outvars),
            )
            for eqn in inner.eqns
            if eqn.outvars or not results_only
        ),
        tuple(map(use, inner.outvars)),
    )


def identity(value: Any) -> Hashable:
    """A key that only values with the same meaning have in this process. Values that cannot be
    compared have it only if they are one object, such as the functions of two traces of a
    `custom_jvp` function."""
    if hasattr(value, "eqns"):
        return program(value, identity)
    if isinstance(value, tuple | list):
        return type(value), tuple(map(identity, value))
    if isinstance(value, dict):
        return tuple((str(name), identity(part)) for name, part in value.items())
    if isinstance(value, float | complex | np.generic):
        array = np.asarray(value)
        return type(value).__name__, array.dtype, array.tobytes()
    if isinstance(value, np.ndarray | jax.Array):
        return _One(value)
    try:
        hash(value)
    except TypeError:
        return _One(value)
    return type(value), value


class _One:
    """A value that is equal to itself alone, and lives as long as the key."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __hash__(self) -> int:
        return id(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _One) and self._value is other._value
