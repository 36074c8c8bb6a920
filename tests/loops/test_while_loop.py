"""`bounded_while_loop` beside its parity with lax: counts, finished examples, its own arguments."""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec
from support.asked import for_bound
from support.evaluations import evaluations, repeat
from support.oracles import assert_close, masked_while_loop, scan_as_while

from jax_revolve import bounded_while_loop, checkpoint_loops, checkpointed_fori_loop
from jax_revolve.schedule import online

pytestmark = pytest.mark.usefixtures("compile_quickly")


# Body evaluations, counted while the program runs


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("steps", "checkpoints", "bound"),
    [(8, 4, 16), (8, 4, 2**20), (0, 3, 4096), (1, 3, 4096), (30, 2, 4096)],
)
def test_evaluations_follow_the_steps_not_the_bound(
    steps: int, checkpoints: int, bound: int
) -> None:
    expected = online.evaluations(steps, checkpoints) if steps else 0
    assert evaluations(steps, checkpoints=checkpoints, max_steps=bound) == expected


@pytest.mark.unchecked
def test_a_batch_runs_as_long_as_its_longest_example() -> None:
    of_batch = partial(evaluations, jnp.arange(1, 65), checkpoints=10, max_steps=4096)
    of_all = lambda loss: jax.value_and_grad(lambda a, n: jax.vmap(loss)(a, n).sum())  # noqa: E731
    assert of_batch(jax.vmap) == 64
    assert of_batch(of_all) == online.evaluations(64, 10)


def test_functions_are_traced_once() -> None:
    traces = []

    def loss(a: Any) -> Any:
        go_on = lambda u: traces.append("cond") or u < 10  # noqa: E731
        body = lambda u: traces.append("body") or u * a  # noqa: E731
        return bounded_while_loop(go_on, body, a, max_steps=9, with_steps=True)[0]

    jax.make_jaxpr(jax.vmap(jax.hessian(loss)))(jnp.array([1.5, 2.0]))
    assert sorted(traces) == ["body", "cond"]


# Examples that are done


def _stopping(a: Any, c: Any, start: Any) -> Any:
    """Stops where square root, logarithm, reciprocal and norm have no derivative."""

    def body(state: Any) -> Any:
        u, total = state
        x = u - c
        norm = jnp.sqrt(jnp.sum(jnp.stack([x, 2 * x]) ** 2))
        total = total + a**2 * jnp.sqrt(x) + jnp.log(x) * a + 1 / x + a * norm * x**1.5
        return jnp.maximum(u - 1.0, c), total

    init = (start, jnp.zeros_like(start))
    return bounded_while_loop(lambda s: s[0] > c, body, init, max_steps=10, checkpoints=2)[1]


ARGUMENTS = (
    jnp.array([1.0, 2.0, 3.0, 4.0]),
    jnp.array([0.0, 1.0, 2.0, 0.5]),
    jnp.array([0.0, 3.0, 2.0, 4.5]),
)
"""The first and the third example do not start."""


def _along(f: Callable[..., Any], every: tuple[int, ...]) -> Callable[..., Any]:
    gradient = jax.grad(f, every)
    return lambda *x: jax.jvp(gradient, x, tuple(map(jnp.cos, x)))


@pytest.mark.parametrize(("derivative", "shared"), [(jax.grad, (0, 1)), (_along, (0,))])
def test_gradient_of_a_batch_of_examples_that_are_done(
    derivative: Callable[..., Any], shared: tuple[int, ...]
) -> None:
    """They do no harm, also where what the examples share gets the sum of their cotangents."""
    in_axes = tuple(None if i in shared else 0 for i in range(3))
    arguments = tuple(x[0] + 0.5 if i in shared else x for i, x in enumerate(ARGUMENTS))
    total = lambda *x: jnp.sum(jax.vmap(_stopping, in_axes)(*x))  # noqa: E731

    def total_of_each(*x: Any) -> Any:
        one = jax.jit(_stopping)
        return sum(one(*(y if i in shared else y[k] for i, y in enumerate(x))) for k in range(4))

    ours, theirs = (jax.jit(derivative(f, (0, 1, 2)))(*arguments) for f in (total, total_of_each))
    assert all(jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(ours))
    assert_close(ours, theirs)


def _masked(cond: Any, body: Any, start: Any, max_steps: int) -> Any:
    keep = lambda s: jax.tree.map(partial(jnp.where, cond(s)), body(s), s)  # noqa: E731
    return lax.scan(lambda s, _: (keep(s), None), start, None, max_steps)[0]


