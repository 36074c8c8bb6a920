"""Derivatives of gradients: by the same engine, with the same schedule and budget."""

import itertools
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.compiled import stencil, temporaries
from support.evaluations import steps_executed
from support.oracles import assert_like_lax, with_reverse_rule

from jax_revolve import (
    Disk,
    HostMemory,
    bounded_while_loop,
    checkpointed_chain,
    checkpointed_scan,
    plan,
)

quick = pytest.mark.usefixtures("compile_quickly")


# A gradient that is taken in the body of a loop


def by_scan(scan: Any, q: Any, th: Any) -> Any:
    return scan(lambda c, _: (jnp.sin(th * c), None), q, length=8)[0]


def by_while(q: Any, th: Any) -> Any:
    step = lambda s: (s[0] + 1, jnp.sin(th * s[1]))  # noqa: E731
    return bounded_while_loop(lambda s: s[0] < 8, step, (0, q), max_steps=10, checkpoints=3)[1]


def ours(**options: Any) -> Any:
    return partial(by_scan, partial(checkpointed_scan, **options))


INNER: dict[str, Callable[..., Any]] = {
    "slots": ours(checkpoints=3),
    "blocks": ours(checkpoints=2, block_size=3),
    "host": ours(checkpoints=1, storage=HostMemory(checkpoints=2, transfer=0.1)),
    "while": by_while,
    "chain": lambda q, th: checkpointed_chain([lambda c: jnp.sin(th * c)] * 8, q, checkpoints=3),
}


def of_scan(scan: Any, step: Any, x: Any) -> Any:
    return scan(lambda x, t: (step(x, t), None), x, jnp.linspace(0.1, 1.0, 4))[0]


OUTER: dict[str, Callable[..., Any]] = {
    "lax.scan": partial(of_scan, lax.scan),
    "checkpointed_scan": partial(of_scan, checkpointed_scan),
    "checkpoint": lambda step, x: of_scan(lax.scan, jax.checkpoint(step), x),
}


def penalized(outer: Any, inner: Any, z: Any) -> Any:
    step = lambda x, t: x * (1 + 0.1 * jax.grad(inner)(t, z[1]))  # noqa: E731
    return outer(step, z[0])


DERIVATIVES: dict[str, Callable[..., Any]] = {
    "jacfwd of grad": lambda f: jax.jacfwd(jax.grad(f)),
    "grad of grad": lambda f: jax.jacrev(jax.grad(f)),
    "vmap": lambda f: lambda z: jax.vmap(jax.hessian(f))(jnp.stack([z, 2 * z])),
    "third order": lambda f: jax.jacrev(jax.jacfwd(jax.grad(f))),
}


@cache
def expected(derivative: str) -> Any:
    f = partial(penalized, OUTER["lax.scan"], partial(by_scan, lax.scan))
    return jax.jit(DERIVATIVES[derivative](f))(jnp.array([0.7, 1.3]))


def _triples() -> Any:
    """The quick ones here; of the others, each two of the three meet in the slow tests."""
    quick = [
        *(("slots", "lax.scan", name) for name in DERIVATIVES if name != "vmap"),
        *(("while", "lax.scan", name) for name in ("jacfwd of grad", "grad of grad")),
        ("blocks", "checkpoint", "jacfwd of grad"),
    ]
    pairs = itertools.product(enumerate(INNER), enumerate(OUTER))
    slow = [(inner, outer, [*DERIVATIVES][(i + j) % 4]) for (i, inner), (j, outer) in pairs]
    others = [pytest.param(*each, marks=pytest.mark.slow) for each in slow if each not in quick]
    return [*quick, *others]


