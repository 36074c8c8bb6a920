"""Where derivatives were wrong, or an error, against `lax.scan`; collectives, effects, leaks."""

import gc
import logging
from functools import partial
from tempfile import gettempdir
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Jaxpr
from jax.interpreters import partial_eval as pe
from jax.sharding import PartitionSpec as P
from support.oracles import assert_like_lax, by_python, scan_as_while, with_reverse_rule

from jax_revolve import Disk, bounded_while_loop, checkpointed_scan
from jax_revolve._compat.jaxprs import eval_jaxpr

quick = pytest.mark.usefixtures("compile_quickly")


SCAN = partial(checkpointed_scan, checkpoints=2)
LOOPS = {
    "scan": SCAN,
    "blocks": partial(checkpointed_scan, checkpoints=2, block_size=3),
    "while": lambda body, init, _, length: (
        bounded_while_loop(
            lambda state: state[1] < length,
            lambda state: (body(state[0], None)[0], state[1] + 1),
            (init, 0),
            max_steps=16,
            checkpoints=2,
        )[0],
        None,
    ),
}


def collective(scan: Any, a: Any, xs: Any) -> Any:
    """A step that adds over an axis, of a batch or of a mesh."""

    def step(u: Any, x: Any) -> Any:
        return jnp.sin(u * x + lax.psum(u, "i")), u * lax.axis_index("i")

    u, ys = scan(step, a, xs)
    return lax.psum(jnp.sum(u**2) + jnp.sum(ys), "i")


def over_a_batch(one: Any) -> Any:
    batched = lambda f: jax.vmap(f, (0, 1), axis_name="i")  # noqa: E731
    total = lambda *x: jnp.sum(batched(one)(*x))  # noqa: E731
    each = batched(jax.grad(one)), jax.grad(total), jax.hessian(total)
    return lambda *x: [f(*x) for f in each]


def over_a_mesh(check_vma: bool, one: Any) -> Any:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("i",))
    specs = P("i"), P(None, "i")
    shard = partial(jax.shard_map, mesh=mesh, in_specs=specs, check_vma=check_vma)
    total, inside = shard(one, out_specs=P()), shard(jax.grad(one, (0, 1)), out_specs=specs)
    each = jax.grad(total, (0, 1)), inside, jax.hessian(total)
    return lambda *x: [f(*x) for f in each]


@pytest.mark.parametrize(
    "over", [over_a_batch, partial(over_a_mesh, True), partial(over_a_mesh, False)]
)
@quick
def test_collectives(over: Any) -> None:
    """Differentiated from outside and inside, and twice."""
    arguments = jnp.arange(4.0) / 8, jnp.cos(jnp.arange(20.0)).reshape(5, 4)
    assert_like_lax(collective, over, *arguments, scan=SCAN)


def test_unbatched_stays_unbatched() -> None:
    """Under vmap, results that do not depend on the batch are not computed for every example."""

    def program(a: Any) -> Any:
        step = lambda carry, _: ((carry[0] * a, carry[1] + 1), carry[1])  # noqa: E731
        (_, count), ys = checkpointed_scan(step, (a, 0), length=4)
        return count, ys

    count, ys = jax.vmap(program, out_axes=None)(jnp.ones(3))
    assert (count, ys.tolist()) == (4, [0, 1, 2, 3])


def test_debug_print_in_the_body(capsys: pytest.CaptureFixture[str]) -> None:
    def run(a: Any) -> Any:
        def step(u: Any, i: Any) -> Any:
            jax.debug.print("step {}", i, ordered=True)
            return jnp.sin(u), None

        return checkpointed_scan(step, a, jnp.arange(3))[0]

    jax.jit(run)(1.0).block_until_ready()
    jax.effects_barrier()
    assert capsys.readouterr().out.split("\n") == ["step 0", "step 1", "step 2", ""]


