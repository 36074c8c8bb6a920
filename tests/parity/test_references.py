"""Loops whose steps read and write mutable references, as `lax.scan` runs them."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.calls import option
from support.oracles import assert_like_lax

from jax_revolve import (
    bounded_while_loop,
    checkpoint_loops,
    checkpointed_fori_loop,
    checkpointed_scan,
)

pytestmark = pytest.mark.usefixtures("compile_quickly")

A, XS = jnp.asarray(0.3), jnp.asarray(np.linspace(0.1, 0.9, 6))
CHECKPOINTED = partial(checkpointed_scan, checkpoints=2)


def of_all_kinds(scan: Any, a: Any, xs: Any) -> Any:
    """References that are read, written, added to, scanned over and made in a step."""
    gain, total = jax.new_ref(a * 2), jax.new_ref(a)
    trajectory, slices = jax.new_ref(xs * 0), jax.new_ref(jnp.cos(xs))

    def step(u: Any, inputs: Any) -> Any:
        i, x, slot = inputs
        own = jax.new_ref(u)
        own[...] += gain[...] * x
        trajectory[i] = jnp.sin(own[...]) * total[...]
        total[...] += 0.1 * own[...] * slot[...]
        slot[...] = slot[...] * u
        return jnp.tanh(own[...]), total[...] * x

    u, ys = scan(step, a, (jnp.arange(xs.shape[0]), xs, slices))
    return u, ys, gain[...], total[...], trajectory[...], slices[...]


def loss(scan: Any, a: Any, xs: Any) -> Any:
    return sum(jnp.sum(jnp.cos(x)) for x in of_all_kinds(scan, a, xs))


def of_second_order(fun: Any) -> Any:
    return jax.grad(lambda *at: sum(jnp.sum(g**2) for g in jax.grad(fun, (0, 1))(*at)), (0, 1))


@pytest.mark.parametrize("scan", [checkpointed_scan, CHECKPOINTED])
@pytest.mark.parametrize(
    "derivative",
    [
        lambda fun: jax.value_and_grad(fun, (0, 1)),
        lambda fun: lambda a, xs: jax.jvp(fun, (a, xs), (a, xs)),
        lambda fun: jax.grad(jax.checkpoint(fun), (0, 1)),
        pytest.param(
            of_second_order,
            marks=pytest.mark.skipif(
                jax.__version_info__ < (0, 12), reason="jax.lax has no second derivative here"
            ),
        ),
    ],
    ids=["grad", "jvp", "grad of checkpoint", "second order"],
)
def test_derivatives(scan: Any, derivative: Any) -> None:
    assert_like_lax(loss, derivative, A, XS, scan=scan)


def test_examples() -> None:
    """`jax.vmap` of `lax.scan` refuses some references over which it scans."""
    both = jnp.stack([A, 2 * A])
    found = jax.vmap(jax.grad(partial(loss, CHECKPOINTED)), (0, None))(both, XS)
    expected = [jax.grad(partial(loss, lax.scan))(a, XS) for a in both]
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_values_in_reverse_order() -> None:
    def reversed_scan(scan: Any, a: Any, xs: Any) -> Any:
        return of_all_kinds(partial(scan, reverse=True), a, xs)

    assert_like_lax(reversed_scan, lambda fun: fun, A, XS)


def test_a_program_is_rewritten() -> None:
    rewritten = checkpoint_loops(partial(loss, lax.scan), checkpoints=2, min_length=2)
    assert "checkpointed_loop" in str(jax.make_jaxpr(rewritten)(A, XS))
    expected = jax.grad(partial(loss, lax.scan), (0, 1))(A, XS)
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-10),
        jax.grad(rewritten, (0, 1))(A, XS),
        expected,
    )


def test_the_slots_hold_carries() -> None:
    """A loop that runs on a reference of 1000 numbers keeps two of them, not one for each step."""

    def final(x: Any) -> Any:
        state = jax.new_ref(x)

        def step(_: Any, __: Any) -> Any:
            state[...] = jnp.sin(state[...])
            return None, None

        CHECKPOINTED(step, None, length=100)
        return jnp.sum(state[...])

    compiled = jax.jit(jax.grad(final)).lower(jnp.ones(1000)).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 8 * 1000 * 8


def test_what_is_closed_over_is_written_once() -> None:
    """Also if the loop is differentiated: recomputed steps do not count."""
    count = jax.new_ref(jnp.int32(0))

    def step(u: Any, _: Any) -> Any:
        count[...] += 1
        return jnp.sin(u), None

    jax.grad(lambda u: CHECKPOINTED(step, u, length=7)[0])(1.0)
    assert count[...] == 7


@pytest.mark.parametrize("max_steps", [3, 20])
def test_a_condition_reads_what_the_body_writes(max_steps: int) -> None:
    def run(x: Any) -> Any:
        total = jax.new_ref(x)

        def body(n: Any) -> Any:
            total[...] *= 2
            return n + 1

        n = bounded_while_loop(lambda _: total[...] < 20, body, 0, max_steps=max_steps, throw=False)
        return total[...], n

    steps = min(max_steps, 5)
    (value, n), pullback = jax.vjp(run, jnp.asarray(1.0))
    assert (value, n) == (2**steps, steps)
    (ct,) = pullback((jnp.ones(()), np.zeros((), jax.dtypes.float0)))
    assert ct == 2**steps


def test_a_fori_loop() -> None:
    def run(x: Any) -> Any:
        total = jax.new_ref(x)

        def body(i: Any, u: Any) -> Any:
            total[...] += u * i
            return u * 1.1

        checkpointed_fori_loop(0, 5, body, x)
        return total[...]

    expected = 1 + sum(i * 1.1**i for i in range(5))
    np.testing.assert_allclose(jax.grad(run)(2.0), expected)


@jax.custom_vjp
def stash(reference: Any, x: Any) -> Any:
    del reference
    return x


def _stash_backward(reference: Any, ct: Any) -> Any:
    reference[...] = ct
    return None, ct


stash.defvjp(lambda reference, x: (x, reference), _stash_backward)


def test_a_rule_that_writes_is_as_in_lax() -> None:
    """The reverse pass of the user's rule writes, so steps cannot be recomputed."""
    found = jax.new_ref(jnp.zeros(()))

    def run(scan: Any, x: Any) -> Any:
        return scan(lambda u, _: (jnp.sin(stash(found, jnp.sin(u))), None), x, length=2)[0]

    with pytest.raises(NotImplementedError, match=r"checkpoints must be None for this loop, but"):
        run(CHECKPOINTED, 1.0)
    with pytest.warns(
        UserWarning, match="runs as in jax.lax, without checkpoints, because (a fun|its mut)"
    ):
        ours = jax.grad(partial(run, checkpointed_scan))(1.0), found[...]
    assert ours == (jax.grad(partial(run, lax.scan))(1.0), found[...])
    assert found[...] != 0


