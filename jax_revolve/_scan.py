from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from jax_revolve.engine.primitive import checkpoint_scan
from jax_revolve.schedule.plan import Checkpoints, Plan, plan as make_plan


def checkpointed_scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
    *,
    checkpoints: Checkpoints = None,
    plan: Plan | None = None,
) -> tuple[Any, Any]:
    def scan() -> tuple[Any, Any]:
        return lax.scan(f, init, xs, length, reverse, unroll, _split_transpose)

    return checkpoint_scan(scan, lambda n: make_plan(n, checkpoints))