@quick
@pytest.mark.parametrize(("inner", "outer", "derivative"), _triples())
def test_gradients_in_the_body_of_a_loop(inner: str, outer: str, derivative: str) -> None:
    """Up to 0.10, JAX took the reverse sweep apart where it linearized a `lax.scan`, and a mixed
    derivative was 1.604 in place of -0.471, without a word."""
    f = partial(penalized, OUTER[outer], INNER[inner])
    result = jax.jit(DERIVATIVES[derivative](f))(jnp.array([0.7, 1.3]))
    np.testing.assert_allclose(result, expected(derivative), rtol=1e-10, atol=1e-12)


# Schedule and memory


def product(loss: Any) -> Any:
    return lambda a: jax.jvp(jax.grad(loss), (a,), (a,))[1]


@pytest.mark.unchecked
@quick
@pytest.mark.parametrize(("length", "checkpoints"), [(30, 4), (13, 1)])
def test_products_run_the_plan(length: int, checkpoints: int) -> None:
    """One forward and one reverse sweep of values and tangents, and nothing twice."""
    evaluations = plan(length, checkpoints).evaluations
    twice = lambda loss: jax.grad(jax.grad(loss))  # noqa: E731
    thrice = lambda loss: jax.grad(twice(loss))  # noqa: E731
    plans = {product: 1, jax.hessian: 1, twice: 2, thrice: 3}
    for transform, number in plans.items():
        expected = number * evaluations
        assert len(steps_executed(length, checkpoints, transform)) == expected


@pytest.mark.unchecked
@quick
def test_products_tape_the_last_block_again() -> None:
    """It is taped with what the derivative needs, from the newest checkpoint."""
    p = plan(40, 10, block_size=5)
    assert len(steps_executed(40, 10, product, block_size=5)) == p.evaluations + 10


@pytest.mark.unchecked
def test_memory_does_not_grow_with_the_length() -> None:
    """Ten pairs of carries, whatever the length; the same for both orders of the derivatives."""
    run = partial(stencil, partial(checkpointed_scan, checkpoints=10))
    u = jnp.zeros(2000, jnp.float32)

    def forward_over_reverse(length: int) -> int:
        gradient = jax.grad(run(length))
        return temporaries(lambda u, v: jax.jvp(gradient, (u,), (v,))[1], u, u)

    along = lambda u, v: jax.jvp(run(500), (u,), (v,))[1]  # noqa: E731
    assert forward_over_reverse(500) == forward_over_reverse(4000)
    assert forward_over_reverse(500) <= 1.1 * temporaries(jax.grad(along), u, u) <= 33 * u.nbytes
    hessians = [temporaries(jax.hessian(run(n)), jnp.zeros(4, jnp.float32)) for n in (500, 4000)]
    assert hessians[0] == hessians[1]


@pytest.mark.unchecked
def test_values_are_stored_once_for_all_directions() -> None:
    u, directions = jnp.zeros(2000, jnp.float32), jnp.zeros((8, 2000), jnp.float32)
    gradient = jax.grad(stencil(partial(checkpointed_scan, checkpoints=20), 100))
    along = lambda u, v: jax.jvp(gradient, (u,), (v,))[1]  # noqa: E731
    of_all = temporaries(jax.vmap(along, in_axes=(None, 0)), u, directions)
    assert of_all <= (20 + 8 * 20 + 40) * u.nbytes


BACK = lambda c, x, y: c / (1 - 0.1 * x)  # noqa: E731
PLANS = [{"checkpoints": 3, "block_size": 5}, {"inverse": BACK, "checkpoints": 4}]


def layers(scan: Any, p: Any, c: Any, xs: Any) -> Any:
    """Linear in the carry, so that tangents of the weights reach the carry's through x alone."""
    f = lambda c, x: ((1 - 0.1 * x) * c, jnp.sum(p * c))  # noqa: E731
    c, ys = scan(f, c, xs)
    return jnp.sum(c**2) + jnp.sum(jnp.sin(ys))