def test_a_condition_that_writes_is_as_in_lax() -> None:
    count = jax.new_ref(jnp.int32(0))

    def cond(n: Any) -> Any:
        count[...] += 1
        return n < 9

    with pytest.warns(UserWarning, match="its condition writes to a mutable reference"):
        n = bounded_while_loop(cond, lambda n: n + 1, 0, max_steps=4, throw=False)
    assert n == 4
    assert count[...] > 0


def test_gradients_are_accumulated_into_references() -> None:
    """Of the loop's operands, by the pullback's `with_refs`."""

    def final(scan: Any, w: Any, xs: Any) -> Any:
        return scan(lambda u, x: (jnp.tanh(w * u + x), u), w, xs)[0]

    def accumulated(scan: Any) -> Any:
        total, of_xs = jax.new_ref(jnp.ones(())), jax.new_ref(XS * 0)
        pullback: Any
        value, pullback = jax.vjp(partial(final, scan), A, XS)
        pullback.with_refs(total, of_xs)(jnp.ones_like(value))
        return total[...], of_xs[...]

    expected = accumulated(lax.scan)
    for scan in (checkpointed_scan, CHECKPOINTED):
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-10), accumulated(scan), expected)


@jax.custom_jvp
def rounded(x: Any) -> Any:
    return x


rounded.defjvp(lambda primals, tangents: (jnp.round(primals[0]), 3 * tangents[0]))


@jax.custom_vjp
def rounded_in_reverse(x: Any) -> Any:
    return x


rounded_in_reverse.defvjp(lambda x: (jnp.round(x), x), lambda _, ct: (3 * ct,))

