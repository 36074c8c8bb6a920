"""The filtered loops, against lax's on the arrays alone."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.oracles import assert_like_lax, assert_same

import jax_revolve
from jax_revolve.integrations.equinox import filter_bounded_while_loop, filter_checkpointed_scan

pytestmark = pytest.mark.usefixtures("compile_quickly", "default_precision")


class Model(eqx.Module):
    """Arrays, a function, a flag, a static field and nothing."""

    weight: jax.Array
    bias: jax.Array
    activation: Callable[..., Any]
    is_linear: bool
    missing: None = None
    name: str = eqx.field(static=True, default="model")

    def __call__(self, x: Any) -> Any:
        x = self.weight * x + self.bias
        return x if self.is_linear else self.activation(x)


def model(scale: Any = 1.0) -> Model:
    return Model(scale * jnp.array([0.3, -0.8]), jnp.array([0.2, 0.5]), jnp.tanh, False)


XS = np.cos(np.arange(10.0, dtype=np.float32)).reshape(5, 2)


def relax(model: Model, x: Any) -> tuple[Model, Any]:
    """One step, whose carry is the model itself."""
    y = model(x)
    return eqx.tree_at(lambda m: m.bias, model, 0.9 * y + 0.1 * model.bias), y * x


def by_scan(model: Model) -> Any:
    last, ys = filter_checkpointed_scan(relax, model, XS, checkpoints=2)
    assert last.activation is jnp.tanh
    assert last.is_linear is False
    return jnp.sum(last.bias**2) + jnp.sum(ys**3)


def by_while(model: Model) -> Any:
    def body(state: Any) -> Any:
        i, model, total = state
        model, y = relax(model, jnp.asarray(XS)[i])
        return i + 1, model, total + jnp.sum(y**3)

    _, last, total = filter_bounded_while_loop(
        lambda state: state[0] < 5, body, (0, model, jnp.zeros(())), max_steps=7, checkpoints=2
    )
    return jnp.sum(last.bias**2) + total


def by_python(model: Model) -> Any:
    total = jnp.zeros(())
    for x in XS:
        model, y = relax(model, x)
        total += jnp.sum(y**3)
    return jnp.sum(model.bias**2) + total


def of_scale(loss: Callable[[Model], Any]) -> Callable[[Any], Any]:
    return lambda scale: loss(model(scale))


SCALE = np.array([1.0, 0.7], np.float32)
TRANSFORMED = {
    "grad": lambda loss: jax.grad(of_scale(loss))(SCALE),
    "reverse over reverse": lambda loss: jax.jacrev(jax.grad(of_scale(loss)))(SCALE),
    "vmap of grad": lambda loss: jax.vmap(jax.grad(of_scale(loss)))(jnp.stack([SCALE, -SCALE])),
    "filter_jvp": lambda loss: eqx.filter_jvp(
        loss, (model(),), (eqx.filter(model(2.0), eqx.is_inexact_array),)
    ),
    "filter_vmap of filter_grad": lambda loss: jax.tree.leaves(
        eqx.filter(eqx.filter_vmap(eqx.filter_grad(loss))(models()), eqx.is_array)
    ),
    "filter_jit": lambda loss: eqx.filter_jit(eqx.filter_value_and_grad(loss))(model())[0],
    "filter_checkpoint": lambda loss: jax.grad(of_scale(eqx.filter_checkpoint(loss)))(SCALE),
}


def models() -> Model:
    return eqx.filter_vmap(model)(jnp.array([1.0, 2.0, -0.5]))


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformations(name: str) -> None:
    """Scans and while loops take turns."""
    loss = [by_scan, by_while][list(TRANSFORMED).index(name) % 2]
    ours, theirs = (jax.jit(partial(TRANSFORMED[name], each))() for each in (loss, by_python))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), ours, theirs)


@pytest.mark.parametrize("order", [jax.grad, jax.hessian])
def test_a_model_closed_over(order: Any) -> None:
    def loss(scan: Any, scale: Any) -> Any:
        closed_over = model(scale)
        return jnp.sum(scan(lambda h, x: (closed_over(h + x), None), jnp.zeros(2), XS)[0] ** 2)

    scan = partial(filter_checkpointed_scan, checkpoints=2)
    assert_like_lax(loss, order, SCALE, scan=scan, rtol=1e-5)


def test_leaves_that_are_not_arrays() -> None:
    """They stay what they are."""

    def step(carry: Any, x: Any) -> Any:
        total, kept = carry
        assert kept[0] is True
        assert (x["name"], x["number"]) == ("xs", 3)
        total = total + x["function"](x["values"])
        return (total, kept), {"total": total, "function": jnp.cos, "label": "ys", "number": 2.0}

    xs = {"values": np.arange(4.0), "function": jnp.sin, "name": "xs", "number": 3, "none": None}
    kept = (True, 0.1, float("nan"))
    (total, same), ys = filter_checkpointed_scan(step, (0.0, kept), xs, checkpoints=2)
    assert (*same[:2], type(same[2])) == (True, 0.1, float)
    np.testing.assert_allclose(ys["total"], np.cumsum(np.sin(np.arange(4.0))), rtol=1e-5)
    assert total == ys["total"][-1]
    assert (ys["function"], ys["label"]) == (jnp.cos, "ys")
    np.testing.assert_array_equal(ys["number"], np.full(4, 2.0))


@pytest.mark.parametrize("number", [0, 2.0, 1j])
def test_numbers_that_change_are_those_of_lax(number: Any) -> None:
    step = lambda carry, _: ((carry[1] * 2, carry[0] + 1), None)  # noqa: E731
    ours, theirs = (
        scan(step, (number, 3.0 + number), None, 3)[0]
        for scan in (filter_checkpointed_scan, lax.scan)
    )
    assert_same(list(ours), list(theirs), 0)


def test_leaves_that_change() -> None:
    def step(carry: Any, _: Any) -> Any:
        return {**carry, "f": (jnp.sin, "a")}, None

    with pytest.raises(TypeError, match=r"init\['f'\]\[0\] is not an array.* sin.* cos"):
        filter_checkpointed_scan(step, {"x": jnp.ones(2), "f": (jnp.cos, "a")}, length=2)
    with pytest.raises(TypeError, match=r"init_val\[1\] is not an array.*'ab' after .* 'a'"):
        filter_bounded_while_loop(
            lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] + "b"), (0, "a"), max_steps=3
        )


def test_arguments_are_passed_on() -> None:
    plan = jax_revolve.plan(6, checkpoints=2)

    def total(scan: Any, u: Any) -> Any:
        step = lambda u, x: (jnp.sin(u + x), u)  # noqa: E731
        return sum(map(jnp.sum, scan(step, u, jnp.arange(6.0), 6, True)))

    ours = partial(filter_checkpointed_scan, plan=plan)
    assert_like_lax(total, jax.grad, 0.3, scan=ours, rtol=1e-5)
    assert str(plan) in str(jax.make_jaxpr(partial(total, ours))(0.3))

    def run(u: Any, throw: bool = False) -> Any:
        step = lambda s: (s[0], s[0](s[1]))  # noqa: E731
        goes_on, start = lambda s: s[1] < 10.0, (lambda u: u + 1, u)
        options: Any = {"max_steps": 4, "block_size": 2, "memory": "1kB", "throw": throw}
        return filter_bounded_while_loop(goes_on, step, start, with_steps=True, **options)

    (function, value), steps = run(7.5)
    assert callable(function)
    assert (value, steps) == (10.5, 3)
    assert run(0.0)[1] == 4
    with pytest.raises(Exception, match="max_steps=4"):
        jax.block_until_ready(run(0.0, throw=True)[0][1])
