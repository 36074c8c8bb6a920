"""`checkpointed_fori_loop`: `lax.fori_loop`, differentiable within a memory budget."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

from jax import lax

from jax_revolve._compat.interpreters import filtered_traceback
from jax_revolve._compat.values import is_jit_disabled
from jax_revolve.autodiff.loop import run_loop
from jax_revolve.loops.inverse import Inverse
from jax_revolve.loops.options import LoopOptions
from jax_revolve.loops.scan import checkpointed_scan
from jax_revolve.loops.while_loop import bounded_while_loop, run_from, run_or_raise
from jax_revolve.progress.meters import ProgressMeter
from jax_revolve.schedule.arguments import Memory
from jax_revolve.schedule.options import check_bound
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.planning import Checkpoints
from jax_revolve.schedule.storage import Storage
from jax_revolve.step.loop import Loop

Value = TypeVar("Value")


@filtered_traceback
def checkpointed_fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Callable[[Any, Value], Value],
    init_val: Value,
    *,
    unroll: int | bool | None = None,
    memory: Memory = None,
    checkpoints: Checkpoints = None,
    block_size: int | None = None,
    storage: Storage | None = None,
    plan: Plan | None = None,
    max_steps: int | None = None,
    throw: bool = True,
    progress: bool | ProgressMeter = False,
    inverse: Callable[[Any, Value], Value] | Inverse | None = None,
) -> Value:
    """`jax.lax.fori_loop` whose reverse pass stores `checkpoints` carries and recomputes the rest.
    It has a reverse mode even if the number of steps is not known when it is traced. By default, a
    loop of more than `max_steps` steps is an error.

    If the bounds are known when it is traced, it is a [`jax_revolve.checkpointed_scan`][],
    otherwise a [`jax_revolve.bounded_while_loop`][], and behaves as documented there.

    **Arguments:**

    - `lower`, `upper`, `body_fun`, `init_val`, `unroll`: as `jax.lax.fori_loop`.
    - `checkpoints`, `block_size`, `memory`, `storage`, `plan`: as in that loop.
    - `max_steps`: the most steps that the loop may take: an int from 0 to `2**31 - 1`, or `None`.
        Not needed if `lower` and `upper` are known when the loop is traced. If they are not,
        reverse mode needs `max_steps` or an int for `checkpoints`, and derivatives of reverse-mode
        derivatives need `max_steps`.
    - `throw`: as in [`jax_revolve.bounded_while_loop`][]: `False` returns the value after
        `max_steps` steps if there are more, known at run time only, and can be exported.
    - `progress`: as in that loop.
    - `inverse`: `inverse(i, value)` returns the value before step `i`: see that loop.

    **Returns:**

    As `jax.lax.fori_loop`: the final value.

    **Raises:**

    Whatever `jax.lax.fori_loop` and that loop raise, and `ValueError` if the loop has more than
    `max_steps` steps. If that is known only at run time, the error is the one of
    [`jax_revolve.bounded_while_loop`][].

    !!! Example

        ```python
        import jax
        from jax_revolve import checkpointed_fori_loop

        def power(x, n):
            return checkpointed_fori_loop(0, n, lambda i, y: y * x, 1.0, max_steps=100)

        jax.jit(jax.grad(power))(2.0, 3)  # 3 * 2**2
        ```
    """
    options = LoopOptions(checkpoints, block_size, memory, storage, plan, progress)
    check_bound(max_steps)

    def fori(start: tuple[Any, Value]) -> Value:
        return lax.fori_loop(start[0], upper, body_fun, start[1], unroll=unroll)

    def run(equation: Loop, operands: list[Any]) -> Any:
        if equation.length is not None:
            check_steps(equation.length)
        loop = options.loop(equation, max_steps)
        if loop.condition is None or not throw:
            return run_loop(loop, operands, options.listener)
        return run_or_raise(loop, operands, options.listener)[1]

    def check_steps(steps: int) -> None:
        if max_steps is not None and steps > max_steps:
            raise ValueError(
                f"max_steps must be at least upper - lower, which is {steps}, but is {max_steps}."
            )

    start = (lower, init_val)
    known = None
    if is_jit_disabled() or inverse is not None:
        with suppress(TypeError, ValueError):  # of bounds that are traced
            known = max(int(upper) - int(lower), 0)
    given = Inverse.of(inverse)
    if given is not None and not is_jit_disabled():
        body = wraps(body_fun)(lambda state: (state[0] + 1, body_fun(*state)))
        back = lambda state, *_: (state[0] - 1, given.fun(state[0] - 1, state[1]))  # noqa: E731
        how: dict[str, Any] = {**options.arguments, "inverse": replace(given, fun=back)}
        if known is None:
            throw = throw and max_steps is not None
            how |= {"max_steps": max_steps, "throw": throw}
            return bounded_while_loop(lambda state: state[0] < upper, body, start, **how)[1]
        check_steps(known)
        step = wraps(body_fun)(lambda state, _: (body(state), None))
        how["unroll"] = 1 if unroll is None else unroll
        return checkpointed_scan(step, start, None, known, **how)[0][1]
    if known is None:
        return run_from(start, fori, run)
    check_steps(known)
    return fori(start)  # a Python loop, for debugging
