"""Whether two jaxprs are the same program: traces of one function have equal keys."""

from collections.abc import Hashable
from typing import Any

import jax
import numpy as np

from jax_revolve._compat import is_literal


def program_key(jaxpr: Any) -> Hashable:
    """A key of a jaxpr, open or closed. Equal keys mean the same program; the same program may have
    several, because values that cannot be compared are the same only if they are one object, such
    as the functions of two traces of a `custom_jvp` function."""
    numbers: dict[Any, int] = {}
    inner = getattr(jaxpr, "jaxpr", jaxpr)

    def use(atom: Any) -> Hashable:
        if is_literal(atom):
            return atom.aval, _array_key(atom.val)
        return numbers[atom]

    def define(variables: Any) -> Hashable:
        return tuple((numbers.setdefault(v, len(numbers)), v.aval) for v in variables)

    return (
        define([*inner.constvars, *inner.invars]),
        tuple(map(_One, getattr(jaxpr, "consts", ()))),
        tuple(
            (
                eqn.primitive,
                tuple(map(use, eqn.invars)),
                tuple((name, _key(value)) for name, value in sorted(eqn.params.items())),
                _key(tuple(getattr(eqn.ctx, name, None) for name in _CONTEXT)),
                define(eqn.outvars),
            )
            for eqn in inner.eqns
        ),
        tuple(map(use, inner.outvars)),
    )


_CONTEXT = ("compute_type", "threefry_partitionable", "xla_metadata", "cur_abstract_mesh")


class _One:
    """A value that is equal to itself alone, and lives as long as the key."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __hash__(self) -> int:
        return id(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _One) and self._value is other._value


def _key(value: Any) -> Hashable:
    if hasattr(value, "eqns"):
        return program_key(value)
    if isinstance(value, tuple | list):
        return type(value), tuple(map(_key, value))
    if isinstance(value, dict):
        return tuple((str(name), _key(part)) for name, part in value.items())
    if isinstance(value, float | complex | np.generic):
        return _array_key(value)
    if isinstance(value, np.ndarray | jax.Array):
        return _One(value)
    try:
        hash(value)
    except TypeError:
        return _One(value)
    return type(value), value


def _array_key(value: Any) -> Hashable:
    """The bits of a number, or the one array."""
    if isinstance(value, jax.Array) or np.ndim(value):
        return _One(value)
    array = np.asarray(value)
    return type(value).__name__, array.dtype, array.tobytes()