def test_collectives_see_the_examples_that_are_done() -> None:
    """Examples that were done used to be computed from their initial values, which `lax.psum` then
    added up for the others: results and derivatives were wrong, without an error."""

    def run(loop: Callable[..., Any], x: Any, k: Any) -> Any:
        def body(state: Any) -> Any:
            i, x, seen = state
            x = x + k * jnp.sin(lax.psum(x * x + seen[i], "i"))
            return i + 1, x, seen.at[i].set(x)

        state = (jnp.int32(0), x, jnp.full(12, 0.1))
        return loop(lambda s: s[1] < 1.0, body, state, max_steps=12)[1]

    starts = jnp.array([0.1, 0.5, 0.2])

    def derivatives(loop: Callable[..., Any]) -> Any:
        of_all = lambda x, k: jax.vmap(partial(run, loop), (0, None), axis_name="i")(x, k)  # noqa: E731
        of_each = jax.vmap(jax.grad(partial(run, loop), 1), (0, None), axis_name="i")
        gradient = jax.grad(lambda x, k: jnp.sum(of_all(x, k) * jnp.arange(3.0)), (0, 1))
        return jax.jit(lambda: (of_all(starts, 0.1), gradient(starts, 0.1), of_each(starts, 0.1)))()

    ours = derivatives(partial(bounded_while_loop, checkpoints=2, block_size=2, throw=False))
    assert_close(ours, derivatives(_masked))


@pytest.mark.parametrize("draw", [jax.random.uniform, lambda k: jax.random.gamma(k, 2.0)])
@pytest.mark.parametrize("name", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_random_numbers_of_a_batch_are_those_of_lax(name: str, draw: Any) -> None:
    """Some implementations draw for all examples at once: their numbers depend on the keys of the
    others, done or not. Examples that were done had other keys."""

    def drawn(loop: Callable[..., Any]) -> Any:
        def run(steps: Any, key: Any) -> Any:
            def body(state: Any) -> Any:
                i, key, x = state
                key, own = jax.random.split(key)
                return i + 1, key, x + draw(own) * jnp.sin(x)

            return loop(lambda s: s[0] < steps, body, (0, key, 1.0))[2]

        keys = jax.random.split(jax.random.key(1, impl=name), 3)
        return jax.jit(jax.vmap(run))(jnp.array([3, 7, 5]), keys)

    assert_close(drawn(partial(bounded_while_loop, max_steps=9)), drawn(lax.while_loop))


def _in_a_jvp_rule(x: Any) -> Any:
    sine = jax.custom_jvp(jnp.sin)
    sine.defjvp(lambda xs, ts: (jnp.sin(xs[0]), (1 + lax.psum(xs[0], "i")) * ts[0]))
    return sine(x)


def _in_a_backward_rule(x: Any) -> Any:
    sine = jax.custom_vjp(jnp.sin)
    sine.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct + ct * lax.psum(x, "i"),))
    return jax.jit(sine)(x)


def _in_a_forward_rule(x: Any) -> Any:
    sine = jax.custom_vjp(jnp.sin)
    sine.defvjp(lambda x: (jnp.sin(x), lax.psum(x, "i")), lambda x, ct: (ct * x,))
    return lax.cond(x > -9, sine, sine, x)


def _in_a_solve(x: Any) -> Any:
    def transposed(_: Any, b: Any) -> Any:
        return b / 2 + 0.1 * lax.psum(b, "i")

    return lax.custom_linear_solve(lambda v: 2 * v, x, lambda _, b: b / 2, transposed)


@pytest.mark.parametrize(
    "function", [_in_a_jvp_rule, _in_a_backward_rule, _in_a_forward_rule, _in_a_solve]
)
def test_collectives_in_derivative_rules(function: Any) -> None:
    """The rules saw the initial values of examples that were done."""

    def gradients(loop: Callable[..., Any]) -> Any:
        def run(steps: Any, x: Any) -> Any:
            body = lambda s: (s[0] + 1, function(s[1]) * 0.9 + 0.1)  # noqa: E731
            return loop(lambda s: s[0] < steps, body, (0, x), max_steps=9)[1]

        each = jax.vmap(jax.grad(run, 1), axis_name="i")
        return jax.jit(each)(jnp.array([3, 7, 5]), jnp.arange(1.0, 4.0))

    assert_close(gradients(bounded_while_loop), gradients(_masked))