INSIDE = {
    "step": lambda f, u: f(u),
    "jit": lambda f, u: jax.jit(f)(u),
    "scan": lambda f, u: lax.scan(lambda u, _: (f(u), None), u, length=2)[0],
    "fori_loop": lambda f, u: lax.fori_loop(0, 2, lambda _, u: f(u), u),
    "checkpointed_scan": lambda f, u: CHECKPOINTED(lambda u, _: (f(u), None), u, length=2)[0],
}


@pytest.mark.parametrize("function", [rounded, rounded_in_reverse])
@pytest.mark.parametrize("where", INSIDE)
def test_derivative_rules_stay(where: str, function: Any) -> None:
    """However deep the functions with these rules are in what uses the references."""

    def run(scan: Any, x: Any) -> Any:
        total = jax.new_ref(x)

        def add(u: Any) -> Any:
            total[...] += 0.5 * (v := function(1.3 * u))
            return 0.9 * v

        u, _ = scan(lambda u, _: (INSIDE[where](add, u), None), x, length=3)
        return u + total[...]

    expected = jax.value_and_grad(partial(run, lax.scan))(1.9)
    for scan in (checkpointed_scan, CHECKPOINTED):
        np.testing.assert_allclose(jax.value_and_grad(partial(run, scan))(1.9), expected, rtol=1e-6)


@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="this JAX has no HiPrim")
@pytest.mark.parametrize("where", ["step", "jit", "scan"])
def test_rules_that_are_methods_stay(where: str) -> None:
    from jax.experimental import hijax

    class Rounded(hijax.HiPrim):
        def __init__(self, aval: Any) -> None:
            self.in_avals, self.out_aval, self.params = (aval,), aval, {}
            super().__init__()

        def expand(self, *args: Any) -> Any:
            return args[0]

        def jvp(self, primals: Any, tangents: Any) -> Any:
            return jnp.round(primals[0]), 3 * tangents[0]

        lin, linearized = hijax.linearize_from_jvp
        vjp_fwd, vjp_bwd_retval = hijax.vjp_from_jvp

    test_derivative_rules_stay(where, lambda x: Rounded(jax.typeof(x))(x))


def sines(x: Any) -> Any:
    """A reference that nobody else sees."""
    own = jax.new_ref(x)
    own[...] = jnp.sin(own[...]) * 2
    return jax.freeze(own)


in_reverse = jax.custom_vjp(sines)
in_reverse.defvjp(lambda x: (sines(x), x), lambda x, ct: (sines(ct) * jnp.cos(x),))
in_forward = jax.custom_jvp(sines)
in_forward.defjvp(lambda xs, ts: (sines(*xs), 3 * sines(*xs) * ts[0]))

OWN: dict[str, Any] = {
    "reverse": in_reverse,
    "forward": in_forward,
    "jit": jax.jit(in_reverse),
    "checkpoint": jax.checkpoint(in_reverse),
    "branch": lambda x: lax.cond(x > 0, in_reverse, sines, x),
    "scan": partial(INSIDE["scan"], in_reverse),
    "fori_loop": partial(INSIDE["fori_loop"], in_forward),
    "checkpointed_scan": partial(INSIDE["checkpointed_scan"], in_reverse),
}


rules_are_no_objects = pytest.mark.skipif(
    getattr(jax.config, "jax_custom_vjp3", False),
    reason="such objects run as in jax.lax: test_such_a_rule_as_an_object_is_as_in_lax",
)


@rules_are_no_objects
@pytest.mark.parametrize("function", OWN.values(), ids=OWN)
def test_references_of_a_rule_that_are_its_own(function: Any) -> None:
    """They were counted as used. The loop has checkpoints, or this would raise an error."""

    def run(scan: Any, x: Any) -> Any:
        return scan(lambda u, _: (0.9 * function(u), None), x, length=5)[0]

    ours, of_lax = partial(run, CHECKPOINTED), partial(run, lax.scan)
    np.testing.assert_allclose(ours(A), jax.vjp(of_lax, A)[0], rtol=1e-12)
    np.testing.assert_allclose(jax.grad(ours)(A), jax.grad(of_lax)(A), rtol=1e-12)
    if function is in_reverse:
        both = jnp.stack([A, 2 * A])
        found = jax.vmap(jax.grad(ours))(both)
        np.testing.assert_allclose(found, [jax.grad(of_lax)(a) for a in both], rtol=1e-12)