@quick
@pytest.mark.parametrize("how", PLANS)
@pytest.mark.parametrize("used", [*itertools.product([False, True], repeat=3)])
def test_some_values_beside_the_tangents_of_a_gradient(used: Any, how: dict[str, Any]) -> None:
    at = jnp.float64(0.7), jnp.arange(1.0, 4.0), jnp.linspace(0.5, 1, 60).reshape(20, 3)

    def some(f: Any) -> Any:
        values, dots = jax.jvp(jax.grad(f, (0, 1, 2)), at, jax.tree.map(jnp.cos, at))
        return list(itertools.compress(values, used)), dots

    derivative = lambda f: lambda: some(f)  # noqa: E731
    assert_like_lax(layers, derivative, scan=partial(checkpointed_scan, **how))


@pytest.mark.unchecked
@pytest.mark.parametrize("how", PLANS)
def test_products_do_not_compute_the_gradient_too(how: dict[str, Any]) -> None:
    """Its part for the layers would be as large as they are."""
    if jax.__version_info__ < (0, 12):
        pytest.skip("this JAX keeps the whole jvp of the sweep")
    c, xs = jnp.ones(500), jnp.zeros((200, 500))
    gradient = jax.grad(partial(layers, partial(checkpointed_scan, **how), 0.5), (0, 1))
    product = lambda *at: jax.jvp(gradient, at, at)[1]  # noqa: E731
    assert temporaries(product, c, xs) < xs.nbytes / 2


# Rules that need not be derivatives


SCAN = partial(checkpointed_scan, checkpoints=3)


@quick
def test_the_results_of_a_reverse_rule_are_those_of_its_forward_half() -> None:
    """Once it is linearized, as in `lax.scan`: the derivative of the results was by the reverse
    rule once more."""

    clipped = with_reverse_rule(jnp.sin, lambda x, ct: jnp.clip(ct, -0.9, 0.9) * x)

    def loss(scan: Any, a: Any) -> Any:
        u, us = scan(lambda u, _: (clipped(u * a) + 0.2, clipped(u)), a, None, length=4)
        return u**2 + jnp.sum(jnp.sin(us))

    assert_like_lax(loss, lambda f: jax.grad(jax.grad(f)), 0.7, scan=SCAN)


@quick
@pytest.mark.parametrize("axes", [(None, None, 0), (None, 0, None)])
def test_cotangents_that_do_not_depend_on_the_example(axes: tuple[int | None, ...]) -> None:
    """The first is the same for all examples, and counts once if they are added up."""

    def of_one(scan: Any, x: Any, y: Any, z: Any) -> Any:
        step = lambda c, _: ((jnp.sin(c[0] * x), jnp.cos(c[1] * z) + y * c[0]), c[0])  # noqa: E731
        (u, v), us = scan(step, (x, y), None, length=5)
        return u + jnp.sum(us**2) + v

    def total(scan: Any, *arguments: Any) -> Any:
        gradients = jax.vmap(jax.grad(partial(of_one, scan), (0, 1, 2)), axes)(*arguments)
        return sum((i + 1) * jnp.sum(jnp.sin(g)) for i, g in enumerate(gradients))

    arguments = [0.6 if axis is None else jnp.array([0.7, 0.8, 0.9]) for axis in axes]
    for derivative in (jax.grad, jax.jacfwd):
        assert_like_lax(total, partial(derivative, argnums=(0, 1, 2)), *arguments, scan=SCAN)


halved = with_reverse_rule(jnp.sin, lambda x, ct: 0.5 * jnp.cos(x) * ct)


def test_a_rule_that_only_the_second_derivative_uses() -> None:
    """The first gradient is of the carry, and the rule is for the xs. Then the third derivative
    was an error ("can't apply forward-mode autodiff (jvp) to a custom_vjp function"). Found by
    random programs 3100049 and 3100080."""
    x = jnp.linspace(0.2, 1, 3)

    def gradient(scan: Any, xs: Any) -> Any:
        def loss(c: Any, xs: Any) -> Any:
            return scan(lambda c, x: (jnp.sin(c) * halved(x), c), c, xs)[0].sum()

        body = lambda c, _: (jnp.sin(c) + jax.grad(loss)(c, c * xs), None)  # noqa: E731
        return lax.scan(body, x, length=2)[0].sum()

    third = lambda f: lambda xs: jax.jvp(jax.grad(f), (xs,), (jnp.cos(xs),))[1]  # noqa: E731
    assert_like_lax(gradient, third, jnp.stack([x, 0.3 * x, x - 1, x**2]), rtol=1e-5)