def test_a_condition_with_a_loop_of_its_own() -> None:
    """A trace of the batched loop then has another loop before it."""

    def run(x: Any) -> Any:
        far = lambda x: lax.fori_loop(0, 2, lambda _, y: y * y, x) > 1.5  # noqa: E731
        return bounded_while_loop(far, jnp.sqrt, x, max_steps=9)

    starts = jnp.array([3.0, 1.1, 9.0])
    each = jnp.stack([jax.jit(jax.grad(run))(x) for x in starts])
    assert_close(jax.grad(lambda x: jnp.sum(jax.vmap(run)(x)))(starts), each)


# Leaves that the restart set must keep


def _check_against_scan(
    body: Callable[[Any, Any, Any], Any], start: Any, result: Any, steps: int, *derivatives: Any
) -> None:
    """Derivatives of a loop whose `body(a, i, state)` starts from `start(a)`."""

    def run(scan: Any, a: Any) -> Any:
        step = lambda state, i: (body(a, i, state), None)  # noqa: E731
        return result(*scan(step, start(a), jnp.arange(steps))[0])

    for derivative in derivatives:
        loops = scan_as_while(checkpoints=3).scan, lax.scan
        assert_close(*(jax.jit(derivative(partial(run, scan)))(0.7) for scan in loops))


def test_a_location_written_twice_and_read_back() -> None:
    def body(a: Any, i: Any, state: Any) -> Any:
        buffer, unread, total = state
        new = jnp.sin(a * buffer[(i + 2) % 3]) + 0.3 * buffer[i % 3]
        return buffer.at[i % 3].set(new), unread.at[i % 5].set(new * a), total + new**2

    _check_against_scan(
        body,
        lambda a: (a * jnp.ones(3), jnp.zeros(5), 0.0 * a),
        lambda buffer, unread, total: jnp.sum(buffer**3) + jnp.sum(jnp.cos(unread)) + total,
        17,
        jax.value_and_grad,
    )


def test_a_delay_line() -> None:
    """The linearized step reads one leaf, which becomes another one's value a step later, and so
    on: a checkpoint holds all three."""
    _check_against_scan(
        lambda a, i, s: (jnp.sin(s[1]), 1.1 * s[2], s[0]),
        lambda a: (a, 2 * a, 3 * a),
        lambda a, b, c: a + b * c,
        9,
        jax.value_and_grad,
        jax.hessian,
    )


def test_a_batch_whose_condition_alone_reads_a_leaf() -> None:
    """No step says for which examples it counts."""
    steps, x = jnp.array([0, 1, 3, 7]), jnp.array([0.5, 0.6, 0.7, 0.8])
    run = lambda x, n: repeat(jnp.sin, n, x, max_steps=8, checkpoints=2)  # noqa: E731
    gradient = jax.jit(jax.vmap(jax.grad(run)))(x, steps)
    for n, value, found in zip(steps.tolist(), x, gradient, strict=True):
        sines = lambda x, n=n: reduce(lambda y, _: jnp.sin(y), range(n), x)  # noqa: E731
        np.testing.assert_allclose(found, jax.grad(sines)(value), rtol=1e-12)


# Arrays of which a step writes entries


def test_examples_apply_a_function_to_entries() -> None:
    """`x.at[i].apply(f)` is a scatter, too, which used to set the entries to zero in a batch."""

    def run(steps: Any) -> Any:
        body = lambda s: (s[0] + 1, s[1].at[s[0]].apply(lambda x: x + 2.0))  # noqa: E731
        return bounded_while_loop(lambda s: s[0] < steps, body, (0, jnp.zeros(3)), max_steps=3)[1]

    found = jax.vmap(run)(jnp.array([0, 1, 3]))
    np.testing.assert_array_equal(found, 2 * np.tri(4, 3, -1)[[0, 1, 3]])


