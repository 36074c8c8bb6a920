"""The loops for carries, xs and ys with leaves that are not arrays, like Equinox's filtered
transformations.

Arrays are JAX's and NumPy's, as for `equinox.is_array`. A Python number is a valid carry of
`lax.scan`, and Equinox's modules keep settings in Python numbers. The trace of the body decides: a
number that the body returns unchanged is a setting.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import equinox as eqx
import jax

from jax_revolve.loops.scan import checkpointed_scan
from jax_revolve.loops.while_loop import bounded_while_loop

F = TypeVar("F", bound=Callable[..., Any])


def _typed_as(loop: F) -> Callable[[Callable[..., Any]], F]:
    """Gives a function the signature of a loop, for type checkers and at run time."""

    def decorate(function: Any) -> Any:
        function.__signature__ = inspect.signature(loop)
        return function

    return decorate


@_typed_as(checkpointed_scan)
def filter_checkpointed_scan(f: Any, init: Any, xs: Any = None, *args: Any, **options: Any) -> Any:
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

    def run(init: Any, whole: Any, variables_of: Any) -> tuple[Any, Any]:
        same_outputs: list[Any] = []

        def step(variables: Any, x: Any) -> tuple[Any, Any]:
            carry, y = f(whole(variables), eqx.combine(x, same_inputs))
            y, same = eqx.partition(y, eqx.is_array_like)
            same_outputs[:] = [same]
            return variables_of(carry), y

        final, ys = checkpointed_scan(step, init, inputs, *args, **options)
        return whole(final), eqx.combine(ys, same_outputs[0])

    return run_with_variables("init", init, run)


@_typed_as(bounded_while_loop)
def filter_bounded_while_loop(
    cond_fun: Any, body_fun: Any, init_val: Any, *, with_steps: bool = False, **options: Any
) -> Any:
    """[`jax_revolve.bounded_while_loop`][] for a value with leaves that are not arrays, which must
    be the same after every step. A loop that reaches its bound raises an error at run time, unless
    `throw=False`.

    Arrays and Python numbers are as in the carry of
    [`jax_revolve.integrations.equinox.filter_checkpointed_scan`][].

    **Arguments:**

    As [`jax_revolve.bounded_while_loop`][]. Also `buffers`, as libraries pass to Equinox's loops,
    which is not needed: the body shows which arrays a checkpoint holds.

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

    options.pop("buffers", None)

    def run(init: Any, whole: Any, variables_of: Any) -> Any:
        def body(variables: Any) -> Any:
            return variables_of(body_fun(whole(variables)))

        going = lambda variables: cond_fun(whole(variables))  # noqa: E731
        final, steps = bounded_while_loop(going, body, init, with_steps=True, **options)
        return (whole(final), steps) if with_steps else whole(final)

    return run_with_variables("init_val", init_val, run)


T = TypeVar("T")


class _Varies(Exception):
    """Further Python numbers are loop variables."""

    def __init__(self, varies: Any) -> None:
        self.varies = varies


def run_with_variables(
    name: str, init: Any, run: Callable[[Any, Callable[[Any], Any], Callable[[Any], Any]], T]
) -> T:
    """`run(variables, whole, variables_of)` with as few Python numbers as loop variables as the
    body allows. `variables` are the initial carry's, `whole` makes a carry of variables, and
    `variables_of` takes them out of a carry that the body returns. `name` is the name of `init`."""
    varies = jax.tree.map(eqx.is_array, init)
    while True:
        variables, rest = eqx.partition(init, varies)
        try:
            of = partial(_variables_of, name, init, varies)
            return run(variables, partial(eqx.combine, rest), of)
        except _Varies as found:
            varies = found.varies


def _variables_of(name: str, init: Any, varies: Any, new: Any) -> Any:
    if jax.tree.structure(init) != jax.tree.structure(new):  # lax raises its own error
        return eqx.filter(new, eqx.is_array_like)

    def changes(path: Any, old: Any, new: Any, varies: bool) -> bool:
        if varies or _same(old, new):
            return varies
        if _is_number(old) and eqx.is_array_like(new):
            return True
        raise TypeError(
            f"{name}{jax.tree_util.keystr(path)} is not an array, and must be the same after every "
            f"step, but is {new!r} after a step, and was {old!r}. Only arrays and numbers can "
            "change from step to step: carry an array, or keep the leaf as it is."
        )

    found = jax.tree.map_with_path(changes, init, new, varies)
    if jax.tree.leaves(found) != jax.tree.leaves(varies):
        raise _Varies(found)
    return eqx.filter(new, varies)


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, (bool, int, float, complex))


def _same(old: Any, new: Any) -> bool:
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if _is_number(old):
        return repr(old) == repr(new)  # differs for zeros of different signs, and not for nan
    try:
        return bool(old == new)
    except Exception:  # the leaf's own comparison may raise anything
        return False
