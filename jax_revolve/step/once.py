"""Answers that tracing a loop or another function gives, one trace for each.

JAX traces the step of an outer loop several times. Each trace asks the same questions about the
loops inside, and each answer traces their steps again. Without a cache, the time would grow
exponentially with the depth of the nest.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import jax

from jax_revolve._compat.jaxprs import ClosedJaxpr, call_jaxpr

T = TypeVar("T")
Batched = tuple[Sequence[Any], Sequence[Any]]

_KNOWN: WeakKeyDictionary[ClosedJaxpr, dict[Hashable, Any]] = WeakKeyDictionary()


def once(function: Any, key: tuple[Hashable, ...], find: Callable[[], T]) -> T:
    """`find()`, or its earlier result for this very function and an equal key. `find` must not
    return tracers. Threads may call it at the same time, because no lock is held while JAX traces.
    All of them then get the result that is stored first.

    The function is a loop, or another tuple that begins with a jaxpr.
    """
    jaxpr, *rest = function
    known = _KNOWN.setdefault(jaxpr, {})
    key += _without(jaxpr, tuple(rest))
    return known[key] if key in known else known.setdefault(key, find())


def _without(jaxpr: ClosedJaxpr, fields: tuple[Any, ...]) -> tuple[Any, ...]:
    """The fields of a function without its jaxpr, which is held weakly: nothing else may hold it
    here. The fields may be functions that have the same one."""
    return tuple(
        _without(jaxpr, field[1:]) if isinstance(field, tuple) and field[:1] == (jaxpr,) else field
        for field in fields
    )


def batch_once(
    function: Any,
    key: tuple[Hashable, ...],
    rule: Callable[..., Batched],
    operands: Sequence[Any],
    dims: Sequence[Any],
) -> Batched:
    """`rule(*operands)`, where `rule` is a function's batching rule, which returns results and
    their batch axes. It is traced once to a jaxpr. The rule must close over nothing except what is
    in the key, such as the axis."""

    def trace() -> tuple[ClosedJaxpr, list[Any]]:
        dims_out: list[Any] = []

        def run(*operands: Any) -> Sequence[Any]:
            results, dims_out[:] = rule(*operands)
            return results

        return jax.make_jaxpr(run)(*operands), dims_out

    types = tuple(map(jax.typeof, operands))
    closed, dims_out = once(function, (rule.__qualname__, *key, tuple(dims), types), trace)
    return call_jaxpr(closed)(*operands), dims_out