IN_PLACE: dict[str, Callable[..., Any]] = {
    "set": lambda b, i, x: b.at[i].set(x),
    "several": lambda b, i, x: b.at[jnp.array([0, 2, 2]) + i].set(x * jnp.arange(3.0)),
    "add": lambda b, i, x: b.at[i // 2].add(x**2),
    "twice": lambda b, i, x: b.at[i].set(x).at[i].add(x * b[i - 1]),
    "jitted": lambda b, i, x: jax.jit(lambda b: lax.dynamic_update_index_in_dim(b, x, i, 0))(b),
    "moved": lambda b, i, x: lax.dynamic_update_slice(b, jnp.stack([x, 2 * x]), (i + 2,)),
}

AS_A_WHOLE: dict[str, Callable[..., Any]] = {
    "clipped": lambda b, i, x: b.at[i + 3].set(x, mode="clip"),
    "and more": lambda b, i, x: b.at[i].set(x) * 1.1,
    "read after": lambda b, i, x: b.at[0].set(jnp.sin(b.at[i].set(x)[1])),
    "read before and after": lambda b, i, x: (c := b.at[i].set(x)).at[2].set(c[1] * b[i]),
    "sometimes": lambda b, i, x: lax.cond(i % 2 == 0, lambda: b.at[i].set(x), lambda: b),
}


@pytest.mark.parametrize("writes", [IN_PLACE, AS_A_WHOLE])
def test_examples_that_are_done_write_nothing(writes: dict[str, Callable[..., Any]]) -> None:
    """Nor do they read: here the square root of what is read has no derivative."""

    def run(loop: Callable[..., Any], start: Any, a: Any) -> Any:
        def body(state: Any) -> Any:
            i, x, rest, buffers = state
            x = jnp.sin(a * x) + 0.1 * jnp.sqrt(rest[0]) * buffers[0][i - 1]
            buffers = [write(b, i, x) for write, b in zip(writes.values(), buffers, strict=True)]
            return i + 1, x, rest.at[0].add(-1.0), buffers

        buffers = [a * jnp.linspace(1.0, 2.0, 6) for _ in writes]
        state = (jnp.int32(0), a, start * jnp.ones(1), buffers)
        _, x, rest, buffers = loop(lambda s: s[2][0] > 0.5, body, state, max_steps=4)
        return x**2 + rest[0] + jnp.stack([jnp.sum(jnp.sin(b) * jnp.arange(6.0)) for b in buffers])

    starts, outer = jnp.array([3.0, 2.0, 0.0, 1.0]), jnp.array([0.7, 0.9])

    def derivatives(loop: Callable[..., Any]) -> Any:
        """Of each example with the parameters of each, and along one that all of them share."""
        weights = jnp.arange(1.0, 1.0 + len(writes))
        of_one = jax.grad(lambda start, a: jnp.sum(run(loop, start, a) * weights), argnums=1)
        of_each = jax.vmap(jax.vmap(of_one, (0, None)), (None, 0))
        of_all = jax.grad(lambda a: jnp.sum(jax.vmap(partial(run, loop), (0, None))(starts, a)))
        return jax.jit(lambda: (of_each(starts, outer), jax.jvp(of_all, (0.9,), (1.0,))))()

    ours = derivatives(partial(bounded_while_loop, checkpoints=2))
    assert_close(ours, derivatives(masked_while_loop))


# Arguments of our own


def _double(x: Any = 1.0, **options: Any) -> Any:
    return bounded_while_loop(lambda x: x < 10.0, lambda x: 2 * x, x, **options)


def test_the_bound_stops_the_loop() -> None:
    for bound, expected in ((2, 4.0), (2**31 - 1, 16.0), (None, 16.0), (0, 1.0)):
        assert _double(max_steps=bound, throw=False) == expected
    value, steps = _double(max_steps=2, with_steps=True, throw=False)
    assert (value, steps, steps.dtype) == (4.0, 2, jnp.int32)
    assert _double(max_steps=0, with_steps=True, throw=False) == (1.0, 0)
    with pytest.raises(TypeError, match="known when the loop is traced"):
        jax.jit(lambda n: _double(max_steps=n))(3)
    with pytest.raises(TypeError, match="max_steps"):
        _double()
    with pytest.raises(ValueError, match="Pass max_steps"):
        _double(max_steps=None, checkpoints="all")


def test_steps_of_each_example() -> None:
    run = partial(_double, max_steps=3, with_steps=True, throw=False)
    starts = jnp.array([1.0, 2.0, 3.0, 11.0])
    values, steps = jax.vmap(run)(starts)
    assert values.tolist() == [8.0, 16.0, 12.0, 11.0]
    assert steps.tolist() == [3, 3, 2, 0]
    assert jax.vmap(jax.grad(lambda x: run(x)[0]))(starts).tolist() == [8.0, 8.0, 4.0, 1.0]


def test_a_loop_outside_jit_is_compiled_once(caplog: pytest.LogCaptureFixture) -> None:
    """Counting the steps once made another program of each call."""
    far, half = (lambda x: x > 1.0), (lambda x: x / 2)
    for times in (1, 0):
        caplog.clear()
        with jax.log_compiles():
            assert bounded_while_loop(far, half, 8.0, max_steps=4) == 1.0
        assert (caplog.text.count("Compiling") > 0) == times


def test_throw() -> None:
    run = lambda x, max_steps: _double(x, max_steps=max_steps)  # noqa: E731
    starts = jnp.array([1.0, 3.0])
    gradient = eqx.filter_jit(jax.vmap(jax.grad(run), (0, None)))
    assert run(1.0, 4) == run(1.0, None) == 16.0
    assert gradient(starts, 4).tolist() == [16.0, 4.0]
    steps_alone = eqx.filter_jit(lambda: _double(max_steps=3, with_steps=True)[1])
    step = lambda key: jax.random.fold_in(key, 1)  # noqa: E731
    never = lambda key: jax.random.uniform(key) >= 0  # noqa: E731
    key_alone = partial(bounded_while_loop, never, step, max_steps=3)
    of_a_key = lambda: eqx.filter_jit(key_alone)(jax.random.key(0))  # noqa: E731
    for call in (lambda: run(1.0, 3), steps_alone, lambda: gradient(starts, 3), of_a_key):
        with pytest.raises(eqx.EquinoxRuntimeError, match="max_steps=3"):
            call()


@pytest.mark.parametrize("is_rewritten", [False, True])
def test_only_the_condition_in_the_loop_counts(is_rewritten: bool) -> None:
    """After the loop, XLA may round the condition differently: here it holds again."""
    answers = iter([*[True] * 3, False, *[True] * 9])

    def going(x: Any) -> Any:
        answer = lambda _: np.bool_(next(answers))  # noqa: E731
        return jax.pure_callback(answer, jax.ShapeDtypeStruct((), jnp.bool_), x)

    double = lambda x: 2 * x  # noqa: E731
    run: Any = partial(bounded_while_loop, going, double, max_steps=4)
    if is_rewritten:
        run = checkpoint_loops(lambda x: lax.while_loop(going, double, x), max_steps=4)
    assert jax.jit(run)(1.0) == 8.0


def test_throw_leaves_infinities_as_they_are() -> None:
    for start in (complex(np.inf, 0), complex(1, -np.inf), -np.inf):
        state = 0, jnp.asarray(start)
        goes_on, step = lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] + 1)
        run = partial(bounded_while_loop, goes_on, step, state, max_steps=9)
        found, expected = (run(throw=throw)[1] for throw in (True, False))
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype


