"""What is found out by tracing a loop, once for each loop.

JAX traces the step of an outer loop several times. Each trace asks the same questions about the
loops inside, and each answer traces their steps again. Without a cache, the time would grow
exponentially with the depth of the nest.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import jax

from jax_revolve._compat import ClosedJaxpr, call_jaxpr
from jax_revolve.step.loop import Loop

T = TypeVar("T")
Batched = tuple[Sequence[Any], Sequence[Any]]

_KNOWN: WeakKeyDictionary[ClosedJaxpr, dict[Hashable, Any]] = WeakKeyDictionary()


def once(loop: Loop, key: tuple[Hashable, ...], find: Callable[[], T]) -> T:
    """`find()`, or what it returned before for this very loop and an equal key. It must not return
    tracers. Threads may find the same at once, for no lock is held while JAX traces; what is stored
    first is what all of them get from then on."""
    known = _KNOWN.setdefault(loop.jaxpr, {})
    # The loop's jaxpr is held weakly, so nothing else may hold it here.
    key += tuple(value for name, value in loop.params().items() if name != "jaxpr")
    return known[key] if key in known else known.setdefault(key, find())


def batch_once(
    loop: Loop,
    axis: Any,
    rule: Callable[..., Batched],
    operands: Sequence[Any],
    dims: Sequence[Any],
) -> Batched:
    """`rule(*operands)`, a loop's batching rule, which returns results and where they are batched:
    as a jaxpr, which is evaluated from then on. The rule must close over nothing else."""

    def trace() -> tuple[ClosedJaxpr, list[Any]]:
        dims_out: list[Any] = []

        def run(*operands: Any) -> Sequence[Any]:
            results, dims_out[:] = rule(*operands)
            return results

        return jax.make_jaxpr(run)(*operands), dims_out

    types = tuple(map(jax.typeof, operands))
    closed, dims_out = once(loop, (rule.__qualname__, axis, tuple(dims), types), trace)
    return call_jaxpr(closed)(*operands), dims_out