@rules_are_no_objects
@pytest.mark.parametrize("function", [in_reverse, in_forward])
def test_second_derivatives_of_such_a_rule(function: Any) -> None:
    def twice(scan: Any, x: Any) -> Any:
        run = lambda x: scan(lambda u, _: (0.9 * function(u), None), x, length=5)[0]  # noqa: E731
        return jax.grad(lambda x: jnp.sin(jax.grad(run)(x)))(x)

    np.testing.assert_allclose(twice(CHECKPOINTED, A), twice(lax.scan, A), rtol=1e-12)


@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="its effects are none here")
def test_such_a_rule_as_an_object_is_as_in_lax() -> None:
    with option("jax_custom_vjp3"):
        run = lambda scan, x: scan(lambda u, _: (in_reverse(u), None), x, length=3)[0]  # noqa: E731
        with pytest.warns(UserWarning, match="an object in it that has rules of its own makes mut"):
            ours = jax.grad(partial(run, checkpointed_scan))(A)
        np.testing.assert_allclose(ours, jax.grad(partial(run, lax.scan))(A), rtol=1e-12)


def weights(scan: Any, dtype: Any = jnp.float32) -> Any:
    """Gradients of stacked weights, and of a shared one, of several microbatches."""
    n, layers = 64, 12
    stacked = jnp.asarray(np.random.default_rng(0).normal(size=(layers, n, n)), dtype) / n**0.5
    batches = jnp.linspace(0.1, 1.0, 3 * n, dtype=dtype).reshape(3, n)

    def loss(x: Any, weights: Any, shared: Any) -> Any:
        return jnp.sum(scan(lambda c, w: (jnp.tanh(w @ c) * shared, None), x, weights)[0] ** 2)

    def run(stacked: Any, shared: Any, batches: Any) -> Any:
        sums = jax.new_ref(jnp.ones_like(stacked)), jax.new_ref(shared)

        def microbatch(_: Any, x: Any) -> Any:
            pullback: Any
            value, pullback = jax.vjp(partial(loss, x), stacked, shared)
            pullback.with_refs(*sums)(jnp.ones_like(value))
            return None, None

        lax.scan(microbatch, None, batches)
        return [x[...] for x in sums]

    return run, (stacked, jnp.ones(n, dtype), batches)


@pytest.mark.parametrize(
    "scan", [checkpointed_scan, CHECKPOINTED, partial(checkpointed_scan, block_size=3)]
)
def test_gradients_are_accumulated_in_place(scan: Any) -> None:
    """Without a second array of all weights."""
    run, inputs = weights(scan)
    compiled = jax.jit(run).lower(*inputs).compile()
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6),
        compiled(*inputs),
        jax.jit(weights(lax.scan)[0])(*inputs),
    )
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < inputs[0].nbytes / 4


def accumulated(scan: Any, a: Any, xs: Any) -> Any:
    sums = jax.new_ref(jnp.sin(a)), jax.new_ref(jnp.cos(xs))
    fun = lambda a, xs: scan(lambda u, x: (jnp.tanh(a * u + x), u), a, xs)[0]  # noqa: E731
    pullback: Any
    value, pullback = jax.vjp(fun, a, xs)
    pullback.with_refs(*sums)(jnp.ones_like(value))
    return [x[...] for x in sums]


@pytest.mark.parametrize(
    "transform",
    [
        lambda run: jax.jvp(run, (A, XS), (A, XS)),
        pytest.param(
            lambda run: jax.grad(lambda *at: jnp.sum(jnp.sin(run(*at)[1])), (0, 1))(A, XS),
            marks=pytest.mark.skipif(
                jax.__version_info__ < (0, 12), reason="jax.lax has no second derivative here"
            ),
        ),
    ],
    ids=["jvp", "grad"],
)
def test_what_is_accumulated_has_derivatives(transform: Any) -> None:
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-10),
        transform(partial(accumulated, CHECKPOINTED)),
        transform(partial(accumulated, lax.scan)),
    )


def test_what_is_accumulated_has_examples() -> None:
    """`jax.vmap` of `lax.scan` refuses such references."""
    both = jnp.stack([A, 2 * A])
    found = jax.vmap(partial(accumulated, CHECKPOINTED), (0, None))(both, XS)
    expected = zip(*(accumulated(lax.scan, a, XS) for a in both), strict=True)
    for x, each in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, jnp.stack(each), rtol=1e-10)
