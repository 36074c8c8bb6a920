"""Batches of while loops whose examples take different numbers of steps: what belongs to one
example stays with it, and an example that is done harms no other."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support.oracles import assert_close

from jax_revolve import bounded_while_loop

quick = pytest.mark.usefixtures("compile_quickly")

# Data of each example that the step closes over

EXAMPLES, WIDTH = 8, 10_000
STARTS = jnp.linspace(0.5, 1.0, EXAMPLES, dtype=jnp.float32)
DATA = jnp.linspace(1.0, 2.0, EXAMPLES * WIDTH, dtype=jnp.float32).reshape(EXAMPLES, WIDTH)


def fitted(loop: Any, rate: Any, x: Any, data: Any) -> Any:
    """Each example is fitted to its own data."""

    def going(state: Any) -> Any:
        return (jnp.abs(state[0] - 1 / state[0]) > 1e-3) & (state[1] < 30)

    def body(state: Any) -> Any:
        x, steps = state
        return x - rate * jnp.mean((jnp.sin(x) - data) * data), steps + 1

    return loop(going, body, (x, 0))[0]


def counted(going: Any, body: Any, init: Any) -> Any:
    """lax's loop with a bound."""
    both = lambda s: (s[0] < 30) & going(s[1])  # noqa: E731
    return lax.while_loop(both, lambda s: (s[0] + 1, body(s[1])), (jnp.int32(0), init))[1]


ours = partial(bounded_while_loop, max_steps=30, throw=False)


def over_examples(loop: Any) -> Any:
    return jax.vmap(partial(fitted, loop), (None, 0, 0))


def directional(run: Any) -> Any:
    return lambda rate, x, data: jax.jvp(lambda x: run(rate, x, data), (x,), (x,))[1]


def total(run: Any, argument: int) -> Any:
    return jax.grad(lambda *inputs: jnp.sum(run(*inputs)), argument)