def test_same_function_compiles_once_without_jit(caplog: pytest.LogCaptureFixture) -> None:
    step = lambda u, x: (jnp.sin(u) * x, u)  # noqa: E731
    gradient = jax.grad(lambda a: checkpointed_scan(step, a, jnp.arange(8.0), checkpoints=2)[0])
    gradient(0.3)
    with caplog.at_level(logging.WARNING, "jax"), jax.log_compiles():
        gradient(0.4)
        assert not [r for r in caplog.messages if r.startswith("Compiling")]
        jax.jit(lambda x: x + 1)(0.4)
        assert [r for r in caplog.messages if r.startswith("Compiling")]


def test_forward_over_reverse_inside_checkpoint_of_a_custom_vjp() -> None:
    """What `jax.checkpoint` computes at once must be the primal half of the step: it was the loop
    itself, whose custom_vjp functions have no forward mode, and another derivative in reverse."""

    half_the_slope = with_reverse_rule(jnp.sin, lambda x, ct: 0.5 * ct * jnp.cos(x) * x)

    def program(scan: Any, a: Any) -> Any:
        return scan(lambda u, _: (half_the_slope(u * a) + 0.1, None), a, None, 3)[0]

    for scan in (checkpointed_scan, lax.scan):
        gradient = jax.grad(jax.checkpoint(partial(program, scan)))
        for second in (jax.jvp(gradient, (0.7,), (1.0,))[1], jax.grad(gradient)(0.7)):
            np.testing.assert_allclose(second, 0.6773562231527733, rtol=1e-12)


def stopped(scan: Any, a: Any) -> Any:
    step = lambda c, x: (c + 1, lax.stop_gradient(x))  # noqa: E731
    return scan(step, 0, jnp.stack([a, a]))[1].sum()


def integers(scan: Any, a: Any) -> Any:
    return scan(lambda c, x: (c + (x > a), None), 0, jnp.arange(5.0))[0] * a


def counted(scan: Any, a: Any) -> Any:
    if scan is lax.scan:
        return lax.stop_gradient(jnp.ceil(a))
    return bounded_while_loop(lambda c: c < a, lambda c: c + 1.0, 0.0, max_steps=9)


@pytest.mark.parametrize("loss", [stopped, integers, counted])
def test_loops_whose_results_have_no_derivative(loss: Any) -> None:
    """JAX does not ask a derivative rule about results none of which has one. The answer to "which
    have" was then empty, and differentiating such a loop failed, forwards and in reverse."""
    assert_like_lax(loss, lambda f: lambda a: (jax.grad(f)(a), jax.jvp(f, (a,), (a,))), 2.0)
    assert jax.grad(partial(loss, checkpointed_scan))(2.0) == jax.grad(partial(loss, lax.scan))(2.0)


def stencil(_: Any, u: Any, x: Any) -> Any:
    u = u + 0.1 * (jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1)) - 0.01 * u**3 + 0.01 * x
    return u, jnp.tanh(u * x)


def recurrent(weights: Any, u: Any, x: Any) -> Any:
    u = jnp.tanh(weights @ u + x)
    return u, u


@pytest.mark.parametrize("step", [stencil, recurrent])
@pytest.mark.usefixtures("default_precision")
def test_gradients_equal_to_the_last_bit(step: Any) -> None:
    """In single precision on a CPU."""
    u, xs = (jax.random.normal(jax.random.key(len(n)), n) for n in ((16,), (37, 16)))

    def loss(scan: Any, u: Any, xs: Any) -> Any:
        weights = jnp.cos(jnp.arange(u.size**2, dtype=u.dtype)).reshape(u.size, u.size) / 3
        u, ys = scan(partial(step, weights), u, xs)
        return jnp.sum(u**2) + jnp.sum(ys**3)

    for checkpoints in (1, 7, "all"):
        scan = partial(checkpointed_scan, checkpoints=checkpoints, block_size=1)
        assert_like_lax(loss, partial(jax.grad, argnums=(0, 1)), u, xs, scan=scan, rtol=0)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    "step", [jnp.sin, lambda c: c.at[1].set(jnp.sin(c[0]))], ids=["sine", "array"]
)
@quick
def test_no_tracer_leaves_its_trace(step: Any, loop: str) -> None:
    """What a step's linearization was traced with was held until the trace had ended; so was what
    the pullback reads of an array that the step writes."""

    def loss(x: Any) -> Any:
        return jnp.sum(LOOPS[loop](lambda c, _: (step(c), None), x, None, 10)[0])

    with jax.checking_leaks():
        jax.grad(loss)(jnp.ones(3))


