"""A pytest plugin for JAX's own tests: a test that calls a loop of `jax.lax` gets ours.

`JAX_SUITE_LOOPS` says whose loops run: `lax`, `ours` where a test calls one, or those
`everywhere`, in JAX's own modules too. `JAX_SUITE_CHECKPOINTS` is for `checkpoints=`, and
`JAX_SUITE_CASES` limits the cases of each test.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest
from jax import lax

from jax_revolve import bounded_while_loop, checkpointed_fori_loop, checkpointed_scan
from jax_revolve._compat.interpreters import filtered_traceback, traceback_util

traceback_util.register_exclusion(__file__)  # its frames are hidden, as JAX hides its own

LONGEST = 5000
OWN = ("jax_revolve", "equinox")
"""The packages whose calls of `jax.lax` stay as they are."""

DEFINED_IN = "jax._src.lax.control_flow"
"""JAX's loops call each other here."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if most := int(os.environ.get("JAX_SUITE_CASES", "0")):
        seen = Counter[Any]()
        for item in items[:]:
            function = getattr(item, "originalname", item.name).rstrip("0123456789")
            seen[item.parent, function] += 1
            if seen[item.parent, function] > most:
                items.remove(item)


def instead(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    @filtered_traceback
    @wraps(theirs)
    def loop(*args: Any, **kwargs: Any) -> Any:
        caller = str(sys._getframe(2).f_globals.get("__name__", ""))
        return (theirs if caller.startswith((*OWN, DEFINED_IN)) else ours)(*args, **kwargs)

    return loop


loops = os.environ.get("JAX_SUITE_LOOPS")
count = int(os.environ.get("JAX_SUITE_CHECKPOINTS", "0")) or None
OURS: dict[str, Callable[..., Any]] = {
    "scan": partial(checkpointed_scan, checkpoints=count),
    "while_loop": partial(bounded_while_loop, max_steps=LONGEST, throw=False, checkpoints=count),
    "fori_loop": partial(checkpointed_fori_loop, checkpoints=count),
}
for name, ours in OURS.items() if loops != "lax" else ():
    theirs = getattr(lax, name)
    modules = [lax]
    if loops == "everywhere":
        modules += [m for key, m in sys.modules.items() if key.startswith("jax.")]
    for module in modules:
        if getattr(module, name, None) is theirs and not module.__name__.startswith(DEFINED_IN):
            setattr(module, name, instead(theirs, ours))
