"""What is batched under `vmap`, and what is not."""

from collections.abc import Callable
from typing import Any

import jax
from jax.custom_batching import custom_vmap



def find_batched(trace: Callable[[Callable[[Any], Any]], Any]) -> list[bool]:
    """Which values depend on the batched ones. `trace(look)` is to call `look(values)` once, under
    `jax.vmap`; nothing is run."""
    found: list[bool] = []

    @custom_vmap
    def look(values: list[Any]) -> list[Any]:
        found[:] = [False] * len(values)  # the rule below is not asked if nothing is batched
        return values

    @look.def_vmap
    def _(axis_size: int, in_batched: Any, values: list[Any]) -> Any:
        del axis_size
        found[:] = in_batched[0]
        return values, in_batched[0]

    jax.eval_shape(lambda: trace(look))
    return found
