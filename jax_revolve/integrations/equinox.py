"""The loops for carries, xs and ys with leaves that are not arrays, like Equinox's filtered
transformations."""

from collections.abc import Callable
from typing import Any, Literal, TypeVar, overload

import equinox as eqx
import jax

from jax_revolve.integrations._filter import run_with_variables
from jax_revolve.loops.scan import checkpointed_scan
from jax_revolve.loops.while_loop import bounded_while_loop
from jax_revolve.progress.meters import ProgressMeter
from jax_revolve.schedule.arguments import Memory
from jax_revolve.schedule.planning import Checkpoints
from jax_revolve.schedule.storage import Storage
from jax_revolve.schedule.two_level import AnyPlan

Carry = TypeVar("Carry")
X = TypeVar("X")
Y = TypeVar("Y")
Value = TypeVar("Value")


def filter_checkpointed_scan(
    f: Callable[[Carry, X], tuple[Carry, Y]],
    init: Carry,
    xs: X | None = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
    *,
    checkpoints: Checkpoints = None,
    block_size: int | None = None,
    memory: Memory = None,
    storage: Storage | None = None,
    plan: AnyPlan | None = None,
    progress: bool | ProgressMeter = False,
) -> tuple[Carry, Y]:
    """[`jax_revolve.checkpointed_scan`][] for carry, xs and ys with leaves that are not arrays,
    such as the activation function of an `equinox.Module`.

    - Such leaves of the carry must be the same after every step.
    - In xs they are the same at every step.
    - In ys they are returned once, rather than stacked.

    Arrays are JAX's and NumPy's, as for `equinox.is_array`. Python numbers are settings to
    Equinox, arrays to `jax.lax.scan`, and either of them here. In the carry, a number that `f`
    returns unchanged is a setting, and stays a Python number. Any other number is a loop variable,
    as in `jax.lax.scan`; then `f` is traced again. In xs, a number is the same at every step. In
    ys, it is stacked, as in `jax.lax.scan`.

    **Arguments:**

    As [`jax_revolve.checkpointed_scan`][].

    **Returns:**

    As [`jax_revolve.checkpointed_scan`][].

    **Raises:**

    Whatever [`jax_revolve.checkpointed_scan`][] raises, and `TypeError` if a leaf of the carry that
    is neither an array nor a number is not the same after a step.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        from jax_revolve.integrations.equinox import filter_checkpointed_scan

        def train(model, rate):
            def step(model, x):
                grads = eqx.filter_grad(lambda m: jnp.sum(m(x) ** 2))(model)
                return eqx.apply_updates(model, jax.tree.map(lambda g: -rate * g, grads)), None

            model, _ = filter_checkpointed_scan(step, model, jnp.ones((100, 2)), checkpoints=5)
            return jnp.sum(model(jnp.ones(2)) ** 2)

        model = eqx.nn.MLP(2, 2, width_size=4, depth=1, key=jax.random.key(0))
        jax.grad(train, argnums=1)(model, 0.01)
        ```
    """
    inputs, same_inputs = eqx.partition(xs, eqx.is_array)

    def run(init: Any, whole: Any, variables_of: Any) -> tuple[Carry, Y]:
        same_outputs: list[Any] = []

        def step(variables: Any, x: Any) -> tuple[Any, Any]:
            carry, y = f(whole(variables), eqx.combine(x, same_inputs))
            y, same = eqx.partition(y, eqx.is_array_like)
            same_outputs[:] = [same]
            return variables_of(carry), y

        final, ys = checkpointed_scan(
            step,
            init,
            inputs,
            length,
            reverse,
            unroll,
            _split_transpose,
            checkpoints=checkpoints,
            block_size=block_size,
            memory=memory,
            storage=storage,
            plan=plan,
            progress=progress,
        )
        return whole(final), eqx.combine(ys, same_outputs[0])

    return run_with_variables("init", init, run)


@overload
def filter_bounded_while_loop(
    cond_fun: Callable[[Value], Any],
    body_fun: Callable[[Value], Value],
    init_val: Value,
    *,
    max_steps: int | None,
    checkpoints: Checkpoints = None,
    block_size: int | None = None,
    memory: Memory = None,
    storage: Storage | None = None,
    plan: AnyPlan | None = None,
    with_steps: Literal[False] = False,
    throw: bool = True,
    progress: bool | ProgressMeter = False,
) -> Value: ...


@overload
def filter_bounded_while_loop(
    cond_fun: Callable[[Value], Any],
    body_fun: Callable[[Value], Value],
    init_val: Value,
    *,
    max_steps: int | None,
    checkpoints: Checkpoints = None,
    block_size: int | None = None,
    memory: Memory = None,
    storage: Storage | None = None,
    plan: AnyPlan | None = None,
    with_steps: Literal[True],
    throw: bool = True,
    progress: bool | ProgressMeter = False,
) -> tuple[Value, jax.Array]: ...


def filter_bounded_while_loop(
    cond_fun: Callable[[Value], Any],
    body_fun: Callable[[Value], Value],
    init_val: Value,
    *,
    max_steps: int | None,
    checkpoints: Checkpoints = None,
    block_size: int | None = None,
    memory: Memory = None,
    storage: Storage | None = None,
    plan: AnyPlan | None = None,
    with_steps: bool = False,
    throw: bool = True,
    progress: bool | ProgressMeter = False,
) -> Value | tuple[Value, jax.Array]:
    """[`jax_revolve.bounded_while_loop`][] for a value with leaves that are not arrays, which must
    be the same after every step. A loop that reaches its bound raises an error at run time, unless
    `throw=False`.

    Arrays and Python numbers are as in the carry of
    [`jax_revolve.integrations.equinox.filter_checkpointed_scan`][].

    **Arguments:**

    As [`jax_revolve.bounded_while_loop`][].

    **Returns:**

    As [`jax_revolve.bounded_while_loop`][].

    **Raises:**

    Whatever [`jax_revolve.bounded_while_loop`][] raises, and `TypeError` if a leaf of the value
    that is neither an array nor a number is not the same after a step.

    !!! Example

        ```python
        import jax
        import jax.numpy as jnp
        from jax_revolve.integrations.equinox import filter_bounded_while_loop

        def fixed_point(function, x):
            def far(state):
                function, x = state
                return jnp.abs(function(x) - x) > 1e-4

            def improve(state):
                function, x = state
                return function, function(x)

            return filter_bounded_while_loop(far, improve, (function, x), max_steps=1000)[1]

        jax.grad(lambda a: fixed_point(lambda x: jnp.cos(a * x), 1.0))(0.9)
        ```
    """

    def run(init: Any, whole: Any, variables_of: Any) -> Any:
        def body(variables: Any) -> Any:
            return variables_of(body_fun(whole(variables)))

        limits = {"max_steps": max_steps, "checkpoints": checkpoints, "block_size": block_size}
        limits |= {"memory": memory, "storage": storage, "plan": plan}
        limits |= {"throw": throw, "progress": progress}
        going = lambda variables: cond_fun(whole(variables))  # noqa: E731
        final, steps = bounded_while_loop(going, body, init, with_steps=True, **limits)
        return (whole(final), steps) if with_steps else whole(final)

    return run_with_variables("init_val", init_val, run)
