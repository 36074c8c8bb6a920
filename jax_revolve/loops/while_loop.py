"""`bounded_while_loop`: `lax.while_loop` with a bound, differentiable in both modes."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeVar, overload

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat.callbacks import raise_if
from jax_revolve._compat.interpreters import filtered_traceback
from jax_revolve._compat.jaxprs import source_of_function
from jax_revolve._compat.values import as_array, int32, is_jit_disabled, vary, varying_axes
from jax_revolve.autodiff.loop import run_counted, run_loop
from jax_revolve.loops.inverse import Inverse, Reversible
from jax_revolve.loops.options import LoopOptions
from jax_revolve.progress.meters import Listener, ProgressMeter
from jax_revolve.schedule.arguments import Memory
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.planning import Checkpoints
from jax_revolve.schedule.storage import Storage
from jax_revolve.step.equation import run_around_loop
from jax_revolve.step.loop import Loop, once

Value = TypeVar("Value")


@overload
def bounded_while_loop(
    cond_fun: Callable[[Value], Any],
    body_fun: Callable[[Value], Value],
    init_val: Value,
    *,
    max_steps: int | None,
    memory: Memory = None,
    checkpoints: Checkpoints = None,
    block_size: int | None = None,
    storage: Storage | None = None,
    plan: Plan | None = None,
    with_steps: Literal[False] = False,
    throw: bool = True,
    progress: bool | ProgressMeter = False,
    inverse: Callable[[Value], Value] | Inverse | None = None,
) -> Value: ...


@overload
def bounded_while_loop(
    cond_fun: Callable[[Value], Any],
    body_fun: Callable[[Value], Value],
    init_val: Value,
    *,
    max_steps: int | None,
    memory: Memory = None,
    checkpoints: Checkpoints = None,
    block_size: int | None = None,
    storage: Storage | None = None,
    plan: Plan | None = None,
    with_steps: Literal[True],
    throw: bool = True,
    progress: bool | ProgressMeter = False,
    inverse: Callable[[Value], Value] | Inverse | None = None,
) -> tuple[Value, jax.Array]: ...


@filtered_traceback
def bounded_while_loop(
    cond_fun: Callable[[Value], Any],
    body_fun: Callable[[Value], Value],
    init_val: Value,
    *,
    max_steps: int | None,
    memory: Memory = None,
    checkpoints: Checkpoints = None,
    block_size: int | None = None,
    storage: Storage | None = None,
    plan: Plan | None = None,
    with_steps: bool = False,
    throw: bool = True,
    progress: bool | ProgressMeter = False,
    inverse: Callable[[Value], Value] | Inverse | None = None,
) -> Value | tuple[Value, jax.Array]:
    """`jax.lax.while_loop` with a bound of `max_steps` steps, differentiable in both modes and to
    any order. A loop that reaches its bound raises an error at run time, unless `throw=False`.

    The bound adds no steps. Under `jax.vmap`, the loop runs until its
    longest example is done. The default for `checkpoints` depends on the bound, and with it the
    memory, which reverse mode allocates before the first step.

    - Without differentiation, it runs as `lax.while_loop` with a counter.
    - Forward mode is `lax.while_loop`'s; reverse mode over it is first-order reverse mode
        of the loop that also carries tangents.
    - First-order reverse mode (`jax.grad`, `jax.vjp`, `jax.linearize`) holds `checkpoints` carries
        and the residuals of `block_size` steps. It places checkpoints while the number of steps is
        unknown. With `block_size=1`, it evaluates `body_fun` `plan(steps, checkpoints).evaluations`
        times in a loop of up to `(checkpoints + 1) * (checkpoints + 2) / 2` steps, and a few
        percent more often in a longer one.
    - Derivatives of reverse-mode derivatives, of any order, follow the same schedule, with tangents
        beside each carry. If `body_fun` calls a function with a `jax.custom_vjp`, or a
        `jax.custom_jvp` rule that is not JAX's own, or if its derivative has no reverse mode, they
        run nested scans under `jax.checkpoint` instead, and hold about as many carries as the
        square root of the bound.

    A checkpoint holds only the leaves of the carry that are needed to recompute steps: no running
    sums, and no arrays that the body writes into but does not read.

    Under `jax.vmap`, finished examples are masked safely: they never make a derivative NaN, even if
    `body_fun` has none at the state where they stopped.

    Like `jax.checkpoint`, it recomputes `body_fun` to differentiate it, which repeats effects.
    Under `jax.disable_jit` it is a Python loop that stores everything.

    **Arguments:**

    - `cond_fun`, `body_fun`, `init_val`: as `jax.lax.while_loop`.
    - `max_steps`: the most steps to take: an int from 0 to `2**31 - 1`, known when the loop is
        traced. `None` means no bound: evaluation and forward mode work, and with an int for
        `checkpoints` also reverse mode, of a loop of at most `2**31 - 1` steps. The derivatives of
        a gradient that run nested scans (see above) need a bound.
    - `checkpoints`: the number of carries to store at once, the initial one included: an int >= 1.
        `"all"` stores one for each block up to the bound.
    - `block_size`, `memory`: as [`jax_revolve.checkpointed_scan`][]. The budget `memory` holds even
        if the bound is reached, and the plan is the one predicted to be fastest then. Without
        `checkpoints`, the default budget is about `(6 * max_steps) ** (1 / 3)` carries and the
        residuals of one step: 28 carries for 4096 steps, 180 for a million. These are the fewest
        checkpoints with which no step is advanced more than three times even if the bound is
        reached.
    - `storage`: as [`jax_revolve.checkpointed_scan`][]. The plan is for a loop that reaches its
        bound, and its host memory is allocated before the first step;
        `HostMemory(checkpoints=...)` limits it.
    - `plan`: instead of all of these, a plan made by `jax_revolve.plan` for a loop of `max_steps`
        steps.
    - `with_steps`: whether to also return the number of steps taken.
    - `throw`: whether to raise an error at run time if the bound stops the loop, with
        `equinox.error_if`: one evaluation of `cond_fun`, one pass over the results and a callback
        that runs only on failure. With `False` the loop returns its current value; the gradient is
        the truncated loop's. `jax.export` cannot serialize the callback, and needs `False`.
    - `inverse`: as [`jax_revolve.checkpointed_scan`][], where `inverse(value)` returns the value
        before a step. A gradient of `jax.vmap` of such a loop is refused: take `jax.vmap` of the
        gradient, which walks back the steps that each example takes.
    - `progress`: as [`jax_revolve.checkpointed_scan`][]. The forward bar does not show the time
        left, because the number of steps is unknown; the reverse bar does.

    **Returns:**

    As `jax.lax.while_loop`: the final value. With `with_steps=True` a tuple of that and the number
    of steps taken, an `int32` scalar; under `jax.vmap` each example has its own.

    **Raises:**

    Whatever `jax.lax.while_loop` raises, and:

    - `TypeError` or `ValueError` if `max_steps`, `checkpoints`, `block_size`, `memory`, `storage`
        or `plan` is not as above, or excludes another one that is given;
    - what [`jax_revolve.checkpointed_scan`][] raises if `storage` cannot be used;
    - `ValueError` in reverse mode if `max_steps` and `checkpoints` are both `None`, if `memory` is
        less than the least possible, and if a derivative that runs nested scans has no bound;
    - `NotImplementedError` if a budget is given for a loop that cannot recompute steps, as
        [`jax_revolve.checkpointed_scan`][], or if `cond_fun` writes to a mutable reference;
    - an error at run time if the bound stops the loop, unless `throw=False`: `jax.jit` passes it on
        as a `JaxRuntimeError`, `equinox.filter_jit` as an `EquinoxRuntimeError`.

    !!! Example

        ```python
        import jax
        import jax.numpy as jnp
        from jax_revolve import bounded_while_loop

        def square_root(a):
            def far(x):
                return jnp.abs(x * x - a) > 1e-5 * a

            def newton(x):
                return 0.5 * (x + a / x)

            return bounded_while_loop(far, newton, 1 + a, max_steps=50)

        jax.vmap(jax.grad(square_root))(jnp.array([2.0, 900.0]))
        ```

    ??? cite "Source"

        P. Stumm and A. Walther, "New algorithms for optimal online checkpointing", SIAM J. Sci.
        Comput. 32(2), 2010, for the range in which an online schedule can be exact. The rule is in
        no paper; see `jax_revolve/schedule/online.py`.
    """
    given = checkpoints, block_size, memory, storage, plan, progress
    options = LoopOptions(*given, is_reversible=inverse is not None)
    options.plan_for(max_steps, is_while=True)  # before `jax.lax` raises its errors
    value: Any = init_val
    steps: Any = 0
    if is_jit_disabled():
        # As lax.while_loop does, run a Python loop, for debugging, unless the predicate is traced.
        # The body gets JAX arrays, so it cannot change the user's NumPy arrays in place.
        with suppress(jax.errors.ConcretizationTypeError):
            value = jax.tree.map(as_array, value)
            while (max_steps is None or steps < max_steps) and cond_fun(value):
                value, steps = jax.tree.map(as_array, body_fun(value)), steps + 1
            if throw and max_steps == steps:
                value = _raise_if(jnp.asarray(cond_fun(value)), value, steps, body_fun)
            return (value, jnp.int32(steps)) if with_steps else value
    both = Reversible.of(body_fun, inverse, cond_fun)
    if both is not None:  # the loop counts its steps
        start = int32(0), init_val
        steps, value = run_from(
            (start, start),
            lambda init: lax.while_loop(both.goes_on, both.body, init)[0],
            lambda equation, operands: both.run(options, start, equation, operands, max_steps),
        )
        if throw and max_steps is not None:
            stopped = (steps >= max_steps) & cond_fun(value)
            steps, value = _raise_if(stopped, (steps, value), max_steps, body_fun)
        return (value, steps) if with_steps else value

    def run(equation: Loop, operands: list[Any]) -> Any:
        nonlocal steps
        loop = options.loop(equation, max_steps)
        if throw:
            steps, results = run_or_raise(loop, operands, options.listener)
        elif with_steps:
            steps, results = run_counted(loop, operands, options.listener)
        else:
            results = run_loop(loop, operands, options.listener)
        return results

    value = run_from(init_val, lambda init: lax.while_loop(cond_fun, body_fun, init), run)
    return (value, steps) if with_steps else value


def run_from(start: Any, fun: Callable[[Any], Any], run: Callable[[Loop, list[Any]], Any]) -> Any:
    """`fun(start)`, which calls a loop of `jax.lax`, with `run` in place of that loop. If devices
    take different numbers of steps inside `jax.shard_map`, the whole carry varies over them, and
    gets such types from the start."""

    class ConditionVaries(Exception):
        pass

    def run_or_start_again(equation: Loop, operands: list[Any]) -> Any:
        if equation.condition is not None and any(varying_axes(jax.typeof(x)) for x in operands):
            loop = equation.with_plan(None, None)
            consts, init, _ = loop.operands(operands)
            going = jax.make_jaxpr(lambda: loop.holds(consts, init))()
            axes = varying_axes(going.out_avals[0])
            if not all(axes <= varying_axes(jax.typeof(x)) for x in init):
                raise ConditionVaries(axes)
        return run(equation, operands)

    try:
        return run_around_loop(lambda: fun(start), run_or_start_again)
    except ConditionVaries as found:
        (axes,) = found.args
        start = jax.tree.map(lambda x: vary(x, axes), start)
        return run_around_loop(lambda: fun(start), run)


ADVICE = (
    "Pass a larger max_steps, or throw=False, with which bounded_while_loop returns the value that "
    "it has then."
)


def run_or_raise(
    loop: Loop, operands: list[Any], progress: Listener | None = None, advice: str = ADVICE
) -> tuple[jax.Array, Sequence[Any]]:
    """The number of steps of a while loop, and its results, with an error at run time if the bound
    stopped it. We compare steps with the bound, too, because the condition, evaluated once more for
    the results, may be rounded differently and hold."""
    steps, results = run_counted(loop, operands, progress)
    if loop.length is None:
        return steps, results
    where = source_of_function(loop.jaxpr)
    stopped = once(loop, ("stopped",), lambda: jax.jit(partial(_is_stopped, loop)))
    stopped = stopped(steps, loop.operands(operands).consts, list(results))
    return _raise_if(stopped, (steps, results), loop.length, where, advice)


def _is_stopped(loop: Loop, steps: jax.Array, consts: Any, results: list[Any]) -> jax.Array:
    """Whether the bound stopped a while loop."""
    assert loop.condition is not None
    assert loop.length is not None
    is_full = steps >= loop.length
    holds = partial(loop.holds, consts, results)
    if not loop.condition.effects:
        return is_full & holds()
    from equinox.internal import unvmap_any  # not needed by other loops

    # Effects are repeated only where the error follows.
    return is_full & lax.cond(unvmap_any(is_full), holds, lambda: jnp.zeros_like(is_full))


def _raise_if(
    stopped: jax.Array, value: Any, max_steps: int, where: Any, advice: str = ADVICE
) -> Any:
    where = where if isinstance(where, str) else getattr(where, "__name__", repr(where))
    message = f"The loop over {where} did not finish within max_steps={max_steps} steps. {advice}"
    return raise_if(stopped, value, message)
