"""Jaxprs without what nothing needs."""

from weakref import WeakKeyDictionary

from jax_revolve._compat.jaxprs import ClosedJaxpr, pruned


def without_dead_code(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The jaxpr without dead code, nested or not: each time the same one for the same jaxpr."""
    if closed in _LIVE:
        return _LIVE[closed]
    outputs, inputs = ([True] * len(vs) for vs in (closed.jaxpr.outvars, closed.jaxpr.invars))
    # Threads may find the same at once: all of them get what is stored first.
    return _LIVE.setdefault(closed, pruned(closed, outputs, inputs)[0])


_LIVE: WeakKeyDictionary[ClosedJaxpr, ClosedJaxpr] = WeakKeyDictionary()
