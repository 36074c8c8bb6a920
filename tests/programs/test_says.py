"""What `explain`, budgets and `fit` say is what runs: evaluations are counted, and bytes are those
of compiled programs."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax_revolve import checkpoint_loops, checkpointed_scan, explain, fit

pytestmark = pytest.mark.usefixtures("default_precision")

X = np.linspace(0.1, 1.0, 50, dtype=np.float32)
FIELD = np.linspace(0.5, 1.5, 50, dtype=np.float32)


class Counter:
    """Counts the evaluations of a step."""

    count = 0

    def __call__(self) -> None:
        jax.debug.callback(self._add)

    def _add(self) -> None:
        self.count += 1

    def of(self, run: Callable[[], Any]) -> int:
        self.count = 0
        jax.block_until_ready(run())
        jax.effects_barrier()
        return self.count


counter = Counter()


def step(c: Any, w: Any) -> Any:
    counter()
    return jnp.sin(c) * w + 0.1 * c


def scanned(x: Any, w: Any, length: int = 100, **options: Any) -> Any:
    f = lambda c, _: (step(c, w), jnp.sum(c**2))  # noqa: E731
    return checkpointed_scan(f, x, None, length, **options)


@pytest.mark.parametrize("options", [{}, {"memory": 3000}, {"block_size": 7}])
@pytest.mark.parametrize("of", ["all", "the second", "a constant"])
def test_evaluations_are_those_that_run(of: str, options: dict[str, Any]) -> None:
    """A Python number was a constant in the report, and a field that the loss closes over was
    differentiated."""
    loss = lambda x, w: jnp.sum(scanned(x, w, **options)[0])  # noqa: E731
    if of == "a constant":
        closed = lambda x: loss(x, FIELD)  # noqa: E731
        said, run = explain(closed)(X), lambda: jax.grad(closed)(X)
        assert said.differentiated == "x"
    elif of == "all":
        said, run = explain(loss)(X, 0.9), lambda: jax.grad(loss, (0, 1))(X, 0.9)
        assert said.differentiated == "x, w"
    else:
        said, run = explain(loss, argnums=1)(X, 0.9), lambda: jax.grad(loss, 1)(X, 0.9)
        assert said.differentiated == "w"
    assert counter.of(run) == said.evaluations


def test_argnums_are_checked() -> None:
    for argnums, kind in ((1, ValueError), (-2, ValueError), ("x", TypeError)):
        with pytest.raises(kind, match="argnums must be"):
            explain(jnp.sin, argnums=argnums)(X)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("under_jit", [True, False])
@pytest.mark.parametrize("options", [{}, {"checkpoints": 1, "block_size": 100}])
def test_results_that_are_only_looked_at_cost_nothing(
    options: dict[str, Any], under_jit: bool
) -> None:
    """They dropped the tape of the last block, and the forward sweep ran again."""

    def loss(x: Any) -> Any:
        c, losses = scanned(x, 0.9, **options)
        return jnp.sum(c), losses

    gradient = jax.grad(loss, has_aux=True)
    gradient = jax.jit(gradient) if under_jit else gradient
    assert counter.of(lambda: gradient(X)) == explain(lambda x: loss(x)[0])(X).evaluations


@pytest.mark.parametrize("options", [{}, {"memory": 3000}, {"checkpoints": 2}])
def test_a_backward_rule_that_raises_and_that_nobody_needs(options: dict[str, Any]) -> None:
    """Measuring a step traces its pullback."""

    def loss(scan: Any, x: Any) -> Any:
        f = lambda c, _: (jnp.sin(c) * 0.9, eqxi.nondifferentiable_backward(c * 2))  # noqa: E731
        return jnp.sum(scan(f, x)[0])

    ours = lambda f, x: checkpointed_scan(f, x, length=50, **options)  # noqa: E731
    found = jax.grad(lambda x: loss(ours, x))(X)
    expected = jax.grad(lambda x: loss(lambda f, x: lax.scan(f, x, length=50), x))(X)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert explain(lambda x: loss(ours, x))(X).evaluations >= 50


def heavy(x: Any, length: int = 12) -> Any:
    def f(c: Any, _: Any) -> Any:
        for _ in range(6):
            c = jnp.sin(c) * jnp.cos(1.1 * c)
        return c, None

    return lax.scan(f, x, None, length)[0]


def test_loops_around_a_derivative_are_checkpointed_without_a_warning() -> None:
    """A training loop: the options do apply to it."""

    def train(x: Any) -> Any:
        f = lambda c, _: (c - 0.1 * jax.grad(lambda c: jnp.sum(heavy(c)))(c), None)  # noqa: E731
        return jnp.sum(lax.scan(f, x, None, 20)[0])

    found = jax.grad(checkpoint_loops(train, memory="1MB"))(X)  # warnings are errors
    np.testing.assert_allclose(found, jax.grad(train)(X), rtol=1e-4)


def test_keyword_arguments_and_needed_numbers_are_constants() -> None:
    """As for `jax.grad`. A number that NumPy takes cannot be traced."""

    def loss(x: Any, rate: float = 0.9, *, w: Any) -> Any:
        return jnp.sum(scanned(x, w * float(np.sqrt(rate)))[0])

    said = explain(loss)(X, 0.9, w=FIELD)
    assert said.differentiated == "x"
    assert counter.of(lambda: jax.grad(loss)(X, 0.9, w=FIELD)) == said.evaluations


def temporaries_of(compiled: Any) -> int:
    return compiled.memory_analysis().temp_size_in_bytes


def test_short_loops_count_by_their_bytes() -> None:
    large, memory = jax.ShapeDtypeStruct((10_000,), jnp.float32), 2_000_000

    def temporaries(fun: Any) -> int:
        gradient = jax.jit(jax.grad(lambda x: jnp.sum(fun(x))))
        return temporaries_of(gradient.lower(large).compile())

    assert temporaries(heavy) > 5_000_000
    assert temporaries(checkpoint_loops(heavy, memory=memory)) < 1.05 * memory


@pytest.mark.parametrize(
    ("fun", "why"),
    [
        (jax.grad(lambda x: jnp.sum(heavy(x))), "takes a derivative itself"),
        (jnp.sin, "runs none"),
    ],
)
def test_options_without_a_loop_are_said_to_do_nothing(fun: Any, why: str) -> None:
    with pytest.warns(UserWarning, match=f"checkpoints no loop here.*{why}"):
        checkpoint_loops(fun, memory="1MB")(X)


@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="XLA for CPU removes barriers here")
def test_tapes_of_several_loops_do_not_live_at_once() -> None:
    """XLA merged the empty tapes of blocks under `jax.remat`, and copied them at the start."""

    def loss(x: Any) -> Any:
        @jax.remat
        def block(x: Any) -> Any:
            return checkpointed_scan(
                lambda c, _: (jnp.sin(c) * jnp.cos(1.1 * c) + 0.5 * c, None),
                x,
                length=100,
                checkpoints=1,
                block_size=100,
            )[0]

        for _ in range(10):
            x = block(x)
        return jnp.sum(x**2)

    large = jax.ShapeDtypeStruct((1000,), jnp.float32)
    compiled = jax.jit(jax.grad(loss)).lower(large).compile()
    assert temporaries_of(compiled) < 3 * 100 * 4000


def test_fit_counts_constants_of_inner_functions() -> None:
    big = jnp.asarray(np.ones(1_000_000, np.float32))

    def make(memory: int) -> Any:
        inner = jax.jit(lambda x: jnp.sum(x * big[: x.size]))
        return lambda x: inner(scanned(x, 0.9, memory=memory)[0])

    fitted = fit(make, "100MB")(X)
    assert fitted.bytes > big.nbytes
    assert "memory=unlimited" in str(fitted)


def field_as_argument(x: Any, w: Any) -> Any:
    def f(c: Any, _: Any) -> Any:
        counter()
        return c + w * jnp.sin(c), None

    return jnp.sum(lax.scan(f, x, None, 1000)[0] ** 2)


@pytest.mark.parametrize("under_jit", [True, False])
@pytest.mark.parametrize("argnums", [0, 1, (0, 1)])
def test_shared_memory_is_for_what_is_differentiated(argnums: Any, under_jit: bool) -> None:
    """A field that nothing differentiates has no cotangent, and steps keep less for it."""
    ours = checkpoint_loops(field_as_argument, memory=30_000)
    gradient = jax.grad(ours, argnums)
    gradient = jax.jit(gradient) if under_jit else gradient
    said = explain(ours, argnums=argnums)(X, FIELD)
    assert counter.of(lambda: gradient(X, FIELD)) == said.evaluations
    assert said.memory <= 30_000
    if argnums == 0:
        closed = checkpoint_loops(lambda x: field_as_argument(x, FIELD), memory=30_000)
        assert counter.of(lambda: jax.grad(closed)(X)) == said.evaluations


def without_derivative(x: Any, matrix: Any) -> Any:
    """JAX has no derivative of an SVD with full matrices."""
    u, _, _ = jnp.linalg.svd(matrix, full_matrices=True)
    return jnp.sum(heavy(x * jnp.sum(u[:, 0] ** 2), 30))


@pytest.mark.parametrize(
    "options",
    [{"memory": 10_000}, {"where": lambda loop: {"checkpoints": 3 + loop.residual_bytes % 2}}],
)
def test_what_has_no_derivative_is_no_error_where_none_is_taken(options: dict[str, Any]) -> None:
    matrix = np.eye(5, 3, dtype=np.float32) + 1
    ours = checkpoint_loops(without_derivative, **options)
    found = jax.grad(ours)(X, matrix)
    np.testing.assert_allclose(found, jax.grad(without_derivative)(X, matrix), rtol=1e-5)
    assert explain(ours, argnums=0)(X, matrix).evaluations > 30
    np.testing.assert_allclose(ours(X, matrix), without_derivative(X, matrix), rtol=1e-6)
    with pytest.raises(NotImplementedError, match="full matrices"):
        jax.grad(ours, 1)(X, matrix)


def test_shared_memory_of_a_linear_program_that_is_transposed() -> None:
    linear = lambda x, w: lax.scan(lambda c, _: (c * w, None), x, None, 30)[0]  # noqa: E731
    of = lambda f: jax.linear_transpose(lambda x: f(x, FIELD), X)(X)[0]  # noqa: E731
    found = of(checkpoint_loops(linear, memory=3000))
    np.testing.assert_allclose(found, of(linear), rtol=1e-5)


@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="XLA for CPU removes barriers here")
def test_the_residuals_of_an_inner_loop_are_not_copied() -> None:
    """They left a conditional, which XLA copies."""
    inner = lambda c: checkpointed_scan(lambda c, _: (jnp.sin(c) ** 2, None), c, length=25)[0]  # noqa: E731

    def loss(x: Any) -> Any:
        f = lambda c, _: (jnp.sin(e := inner(c)) * jnp.cos(e), None)  # noqa: E731
        return jnp.sum(checkpointed_scan(f, x, length=60, checkpoints=10, block_size=1)[0])

    large = jax.ShapeDtypeStruct((2000,), jnp.float32)
    compiled = jax.jit(jax.grad(loss)).lower(large).compile()
    assert temporaries_of(compiled) < 1.05 * explain(loss)(large).memory


@pytest.mark.parametrize("scan", [lax.scan, checkpointed_scan])
@pytest.mark.parametrize(
    "wrapped",
    [
        lambda f: f,
        lambda f: lambda x: jax.vmap(f)(x[:, None]),
        lambda f: lambda x: eqx.filter_jit(eqx.filter_vmap(f))(x[:, None]),
        lambda f: lambda x: jax.remat(jax.vmap(jax.jit(f)))(x[:, None]),
        lambda f: lambda x: lax.map(f, x),
    ],
)
def test_a_source_is_the_line_of_the_user(wrapped: Any, scan: Any) -> None:
    run = lambda x: scan(lambda c, _: (jnp.sin(c), None), x, None, 20)[0]  # noqa: E731
    fun = lambda x: jnp.sum(wrapped(run)(x))  # noqa: E731
    line = f"test_says.py:{run.__code__.co_firstlineno}"
    for each in (fun, checkpoint_loops(fun, memory="1MB")):
        assert [loop.source for loop in explain(each)(X).loops][-1] == line


def test_shared_memory_of_a_program_with_references() -> None:
    """One that it closes over, one that it is given, and one of its own."""

    def loss(x: Any, given: Any, outer: Any) -> Any:
        own = jax.new_ref(x)

        def f(c: Any, _: Any) -> Any:
            own[...] = own[...] * c + 0.1
            return jnp.sin(c), None

        c, _ = lax.scan(f, x, None, 30)
        given[...] = outer[...] = jnp.ones(50, jnp.float32)
        return jnp.sum(c * own[...])

    given, outer = (jax.new_ref(jnp.zeros(50, jnp.float32)) for _ in range(2))
    ours = checkpoint_loops(lambda x, given: loss(x, given, outer), memory="20kB")
    np.testing.assert_allclose(ours(X, given), loss(X, given, outer), rtol=1e-5)
    expected = jax.grad(lambda x: loss(x, given, outer))(X)
    np.testing.assert_allclose(jax.grad(ours)(X, given), expected, rtol=1e-4)
    assert given[...][0] == outer[...][0] == 1


def test_shared_memory_of_a_program_with_ordered_effects() -> None:
    heard = list[float]()

    def loss(x: Any) -> Any:
        jax.debug.callback(lambda: heard.append(0), ordered=True)
        c = heavy(x, 30)
        jax.debug.callback(lambda: heard.append(1), ordered=True)
        return jnp.sum(c)

    ours = checkpoint_loops(loss, memory=10_000)
    jax.block_until_ready([ours(X), jax.jit(jax.grad(ours))(X), jax.vmap(heavy)(X[None])])
    jax.effects_barrier()
    assert heard == [0, 1] * 2