@quick
def test_no_tracer_stays_in_the_check_of_an_inverse() -> None:
    """The callback that raises its error held the reverse sweep's values."""

    def loss(x: Any) -> Any:
        step, inverse = lambda c, _: (0.9 * c, None), lambda c, *_: c / 0.9
        return jnp.sum(checkpointed_scan(step, x, None, 10, inverse=inverse)[0])

    with jax.checking_leaks():
        jax.grad(loss)(jnp.ones(3))


def sine_with_rule(x: Any) -> Any:
    """With a rule made where it is used."""
    sine = jax.custom_vjp(jnp.sin)
    sine.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (jnp.cos(x) * ct,))
    return sine(x)


FORGOTTEN: dict[str, Any] = {
    "rule": lambda x, n: checkpointed_scan(lambda c, _: (n * sine_with_rule(c), None), x, None, 5)[
        0
    ],
    "inverse": lambda x, n: checkpointed_scan(
        lambda c, _: (n * c, None), x, None, 5, inverse=lambda c, *_: c / n
    )[0],
    "files": lambda x, n: checkpointed_scan(
        lambda c, _: (jnp.sin(n * c), None),
        x,
        None,
        5,
        checkpoints=1,
        storage=Disk(gettempdir(), checkpoints=2, transfer=0.1),
    )[0],
}


@pytest.mark.parametrize("name", FORGOTTEN)
@quick
def test_what_is_known_of_a_loop_is_forgotten_with_it(name: str) -> None:
    """A fact that referred to its loop kept it for ever: a Hessian with files, anything with an
    inverse."""

    def left_after(n: float) -> int:
        loss = lambda x: jnp.sum(FORGOTTEN[name](x, n) ** 2)  # noqa: E731
        jax.jit(jax.hessian(loss))(jnp.ones(2))
        jax.vmap(jax.vjp(jax.grad(loss), jnp.ones(2))[1])(jnp.ones((3, 2)))
        jax.grad(loss)(jnp.ones(2))
        jax.clear_caches()
        gc.collect()
        return sum(isinstance(x, Jaxpr) for x in gc.get_objects())

    left_after(0.5)  # what JAX itself keeps of first calls
    assert left_after(0.6) == left_after(0.7)


# Rules


twice_as_steep = jax.custom_jvp(jnp.sin)
twice_as_steep.defjvps(lambda t, y, x: 2 * jnp.cos(x) * t)

nondifferentiable = jax.custom_jvp(lambda x: x)


def refuse(*_: Any) -> Any:
    raise NotImplementedError("differentiated")


nondifferentiable.defjvp(refuse, symbolic_zeros=True)

scaled = with_reverse_rule(lambda x: 0.9 * x, lambda _, ct: 0.9 * ct)


def with_rules(loop: Any, x: Any) -> Any:
    def step(carry: Any, _: None) -> tuple[Any, None]:
        time, y = carry
        return (time + 0.1, twice_as_steep(scaled(y) + nondifferentiable(time))), None

    (_, y), _ = loop(step, (0.5, x), None, 7)
    return y


def forward_over_reverse(f: Any) -> Any:
    return jax.jacfwd(jax.grad(f))


def reverse_over_reverse(f: Any) -> Any:
    return jax.grad(lambda x: jnp.sum(jax.grad(f)(x)))


def forward_over_reverse_twice(f: Any) -> Any:
    return jax.jacfwd(reverse_over_reverse(f))


