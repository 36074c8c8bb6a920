"""What is asked of a loop, in one call."""

from typing import Any

from jax_revolve.loops.options import Options


def for_scan(length: int, *options: Any, **more: Any) -> Any:
    return Options(*options, **more).for_scan(length)


def for_bound(max_steps: int | None, *options: Any, **more: Any) -> Any:
    return Options(*options, **more).for_bound(max_steps)
