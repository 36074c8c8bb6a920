"""`explain`: what a loop's reverse pass takes, for every sensible choice, before anything runs."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from jax_revolve._compat import LoopEquation, bytes_of, run_around_loop, zeros
from jax_revolve.autodiff.sizes import sizes_of
from jax_revolve.engine.tape import Tape
from jax_revolve.loops.options import Options
from jax_revolve.schedule.arguments import Budgets
from jax_revolve.schedule.cost import Sizes
from jax_revolve.schedule.planning import Checkpoints
from jax_revolve.schedule.report.report import Report
from jax_revolve.schedule.selection import Request
from jax_revolve.schedule.storage import Place
from jax_revolve.schedule.two_level import AnyPlan
from jax_revolve.step.activity import Activity, find_activity
from jax_revolve.step.loop import Loop, Operands, is_inexact, pick
from jax_revolve.step.restart import find_restart
from jax_revolve.step.steps import Steps


def explain(
    f: Callable[..., Any],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    *,
    cond_fun: Callable[[Any], Any] | None = None,
    max_steps: int | None = None,
    checkpoints: Checkpoints = None,
    block_size: int | None = None,
    memory: Budgets = None,
    storage: Place = None,
    plan: AnyPlan | None = None,
) -> Report:
    """What the gradient of a loop takes, for every sensible choice, and which one is chosen.

    Runs nothing: `f` is traced, and its linearisation measured. As if everything that can be
    differentiated were so: `init`, `xs`, and the arrays that `f` closes over. A gradient with
    respect to less leaves less behind. Bytes are those of one device inside of `jax.shard_map` and
    where types tell the sharding (`AxisType.Explicit`), and those of whole arrays elsewhere.

    **Arguments:**

    - `f`, `init`, `xs`, `length`, `reverse`: as [`jax_revolve.checkpointed_scan`][]. Arrays may be
        `jax.ShapeDtypeStruct`s.
    - `cond_fun`, `max_steps`: for a loop that stops by itself, as
        [`jax_revolve.bounded_while_loop`][] takes them; `f` is then its `body_fun`, `init` its
        `init_val`.
    - `checkpoints`, `block_size`, `memory`, `storage`, `plan`: as those loops.

    **Returns:**

    A [`jax_revolve.Report`][], which prints as a table: the bytes of a checkpoint, of the residuals
    of a step, and of what is held whatever the plan; then a line for each choice with its
    checkpoints, its block, its memory, and how many steps it runs. `report.plan` is the one that is
    chosen, `report.plot()` draws the trade-off.

    **Raises:**

    Whatever the loop itself raises for these arguments, and `ValueError` if there is nothing to
    differentiate.

    !!! Example

        ```python
        import jax
        import jax.numpy as jnp
        from jax_revolve import explain

        def step(u, _):
            return u + 0.1 * (jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1)) - 0.01 * u**3, None

        state = jax.ShapeDtypeStruct((20000,), jnp.float32)
        report = explain(step, state, length=1000, memory="8MB")
        print(report)
        assert report.memory(report.plan) <= 8_000_000
        ```
    """
    _check_kind(cond_fun, max_steps, xs, length)
    asked = Options(checkpoints, block_size, memory, storage, plan)
    found: list[Report] = []

    def run(equation: LoopEquation, operands: list[Any]) -> Any:
        found.append(report_of(asked.loop(equation, max_steps), operands))
        return [zeros(t) for t in equation.output_types]

    def look(init: Any, xs: Any) -> Any:
        def loop() -> Any:
            if cond_fun is None:
                return lax.scan(f, init, xs, length, reverse)
            return lax.while_loop(cond_fun, f, init)

        return run_around_loop(loop, run)

    with jax.disable_jit(False):
        jax.eval_shape(look, init, xs)
    return found[0]


def _check_kind(cond_fun: object, max_steps: object, xs: object, length: object) -> None:
    if cond_fun is None and max_steps is not None:
        raise ValueError(
            f"max_steps must be None where cond_fun is, but is {max_steps!r}. Pass length."
        )
    if cond_fun is not None and max_steps is None:
        raise ValueError(
            "max_steps must be an int where cond_fun is given, but is None: what a loop takes "
            "depends on how many steps there may be."
        )
    for name, value in {"xs": xs, "length": length}.items():
        if cond_fun is not None and value is not None:
            raise ValueError(
                f"{name} must be None where cond_fun is given, but is {value!r}: a loop that stops "
                "by itself has a bound, max_steps, and neither xs nor a length."
            )


class NoDerivative(ValueError):
    """There is nothing to differentiate."""


def report_of(loop: Loop, operands: list[Any]) -> Report:
    """The report on a loop all of whose operands are differentiated that can be."""
    inputs, activity = _differentiated(loop, operands)
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
    return Report(plan, sizes, always, stops_by_itself=loop.condition is not None)


def residual_bytes(loop: Loop, operands: list[Any]) -> int:
    """The residuals of a step of the loop, where nothing is checkpointed."""
    inputs, activity = _differentiated(loop, operands)
    return bytes_of(Tape(Steps.of(loop, (True,) * loop.num_carry, inputs), activity).types)


def _differentiated(loop: Loop, operands: list[Any]) -> tuple[Operands, Activity]:
    """The operands, with at least one slice of the xs, and what depends on those that can be
    differentiated."""
    inputs, first = loop.operands(operands), loop.num_condition_consts
    if loop.length == 0:  # there is no slice to look at
        one = [zeros(jax.typeof(x).update(shape=(1, *x.shape[1:]))) for x in inputs.xs]
        inputs = inputs._replace(xs=one)
    differentiated = [is_inexact(x) and i >= first for i, x in enumerate(operands)]
    activity = find_activity(loop, inputs, differentiated)
    if not any(activity.results):
        raise NoDerivative(
            "init, xs and what f closes over must hold floating-point numbers that its results "
            "depend on, but do not: there is no derivative that would take anything."
        )
    return inputs, activity


def chosen_plan(loop: Loop, sizes: Sizes) -> AnyPlan:
    """The plan of a loop of these sizes."""
    assert loop.plan is not None
    plan = loop.plan.resolve(sizes) if isinstance(loop.plan, Request) else loop.plan
    assert isinstance(plan, AnyPlan)
    return plan