@pytest.mark.parametrize(
    ("loop", "derivative"),
    [
        *(("scan", forward_over_reverse), ("scan", reverse_over_reverse)),
        *(("scan", forward_over_reverse_twice), ("blocks", reverse_over_reverse)),
        ("while", forward_over_reverse),
        pytest.param("while", forward_over_reverse_twice, marks=pytest.mark.slow),
    ],
)
@quick
def test_rules_of_functions_in_the_body(loop: str, derivative: Any) -> None:
    """Derivatives of gradients linearized the step in all that it takes, also where that is an
    error, and at third order those of a scan forgot the rule of a custom_jvp function, as those of
    lax.scan do at second order."""
    ours, theirs = (
        jax.jit(derivative(partial(with_rules, each)))(0.3) for each in (LOOPS[loop], by_python)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-10)


UNUSED = {
    "auxiliary": lambda f: lambda x: jax.jvp(f, (x,), (x,), has_aux=True),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,))[1],
    "grad": jax.grad,
    "forward over reverse": forward_over_reverse,
    "reverse over reverse": reverse_over_reverse,
    "vmap of forward over reverse": lambda f: (
        lambda x: jax.vmap(lambda x: jax.jvp(jax.grad(f), (x,), (x,)))(jnp.stack([x, x]))
    ),
}


@pytest.mark.parametrize(
    ("place", "derivative"),
    [
        pytest.param(place, name, marks=pytest.mark.slow if (i + j) % 2 else [])
        for i, place in enumerate(["body", "y", "carry"])
        for j, name in enumerate(UNUSED)
    ],
)
@quick
def test_what_nobody_uses_is_not_differentiated(place: str, derivative: str) -> None:
    """`lax.scan` drops the call of a `custom_vjp` function whose result leads to none that is used,
    under `jit`; ours was an error in forward mode."""

    def total(scan: Any, x: Any) -> Any:
        def step(carry: Any, _: None) -> tuple[Any, Any]:
            x, other = carry
            extra = scaled(x)
            other = other + extra if place == "carry" else other
            return (jnp.tanh(x) * 1.1, other), extra if place == "y" else None

        (x, _), ys = scan(step, (x, jnp.zeros_like(x)), None, 20)
        return (jnp.sum(x**2), ys) if derivative == "auxiliary" else jnp.sum(x**2)

    assert_like_lax(total, UNUSED[derivative], jnp.linspace(0.1, 1, 4))


@pytest.mark.parametrize(
    "options", [{"memory": 2000}, {"checkpoints": 2, "block_size": 3}], ids=str
)
@quick
def test_linearize_takes_what_has_no_reverse_mode(options: dict[str, Any]) -> None:
    """A while loop in the step has a forward mode alone, and `jax.linearize` asks for no more. To
    choose a plan the step was transposed, which JAX refuses."""

    def total(scan: Any, x: Any, times: Any) -> Any:
        def step(x: Any, _: None) -> tuple[Any, None]:
            return lax.fori_loop(0, times, lambda _, x: jnp.sin(x) * 1.1, x), None

        return jnp.sum(scan(step, x, None, 20)[0])

    def linearized(f: Any) -> Any:
        def run(x: Any, times: Any) -> Any:
            value, tangent = jax.linearize(lambda x: f(x, times), x)
            return value, tangent(x)

        return run

    ours = partial(checkpointed_scan, **options)
    assert_like_lax(total, linearized, jnp.linspace(0.1, 1, 4), 3, scan=ours)
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        jax.jit(jax.grad(partial(total, ours)))(jnp.ones(4), 3)