@jax.custom_vjp
def of_a_constant(x: jax.Array, constant: jax.Array) -> jax.Array:
    return jnp.sin(x) * constant


def _of_a_constant(x: Any, constant: Any) -> Any:
    if constant.perturbed:
        raise TypeError("must not be differentiated")
    return jnp.sin(x.value) * constant.value, (x.value, constant.value)


of_a_constant.defvjp(
    _of_a_constant,
    lambda held, ct: (jnp.cos(held[0]) * held[1] * ct, None),
    symbolic_zeros=True,
)


@quick
def test_a_rule_that_refuses_tangents_of_what_has_none() -> None:
    """The operand depends on what is differentiated, and has no derivative. The second derivative
    gave it a tangent. Found by random programs 700034 and 701565."""

    def gradient(scan: Any, x: Any) -> Any:
        step = lambda c, _: (of_a_constant(c * x, lax.stop_gradient(c)), None)  # noqa: E731
        loss = lambda c: scan(step, c, None, 3)[0].sum()  # noqa: E731
        return lax.scan(lambda c, _: (jax.grad(loss)(c), None), x, None, 2)[0].sum()

    assert_like_lax(gradient, jax.grad, jnp.linspace(0.2, 1, 3), rtol=1e-5)


@quick
@pytest.mark.parametrize("storage", [None, pytest.param(Disk, marks=pytest.mark.slow)])
def test_a_derivative_without_reverse_mode(storage: Any, tmp_path: Path) -> None:
    """That of `jax.random.gamma` is a while loop. The Hessian of a loop of such steps is forward
    over reverse in JAX, and was an error here: it pulled the derivative back."""
    keys = jax.random.split(jax.random.key(0), 4)

    def loss(scan: Any, x: Any) -> Any:
        def step(c: Any, key: Any) -> Any:
            return jnp.sin(c) + 0.1 * jax.random.gamma(key, 1 + c * x), c

        c, cs = scan(step, x, keys)
        return jnp.sum(c**2) + jnp.sum(cs)

    files = storage and {"checkpoints": 1, "storage": storage(tmp_path, checkpoints=1)}
    scan = partial(checkpointed_scan, **(files or {"checkpoints": 2}))
    over_examples = lambda f: jax.vmap(jax.hessian(f))  # noqa: E731
    assert_like_lax(loss, over_examples, jnp.linspace(0.5, 1, 4).reshape(2, 2), scan=scan)


def _with_diagnostics(scan: Any, x: jax.Array) -> Any:
    """A loss, and what the loop computes beside it, in the carry and in the ys, by a while loop and
    by a function whose derivative is an exponential."""

    def step(state: Any, t: Any) -> Any:
        c, total = state
        body = lambda s: (s[0] + 1, s[1] * c)  # noqa: E731
        most = lax.while_loop(lambda s: s[0] < 3, body, (0, c))[1]
        return (jnp.sin(c) * x + t, total + most), (c * x, lax.erf(total))

    (c, total), (used, unused) = scan(step, (x, x), jnp.linspace(0.1, 0.5, 6))
    return jnp.sum(c**2) + jnp.sum(used), (total, unused)


