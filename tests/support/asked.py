"""What is asked of a loop, in one call."""

from typing import Any

from jax_revolve import bounded_while_loop, checkpointed_scan, explain
from jax_revolve.schedule.cost import Sizes
from jax_revolve.schedule.options import Options
from jax_revolve.typing import Report


def for_scan(length: int, *options: Any, sizes: Sizes | None = None, **more: Any) -> Any:
    return Options(*options, **more).plan_for(length, is_while=False, sizes=sizes)


def for_bound(max_steps: int | None, *options: Any, sizes: Any = None, **more: Any) -> Any:
    return Options(*options, **more).plan_for(max_steps, is_while=True, sizes=sizes)


def explained_scan(f: Any, init: Any, xs: Any = None, *args: Any, **options: Any) -> Report:
    """The report on a `checkpointed_scan` with these options."""
    scan = lambda init, xs: checkpointed_scan(f, init, xs, *args, **options)  # noqa: E731
    return explain(scan)(init, xs).loops[0]


def explained_while(cond_fun: Any, body_fun: Any, init: Any, **options: Any) -> Report:
    """The report on a `bounded_while_loop` with these options."""
    loop = lambda init: bounded_while_loop(cond_fun, body_fun, init, **options)  # noqa: E731
    return explain(loop)(init).loops[0]
