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


def explained_scan(
    f: Any, init: Any, xs: Any = None, *args: Any, weights: Any = (), **options: Any
) -> Report:
    """The report on a `checkpointed_scan` with these options, of a step that is also called with
    the weights."""

    def scan(init: Any, xs: Any, weights: Any) -> Any:
        return checkpointed_scan(lambda c, x: f(c, x, *weights), init, xs, *args, **options)

    return explain(scan)(init, xs, weights).loops[0]


def explained_while(
    cond_fun: Any, body_fun: Any, init: Any, weights: Any = (), **options: Any
) -> Report:
    """The report on a `bounded_while_loop` with these options."""

    def loop(init: Any, weights: Any) -> Any:
        return bounded_while_loop(cond_fun, lambda c: body_fun(c, *weights), init, **options)

    return explain(loop)(init, weights).loops[0]