def _by_while(step: Any, init: Any, xs: Any) -> Any:
    _, ys = jax.eval_shape(step, init, xs[0])
    ys = jax.tree.map(lambda y: jnp.zeros((len(xs), *y.shape), y.dtype), ys)

    def body(state: Any) -> Any:
        i, carry, ys = state
        carry, y = step(carry, xs[i])
        return i + 1, carry, jax.tree.map(lambda each, row: each.at[i].set(row), ys, y)

    goes_on = lambda state: state[0] < len(xs)  # noqa: E731
    return bounded_while_loop(goes_on, body, (0, init, ys), max_steps=8, checkpoints=3)[1:]


@quick
@pytest.mark.parametrize(
    "scan",
    [
        *(SCAN, lambda step, *args: SCAN(jax.jit(step), *args)),
        *(checkpointed_scan, partial(checkpointed_scan, checkpoints=2, block_size=2), _by_while),
    ],
    ids=["slots", "compiled step", "default", "blocks", "while"],
)
def test_what_has_no_cotangent_is_not_pulled_back(scan: Any) -> None:
    """It was, with zeros: an error for what has no reverse mode, and as expensive as a part of the
    loss."""
    x = jnp.linspace(0.5, 0.8, 3)
    for derivative in (jax.grad, jax.hessian):
        assert_like_lax(_with_diagnostics, partial(derivative, has_aux=True), x, scan=scan)
    gradient = jax.jit(jax.grad(partial(_with_diagnostics, scan), has_aux=True))
    assert "exponential" not in gradient.lower(x).as_text()


def _twice(final: Any, which: str, x: Any) -> Any:
    gradient = jax.grad(lambda x, w: final(x, w).sum(), (0, 1))
    along_carry = lambda w: jax.grad(lambda w: jnp.sin(final(x, w)).sum())(w)  # noqa: E731
    return {
        "jvp of grad": lambda: jax.jvp(gradient, (x, x), (x**2, x))[1],
        "grad of grad": lambda: jax.grad(lambda x: jnp.vdot(gradient(x, x)[1], x))(x),
        "twice in one operand": lambda: jax.grad(lambda w: jnp.vdot(along_carry(w), x))(x),
        "along the cotangent": lambda: jax.jvp(
            lambda ct: jax.vjp(final, x, x)[1](ct), (x,), (x**2,)
        ),
        "hessian": lambda: jax.hessian(lambda x: final(x, x).sum())(x),
    }[which]()


@quick
@pytest.mark.parametrize(
    "derivative",
    ["jvp of grad", "grad of grad", "twice in one operand", "along the cotangent", "hessian"],
)
def test_second_derivatives_with_files(derivative: str, tmp_path: Path) -> None:
    """What is held are tickets, which have no tangents. They are read along with the tangents of
    each direction: `jax.hessian` found the values that come with them batched. What serves a first
    derivative serves no second one in the same operands: its files are gone by then."""

    def final(scan: Any, x: Any, w: Any) -> Any:
        return scan(lambda c, _: (jnp.sin(c * w), None), x, None, 9)[0]

    storage = Disk(tmp_path, checkpoints=3, transfer=0.1)
    ours = partial(checkpointed_scan, checkpoints=2, storage=storage)
    derived = lambda f: partial(_twice, f, derivative)  # noqa: E731
    assert_like_lax(final, derived, jnp.linspace(0.2, 1, 3), scan=ours, rtol=1e-5)


@pytest.mark.unchecked
def test_what_second_derivatives_hold() -> None:
    """As the page on budgets says: a budget once, twice, or up to four times."""
    loss = stencil(partial(checkpointed_scan, memory="4MB"), 1000)
    u = jnp.ones(10_000)
    along = jnp.cos(u)
    held = {
        (0.9, 1.1): jax.grad(lambda u: jax.jvp(loss, (u,), (along,))[1]),
        (1.9, 2.1): lambda u: jax.jvp(jax.grad(loss), (u,), (along,))[1],
        (2.8, 4.1): jax.grad(lambda u: jnp.vdot(jax.grad(loss)(u), along)),  # four in jax 0.10
    }
    for (least, most), derivative in held.items():
        assert least < temporaries(derivative, u) / 4e6 < most
