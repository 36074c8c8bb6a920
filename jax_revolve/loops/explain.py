"""The memory and the evaluations of a loop's gradient, for every plan worth considering."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import jax
from jax import lax

from jax_revolve._compat import LoopEquation, bytes_of, run_around_loop, zeros
from jax_revolve.autodiff.sizes import sizes_of
from jax_revolve.engine.tape.taped import taped_step
from jax_revolve.loops.measure import check_arrays, check_limit, measured_report
from jax_revolve.loops.options import Options
from jax_revolve.schedule.arguments import Memory
from jax_revolve.schedule.cost import Sizes
from jax_revolve.schedule.planning import Checkpoints
from jax_revolve.schedule.report.report import Report
from jax_revolve.schedule.selection import Request
from jax_revolve.schedule.storage import Storage
from jax_revolve.schedule.two_level import AnyPlan
from jax_revolve.step.activity import Activity, find_activity
from jax_revolve.step.loop import Loop, Operands, is_inexact, pick
from jax_revolve.step.restart import find_restart


def explain_scan(
    f: Callable[..., Any],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    *,
    checkpoints: Checkpoints = None,
    block_size: int | None = None,
    memory: Memory = None,
    storage: Storage | None = None,
    plan: AnyPlan | None = None,
    measure: bool = False,
    seconds: float = 60.0,
) -> Report:
    """The memory and the evaluations of the gradient of a [`jax_revolve.checkpointed_scan`][], for
    every plan worth considering, and the plan that is chosen.

    Nothing runs unless `measure=True`: `f` is traced, and the sizes of its linearization are found,
    as if `init`, `xs` and the arrays that `f` closes over were all differentiated. A gradient with
    respect to fewer of them has fewer residuals. Bytes are for one device inside `jax.shard_map`,
    and where types tell the sharding (`AxisType.Explicit`); elsewhere they count whole arrays.

    **Arguments:**

    - `f`, `init`, `xs`, `length`, `reverse`: as [`jax_revolve.checkpointed_scan`][]. Arrays may be
        `jax.ShapeDtypeStruct`s.
    - `checkpoints`, `block_size`, `memory`, `storage`, `plan`: as
        [`jax_revolve.checkpointed_scan`][].
    - `measure`: `True` measures the gradient's time and memory, and chooses the measured quickest
        plan. It compiles the gradient with the chosen plan and up to seven others of different
        kinds that fit in the budget and are predicted to be at most 1.6 times as slow. Each runs on
        the arguments, which must be arrays, up to 31 times, in turns with the others. Effects of
        `f` happen each time. Without `memory`, the budget is what the chosen plan takes. A
        `block_size` stays as given, and so do `checkpoints`, `plan` and `storage`, with which one
        plan is measured. A bar of tqdm shows how far it is.
    - `seconds`: with `measure=True`, the time after which it ends: a number > 0. At least one plan
        is measured, in two runs after its first. Ctrl-C ends it, too, and returns what is measured
        by then.

    **Returns:**

    A [`jax_revolve.Report`][], which prints as a table: the bytes of a checkpoint, of the residuals
    of a step, and of the arrays that every plan holds; then a line for each plan with its
    checkpoints, its block size, its memory and its evaluations. `report.plan` is the chosen plan,
    and `report.plot()` draws the trade-off. If measured, the lines of these plans have the bytes of
    the compiled program's temporaries and the milliseconds of a run.

    **Raises:**

    Whatever the loop itself raises for these arguments, and `ValueError` if there is nothing to
    differentiate, or if `measure=True` and an argument is no array: a shape, or traced by `jax.jit`
    or another transformation.

    !!! Example

        ```python
        import jax
        import jax.numpy as jnp
        from jax_revolve import explain_scan

        def step(u, _):
            return u + 0.1 * (jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1)) - 0.01 * u**3, None

        state = jax.ShapeDtypeStruct((20000,), jnp.float32)
        report = explain_scan(step, state, length=1000, memory="8MB")
        print(report)
        assert report.memory(report.plan) <= 8_000_000
        ```
    """
    asked = Options(checkpoints, block_size, memory, storage, plan)
    limit = check_limit(measure, seconds)
    return _explain(
        asked, None, limit, lambda args: lax.scan(f, args[0], args[1], length, reverse), (init, xs)
    )


def explain_while_loop(
    cond_fun: Callable[[Any], Any],
    body_fun: Callable[[Any], Any],
    init_val: Any,
    *,
    max_steps: int | None,
    checkpoints: Checkpoints = None,
    block_size: int | None = None,
    memory: Memory = None,
    storage: Storage | None = None,
    plan: AnyPlan | None = None,
    measure: bool = False,
    seconds: float = 60.0,
) -> Report:
    """The memory and the evaluations of the gradient of a [`jax_revolve.bounded_while_loop`][] that
    reaches its bound, for every plan worth considering, and the plan that is chosen.

    **Arguments:**

    As [`jax_revolve.bounded_while_loop`][]. Arrays of `init_val` may be `jax.ShapeDtypeStruct`s,
    and `max_steps` must be an int. `measure` and `seconds` are as in
    [`jax_revolve.explain_scan`][]: the loop then takes the steps that it takes for these arguments,
    with plans for `max_steps`.

    **Returns:**

    As [`jax_revolve.explain_scan`][].

    **Raises:**

    As [`jax_revolve.explain_scan`][], and `ValueError` if `max_steps` is `None`.

    !!! Example

        ```python
        from jax_revolve import explain_while_loop

        print(explain_while_loop(lambda x: x > 1e-3, lambda x: x * 0.9, 1.0, max_steps=4096))
        ```
    """
    asked = Options(checkpoints, block_size, memory, storage, plan)
    limit = check_limit(measure, seconds)
    return _explain(
        asked, max_steps, limit, lambda init: lax.while_loop(cond_fun, body_fun, init), init_val
    )


def explain_fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Callable[[Any, Any], Any],
    init_val: Any,
    *,
    checkpoints: Checkpoints = None,
    block_size: int | None = None,
    memory: Memory = None,
    storage: Storage | None = None,
    plan: AnyPlan | None = None,
    max_steps: int | None = None,
    measure: bool = False,
    seconds: float = 60.0,
) -> Report:
    """The memory and the evaluations of the gradient of a [`jax_revolve.checkpointed_fori_loop`][],
    for every plan worth considering, and the plan that is chosen.

    **Arguments:**

    As [`jax_revolve.checkpointed_fori_loop`][]. Arrays of `init_val` may be
    `jax.ShapeDtypeStruct`s. `max_steps` must be an int if `lower` or `upper` is not known when
    the loop is traced. `measure` and `seconds` are as in [`jax_revolve.explain_scan`][].

    **Returns:**

    As [`jax_revolve.explain_scan`][].

    **Raises:**

    As [`jax_revolve.explain_scan`][], and `ValueError` if `max_steps` is `None` where it is needed.

    !!! Example

        ```python
        from jax_revolve import explain_fori_loop

        print(explain_fori_loop(0, 1000, lambda i, x: x * 0.99, 1.0))
        ```
    """
    asked = Options(checkpoints, block_size, memory, storage, plan)
    limit = check_limit(measure, seconds)
    return _explain(
        asked, max_steps, limit, lambda init: lax.fori_loop(lower, upper, body_fun, init), init_val
    )


def _explain(
    asked: Options,
    max_steps: int | None,
    limit: float | None,
    run: Callable[[Any], Any],
    arguments: Any,
) -> Report:
    """The report on the loop of `jax.lax` that `run(arguments)` calls, with measurements if there
    is a limit of seconds for them."""
    found: list[Report] = []
    loops: list[tuple[Loop, list[Any]]] = []

    def look(equation: LoopEquation, operands: list[Any]) -> Any:
        if equation.length is None and max_steps is None:
            raise ValueError(
                "max_steps must be an int, but is None: the memory and the evaluations of a while "
                "loop depend on its bound."
            )
        loop = asked.loop(equation, max_steps)
        if limit is not None:
            loops.append((loop, operands))
            raise _Found
        found.append(report_of(loop, operands))
        return [zeros(t) for t in equation.output_types]

    def find(arguments: Any) -> Any:
        return run_around_loop(lambda: run(arguments), look)

    with jax.disable_jit(False):
        if limit is None:
            jax.eval_shape(find, arguments)
            return found[0]
        check_arrays(jax.tree.leaves(arguments))
        with suppress(_Found):
            find(arguments)
        ((loop, operands),) = loops
        check_arrays(operands)
        jax.eval_shape(lambda operands: found.append(report_of(loop, operands)), operands)
        return measured_report(asked, loop, operands, found[0], limit)


class _Found(Exception):
    """The loop is known, and what follows it is not computed."""


class NoDerivative(ValueError):
    """There is nothing to differentiate."""


def report_of(loop: Loop, operands: list[Any]) -> Report:
    """The report on a loop, as if all operands were differentiated that can be."""
    inputs, activity = differentiated(loop, operands)
    restart = find_restart(loop, activity, inputs)
    sizes = sizes_of(loop, activity, restart, inputs)
    _, ys = loop.results(loop.output_types)
    xs = list(map(jax.typeof, loop.operands(operands).xs))
    consts = list(map(jax.typeof, inputs.consts))
    always = {
        "xs": bytes_of(xs),
        "cotangents of xs": bytes_of(pick(xs, activity.xs)),
        "ys": bytes_of(ys),
        "cotangents of ys": bytes_of(pick(ys, activity.ys)),
        "cotangents of closed-over values": bytes_of(pick(consts, activity.consts)),
    }
    plan = chosen_plan(loop, sizes)
    return Report(plan, sizes, always, is_while=loop.condition is not None)


def residual_bytes(loop: Loop, operands: list[Any]) -> int:
    """The bytes of the residuals of a step, without checkpoints."""
    inputs, activity = differentiated(loop, operands)
    return taped_step(loop, activity, inputs).uncut_bytes


def differentiated(loop: Loop, operands: list[Any]) -> tuple[Operands, Activity]:
    """The operands, with at least one slice of the xs, and the activity if all operands are
    differentiated that can be."""
    inputs, first = loop.operands(operands), loop.num_condition_consts
    if loop.length == 0:  # there is no slice to look at
        one = [zeros(jax.typeof(x).update(shape=(1, *x.shape[1:]))) for x in inputs.xs]
        inputs = inputs._replace(xs=one)
    differentiated = [is_inexact(x) and i >= first for i, x in enumerate(operands)]
    activity = find_activity(loop, differentiated)
    if not any(activity.results):
        raise NoDerivative(
            "init, xs and what f closes over must hold floating-point numbers that its results "
            "depend on, but do not: there is nothing to differentiate."
        )
    return inputs, activity


def chosen_plan(loop: Loop, sizes: Sizes) -> AnyPlan:
    """The plan of a loop of these sizes."""
    assert loop.plan is not None
    plan = loop.plan.resolve(sizes) if isinstance(loop.plan, Request) else loop.plan
    assert isinstance(plan, AnyPlan)
    return plan