def product(run: Any) -> Any:
    gradient = total(run, 1)
    return lambda rate, x, data: jax.jvp(lambda x: gradient(rate, x, data), (x,), (x,))[1]


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "value": over_examples,
    "tangent": lambda loop: directional(over_examples(loop)),
    "gradient of each": lambda loop: jax.vmap(jax.grad(partial(fitted, loop), 1), (None, 0, 0)),
    "gradient of all": lambda loop: total(over_examples(loop), 1),
    "gradient in what all share": lambda loop: total(over_examples(loop), 0),
    "Hessian-vector product": lambda loop: product(over_examples(loop)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_data_of_an_example_is_not_copied(name: str) -> None:
    """Nor gathered where the examples lie on different devices. The value is as small as lax's."""
    mesh = jax.make_mesh((EXAMPLES,), ("example",), axis_types=(AxisType.Auto,))
    on_its_own = NamedSharding(mesh, PartitionSpec("example"))

    def compiled(run: Any, *arguments: Any) -> Any:
        return jax.jit(run).lower(jnp.float32(0.1), *arguments).compile()

    run = PROGRAMS[name](ours)
    program = compiled(run, STARTS, DATA)
    assert program.memory_analysis().temp_size_in_bytes < 4 * WIDTH
    sharded = compiled(run, *(jax.device_put(x, on_its_own) for x in (STARTS, DATA)))
    assert "all-gather" not in sharded.as_text()
    assert sharded.memory_analysis().temp_size_in_bytes < 4 * WIDTH
    if name in ("value", "tangent"):
        theirs = compiled(PROGRAMS[name](counted), STARTS, DATA)
        few, many = (text.as_text().count(" = ") for text in (theirs, program))
        assert many <= 1.05 * few


# Examples that never ran

RULE = jax.custom_vjp(jnp.sin)
RULE.defvjp(lambda u: (jnp.sin(u), u), lambda u, ct: (ct * jnp.cos(u),))
WEIGHTS, STEPS = jnp.array([0.1, 0.2, 0.3]), (2, 5, 0, 3)
NUMBERS = jnp.array(STEPS)
INITIAL, OWN = jnp.array([1.0, 2.0, 0.5, 3.0]), jnp.full((4, 3), 1.3).at[2].set(0.0)
RAN = (0, 1, 3)


def summed(function: Any, weights: Any, x: Any, own: Any, steps: Any) -> Any:
    """No derivative exists where `own` is zero, as for the example that takes no step."""

    def body(state: Any) -> Any:
        i, x = state
        more = jnp.sum(weights * jnp.log(own)) * function(x)
        return i + 1, x + more + jnp.sum(jnp.sqrt(own * weights))

    loop = partial(bounded_while_loop, max_steps=8, throw=False, checkpoints=2)
    return loop(lambda s: s[0] < steps, body, (jnp.int32(0), x))[1]


@pytest.mark.parametrize("function", [jnp.sin, RULE], ids=["sin", "rule"])
@pytest.mark.parametrize("axis", [0, 1])
@quick
def test_an_example_that_never_ran(function: Any, axis: int) -> None:
    """It adds nothing to the cotangent of what the examples share."""
    run, own = partial(summed, function), OWN if axis == 0 else OWN.T

    def of_all(weights: Any, x: Any) -> Any:
        return jnp.sum(jax.vmap(run, (None, 0, axis, 0))(weights, x, own, NUMBERS))

    def of_each(weights: Any, x: Any) -> Any:
        return sum(run(weights, x[k], OWN[k], STEPS[k]) for k in RAN) + x[2]

    def twice(f: Any) -> Any:
        return jax.grad(lambda *x: sum(jnp.sum(g**2) for g in jax.grad(f, (0, 1))(*x)), (0, 1))

    for derivative in (lambda f: jax.grad(f, (0, 1)), twice):
        found, wanted = (jax.jit(derivative(f))(WEIGHTS, INITIAL) for f in (of_all, of_each))
        assert_close(found, wanted, rtol=1e-9)


@pytest.mark.parametrize("function", [jnp.sin, RULE], ids=["sin", "rule"])
@quick
def test_a_batch_of_which_no_example_ran(function: Any) -> None:
    """Beside others, in two nested batches."""
    run = partial(summed, function)
    own, x = (jnp.stack([a, a * zero, a * 1.1]) for a, zero in ((OWN, 0), (INITIAL, 1)))
    steps = jnp.stack([NUMBERS, NUMBERS * 0, NUMBERS])
    inner = jax.vmap(run, (None, 0, 0, 0))

    def of_all(weights: Any) -> Any:
        return jnp.sum(jax.vmap(inner, (None, 0, 0, 0))(weights, x, own, steps))

    def of_row(weights: Any, o: int) -> Any:
        return sum(run(weights, x[o, k], own[o, k], STEPS[k]) for k in RAN)

    gradients = [jax.jit(jax.grad(of_row), static_argnums=1)(WEIGHTS, o) for o in (0, 2)]
    assert_close(jax.jit(jax.grad(of_all))(WEIGHTS), sum(gradients), rtol=1e-9)
    of_rows = jax.vmap(jax.grad(lambda *a: jnp.sum(inner(*a))), (None, 0, 0, 0))
    found = jax.jit(of_rows)(WEIGHTS, x, own, steps)
    assert_close(found, jnp.stack([gradients[0], 0 * WEIGHTS, gradients[1]]), rtol=1e-9)


# Who mixes examples


def masked(going: Any, body: Any, init: Any, steps: int) -> Any:
    """What a batched loop computes, by lax."""
    keep = lambda s: jax.tree.map(partial(jnp.where, going(s)), body(s), s)  # noqa: E731
    return lax.scan(lambda s, _: (keep(s), None), init, None, steps)[0]


def halved(x: Any) -> np.ndarray:
    return np.asarray(x) / 2


METHODS = ["sequential", "expand_dims", "broadcast_all"]


@pytest.mark.parametrize("method", METHODS)
@quick
def test_callbacks(method: Any) -> None:
    def run(loop: Any, steps: Any, x: Any) -> Any:
        def body(state: Any) -> Any:
            i, x = state
            half = jax.pure_callback(halved, jax.typeof(x), x, vmap_method=method)
            return i + 1, jnp.sin(x) + lax.stop_gradient(half)

        return loop(lambda s: s[0] < steps, body, (0, x), 9)[1]

    def both(loop: Any) -> Any:
        each = jax.vmap(partial(run, loop))
        return jax.jit(each)(jnp.array([3, 7, 5]), jnp.arange(1.0, 4.0))

    assert_close(both(lambda c, b, i, n: bounded_while_loop(c, b, i, max_steps=n)), both(masked))


@pytest.mark.parametrize("spmd_axis_name", [None, "device"])
@pytest.mark.parametrize("mixing", ["inner", "outer", "both"])
@quick
def test_one_of_two_axes_mixes(mixing: str, spmd_axis_name: Any) -> None:
    """The square root has no derivative where an example stops."""
    axes = {"inner": "a", "outer": "b", "both": ("a", "b")}[mixing]

    def run(loop: Any, w: Any, x: Any) -> Any:
        def body(state: Any) -> Any:
            x, s = state
            return x - 1, s + w * jnp.sqrt(x) + lax.pmean(s, axes) * jnp.sin(s)

        return loop(lambda s: s[0] > 0, body, (x, 0.1 * x), 6)[1]

    starts = jnp.array([[3.0, 1.0, 0.0], [2.0, 5.0, 4.0]])

    def both(loop: Any) -> Any:
        def of_all(w: Any, x: Any) -> Any:
            inner = jax.vmap(partial(run, loop), (None, 0), axis_name="a")
            return jax.vmap(
                inner, (None, 0), axis_name="b", axis_size=2, spmd_axis_name=spmd_axis_name
            )(w, x)

        return of_all(0.7, starts), jax.grad(lambda w: jnp.sum(of_all(w, starts) ** 2))(0.7)

    def right(going: Any, body: Any, init: Any, steps: int) -> Any:
        def safe(state: Any) -> Any:
            return body((jnp.where(going(state), state[0], 1.0), state[1]))

        return masked(going, safe, init, steps)

    mesh = jax.make_mesh((2,), ("device",), axis_types=(AxisType.Auto,))
    with jax.set_mesh(mesh):
        found = jax.jit(
            lambda: both(lambda c, b, i, n: bounded_while_loop(c, b, i, max_steps=n, throw=False))
        )()
        assert_close(found, jax.jit(lambda: both(right))(), rtol=1e-9)