def test_what_does_not_depend_on_the_linear_operands_is_known() -> None:
    """The pivots of a tridiagonal solver, which later values are divided by, were taken for linear
    with the rest of the loop: "nonlinear div can't be transposed". Found in a neuron simulator."""

    def eliminate(scan: Any, d: Any, b: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            pivot, x = carry
            pivot = row[0] - 1 / pivot
            x = (row[1] - x) / pivot
            return (pivot, x), (pivot, x)

        pivots, xs = scan(step, (2 * d[0], 0 * b[0]), (d, b))[1]
        return xs / pivots

    d, ones = 4 + jnp.arange(20.0), jnp.ones(20)
    columns = jax.vmap(partial(eliminate, lax.scan, d))(jnp.eye(20))
    for scan in (checkpointed_scan, scan_as_while().scan):
        (transposed,) = jax.linear_transpose(partial(eliminate, scan, d), ones)(ones)
        np.testing.assert_allclose(transposed, jnp.sum(columns, axis=1), rtol=1e-12)


@pytest.mark.unchecked
@quick
@pytest.mark.parametrize("options", [{}, {"checkpoints": 2, "block_size": 3}, {"memory": "1MB"}])
def test_export_with_a_symbolic_size(options: dict[str, Any]) -> None:
    """The sizes that plans are compared by were compared as symbols."""

    def loss(scan: Any, x: Any) -> Any:
        return jnp.sum(scan(lambda c, _: (0.9 * jnp.tanh(c) + 0.1 * x, None), x, length=7)[0] ** 2)

    def export(gradient: Any) -> Any:
        (size,) = jax.export.symbolic_shape("size")
        return jax.export.export(jax.jit(gradient))(jax.ShapeDtypeStruct((size, 3), jnp.float64))

    gradient = jax.grad(partial(loss, partial(checkpointed_scan, **options)))
    if "memory" in options:
        with pytest.raises(ValueError, match=r"memory must be None .* 1MB .*size, 3"):
            export(gradient)
        return
    x = jnp.linspace(0.0, 1.0, 12).reshape(4, 3)
    expected = jax.grad(partial(loss, lax.scan))(x)
    np.testing.assert_allclose(export(gradient).call(x), expected, rtol=1e-12)


@jax.custom_jvp
def threefold(x: Any) -> Any:
    return x * np.arange(3.0)


threefold.defjvp(lambda xs, ts: (2 * threefold(xs[0]), ts[0] * np.arange(3.0)))


@pytest.mark.parametrize("function", [threefold, jnp.sin])
@pytest.mark.parametrize("used", [(1, 1, 1, 1), (1, 1, 0, 0), (1, 1, 1, 0), (1, 0, 0, 0)])
def test_tangents_that_nobody_uses_are_dead_code(function: Any, used: Any) -> None:
    """As in `lax.scan`, but with some of them and a rule, whose values may be others then. The
    values stay those of rules."""

    def pruned(scan: Any) -> Any:
        def run(x: Any, a: Any) -> Any:
            step = lambda c, _: ((function(c[0]), jnp.cos(c[1]) * c[0]), None)  # noqa: E731
            return scan(step, (x, a), None, length=2)[0]

        inputs = [np.arange(3.0)] * 4
        closed = jax.make_jaxpr(lambda *at: jax.jvp(run, at[:2], at[2:]))(*inputs)
        part, needed = pe.dce_jaxpr(closed.jaxpr, [bool(u) for u in used])
        values = eval_jaxpr(part, closed.consts, *inputs[: sum(needed)])
        return values, needed

    (ours, needed), (theirs, expected) = pruned(checkpointed_scan), pruned(lax.scan)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12), ours, theirs)
    if function is not threefold or sum(used) != 3:
        assert needed == expected


def test_a_pullback_keeps_no_xs_that_no_step_reads() -> None:
    """Outside `jit`, where nothing removes them."""
    xs = jnp.ones((20, 5))

    def kept(step: Any) -> list[Any]:
        f = lambda xs: checkpointed_scan(lambda c, x: (step(c, x), None), xs[0], xs)[0]  # noqa: E731
        return [leaf for leaf in jax.tree.leaves(jax.vjp(f, xs)[1]) if leaf.size == xs.size]

    assert not kept(lambda c, x: 0.5 * c + x)
    assert len(kept(lambda c, x: jnp.sin(c) + x)) == 1  # to recompute the carry