def test_without_a_bound() -> None:
    """The nested engine, for a rule of one's own, has as many branches as the bound."""

    def power(a: Any, **options: Any) -> Any:
        return repeat(lambda x: x * a, 3, 1.0 + 0 * a, max_steps=None, **options)

    assert jax.jvp(power, (2.0,), (1.0,)) == (8.0, 12.0)
    assert jax.jacfwd(jax.jacfwd(power))(2.0) == 12.0
    with pytest.raises(ValueError, match=r"max_steps and checkpoints must not both be None"):
        jax.grad(power)(2.0)
    power = partial(power, checkpoints=2)
    for derivative in (jax.grad, jax.hessian, lambda f: jax.grad(jax.grad(f))):
        assert jax.jit(derivative(power))(2.0) == 12.0
    triple = jax.custom_vjp(lambda x: 3 * x)
    triple.defvjp(lambda x: (3 * x, None), lambda _, ct: (3 * ct,))
    tripled = lambda x: repeat(triple, 3, x, max_steps=None, checkpoints=2)  # noqa: E731
    assert jax.grad(tripled)(2.0) == 27.0
    assert jax.hessian(tripled)(2.0) == 0.0
    with pytest.raises(ValueError, match="Pass max_steps to bounded_while_loop"):
        jax.grad(jax.grad(tripled))(2.0)


def test_the_default_number_of_checkpoints_grows_as_the_cube_root() -> None:
    expected = {0: 1, 4: 2, 4096: 28, 10**6: 180, 2**31 - 1: 2343}
    plans: dict[int, Any] = {bound: for_bound(bound, None, 1) for bound in expected}
    assert {bound: plan.checkpoints for bound, plan in plans.items()} == expected


def test_disable_jit_copies_what_a_body_changes_in_place() -> None:
    """As `lax.while_loop`: https://github.com/jax-ml/jax/issues/27019."""

    def body(state: Any) -> Any:
        x, total = state
        x += 1  # in place, if it can be
        return x, total + x

    with jax.disable_jit():
        for loop in (partial(bounded_while_loop, max_steps=20), lax.while_loop):
            x = np.array(1.0)
            assert loop(lambda state: state[0] < 10, body, (x, x))[1] == 55


