"""A pytest plugin for JAX's own tests: a test that calls a loop of `jax.lax` gets ours.

`JAX_SUITE_LOOPS=lax` leaves `jax.lax` alone; `JAX_SUITE_CHECKPOINTS` is for `checkpoints=`.
"""

import os
import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from jax import lax

from jax_revolve import bounded_while_loop, checkpointed_scan
from jax_revolve._compat.interpreters import filtered_traceback, traceback_util

traceback_util.register_exclusion(__file__)  # its frames are hidden, as JAX hides its own

LONGEST = 5000
OWN = ("jax_revolve", "equinox")
"""The packages whose calls of `jax.lax` stay as they are."""


def instead(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    @filtered_traceback
    @wraps(theirs)
    def loop(*args: Any, **kwargs: Any) -> Any:
        caller = str(sys._getframe(2).f_globals.get("__name__", ""))
        return (theirs if caller.startswith(OWN) else ours)(*args, **kwargs)

    return loop


if os.environ.get("JAX_SUITE_LOOPS") != "lax":
    count = int(os.environ.get("JAX_SUITE_CHECKPOINTS", "0")) or None
    lax.scan = instead(lax.scan, partial(checkpointed_scan, checkpoints=count))
    while_loop = partial(bounded_while_loop, max_steps=LONGEST, checkpoints=count, throw=False)
    lax.while_loop = instead(lax.while_loop, while_loop)