# fori_loop


def test_bounds_of_a_fori_loop() -> None:
    """Known ones, of a scan, and traced ones, of a while loop."""

    def run(a: Any, lower: Any, upper: Any) -> Any:
        body = lambda i, u: jnp.sin(a * u) + i  # noqa: E731
        return checkpointed_fori_loop(lower, upper, body, a, max_steps=10, checkpoints=3)

    def python(a: Any, lower: int, upper: int) -> Any:
        return reduce(lambda u, i: jnp.sin(a * u) + i, range(lower, upper), a)

    bounds = [(0, 0), (3, 4), (-2, 8), (5, 2)]
    of_all = jax.jit(jax.vmap(jax.grad(run), (None, 0, 0)))
    traced = of_all(0.7, *map(jnp.array, zip(*bounds, strict=True)))
    known, expected = (
        [jax.jit(jax.grad(partial(f, lower=i, upper=j)))(0.7) for i, j in bounds]
        for f in (run, python)
    )
    assert_close(traced, jnp.stack(expected))
    assert_close(known, expected)


@pytest.mark.unchecked
@pytest.mark.parametrize("is_disabled", [False, True])
def test_fori_loop_does_not_stop_quietly(is_disabled: bool) -> None:
    def power(a: Any, n: Any) -> Any:
        return checkpointed_fori_loop(0, n, lambda _, u: u * a, 1.0, max_steps=3)

    run = (lambda f: f) if is_disabled else eqx.filter_jit
    each = run(jax.vmap(jax.grad(power), (None, 0)))
    with jax.disable_jit(is_disabled):
        assert run(jax.grad(power))(2.0, jnp.int32(3)) == jax.grad(power)(2.0, 3) == 12.0
        assert each(2.0, jnp.array([2, 3])).tolist() == [4.0, 12.0]
        with pytest.raises(ValueError, match=r"max_steps must be at least .* which is 4, but is 3"):
            power(2.0, 4)
        with pytest.raises(RuntimeError, match="max_steps=3"):
            each(2.0, jnp.array([2, 4]))


# Devices


def test_devices_take_different_numbers_of_steps() -> None:
    """What they share has no cotangent in a loop that some of them have left: that is refused."""
    starts, weight = jnp.array([1.0, 2.0, 3.0, 11.0]), jnp.float64(1.5)

    def run(x: Any, weight: Any) -> Any:
        body = lambda state: (state[0] + 1, jnp.sin(state[1]) + weight * state[1])  # noqa: E731
        run = partial(bounded_while_loop, max_steps=50, checkpoints=2)
        count, u = run(lambda state: state[1] < 10.0, body, (jnp.int32(0), x))
        return jnp.sin(u * count)

    def sharded(starts: Any, weight: Any) -> Any:
        mesh, split = jax.sharding.Mesh(jax.devices()[:4], ("i",)), PartitionSpec("i")
        specs = {"in_specs": (split, PartitionSpec()), "out_specs": split}
        local = lambda x, weight: run(x[0], weight)[None]  # noqa: E731
        return jnp.sum(jax.shard_map(local, mesh=mesh, **specs)(starts, weight))

    one = jax.jit(jax.grad(run))
    ours = jax.jit(jax.grad(sharded))(starts, weight)
    assert_close(ours, jnp.stack([one(x, weight) for x in starts]))
    with pytest.raises(NotImplementedError, match=r"jax\.lax\.pcast"):
        jax.jit(jax.grad(sharded, (0, 1)))(starts, weight)


def test_blocks_of_a_batch_under_disable_jit() -> None:
    """There a traced predicate makes it the checkpointed loop, whose steps were then taped one by
    one in Python, each with the residuals of the branch that it took. Found by a random program."""
    run = partial(repeat, jnp.sin, max_steps=4, checkpoints=2, block_size=2)
    steps, x = jnp.array([1, 3]), jnp.array([0.5, 0.7])
    gradient = jax.grad(lambda x: jnp.sum(jax.vmap(run)(steps, x)))
    expected = [jnp.cos(x[0]), jax.grad(lambda x: jnp.sin(jnp.sin(jnp.sin(x))))(x[1])]
    with jax.disable_jit():
        np.testing.assert_allclose(gradient(x), expected, rtol=1e-12)
