"""`checkpoint_loops`: programs that know nothing of it, with their loops checkpointed."""

from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise, product
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

from jax_revolve import FoundLoop, checkpoint_loops, checkpointed_scan, explain_loops
from jax_revolve.schedule.share import share

quick = pytest.mark.usefixtures("compile_quickly")

X = jnp.linspace(0.1, 1.0, 4)


def sines(x: Any, length: int = 20) -> Any:
    return lax.scan(lambda c, _: (jnp.sin(c), None), x, length=length)[0]


@jax.custom_jvp
def with_rule(x: Any, n: Any) -> Any:
    return x * n


@with_rule.defjvp
def _rule(primals: Any, tangents: Any) -> Any:
    x, n = primals
    return with_rule(x, n), tangents[0] * jnp.cos(sines(x))


@jax.custom_vjp
def with_reverse_rule(x: Any) -> Any:
    return sines(x)


with_reverse_rule.defvjp(lambda x: (sines(x), x), lambda x, ct: (3 * ct * x,))


def in_shard_map(x: Any) -> Any:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("i",))

    def local(x: Any) -> Any:
        return lax.scan(lambda c, _: (jnp.sin(c) + lax.psum(c, "i"), None), x, length=20)[0]

    return jax.shard_map(local, mesh=mesh, in_specs=P("i"), out_specs=P("i"))(x)


PLACES: dict[str, Callable[[Any], Any]] = {
    "here": sines,
    "jit": jax.jit(sines),
    "fori": lambda x: lax.fori_loop(3, 23, lambda i, c: jnp.sin(c) + i, x),
    "map": lambda x: lax.map(jnp.sin, jnp.tile(x, (20, 1)) * x),
    "cond": lambda x: lax.cond(x[0] > 0, sines, lambda x: x, x),
    "switch": lambda x: lax.switch(1, [jnp.cos, sines], x) + lax.switch(0, [sines, jnp.cos], x),
    "scan": lambda x: lax.scan(lambda c, _: (sines(c), c), x, length=3)[1],
    "while": lambda x: lax.scan(lambda c, _: (sines(c), c), sines(x), length=30, reverse=True),
    "checkpoint": jax.checkpoint(sines),
    "vmap": jax.vmap(sines),
    "rule": lambda x: with_rule(x, 2),
    "ours": lambda x: checkpointed_scan(lambda c, _: (sines(c), c), x, length=3)[1],
    "shard_map": in_shard_map,
    "twice": lambda x: (lambda f: f(f(x)))(jax.jit(sines)),
    "closure": lambda x: lax.scan(lambda c, y: (jnp.sin(c) * x, y), x, jnp.ones(20))[0],
}


def scalar(fun: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: sum(jnp.sum(y**2) for y in jax.tree.leaves(fun(x)))


def forwards(fun: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: jax.jvp(fun, (x,), (x,))


def loops_in(fun: Callable[..., Any], *args: Any) -> int:
    return str(jax.make_jaxpr(fun)(*args)).count("checkpointed_loop")


TWICE = {"here", "while", "cond", "ours", "shard_map"}
"""Where second derivatives are compared, too: what a loop is replaced by is the same everywhere."""


@pytest.mark.parametrize("name", PLACES)
@quick
def test_loops_are_found_wherever_they_are(name: str) -> None:
    fun = PLACES[name]
    loops = explain_loops(fun)(X).loops
    assert any(report is not None and loop.length in (20, 30) for loop, report in loops.items())
    plain, ours = scalar(fun), scalar(checkpoint_loops(fun, checkpoints=4))
    assert loops_in(forwards(ours), X) > loops_in(forwards(plain), X)
    derivatives = [jax.value_and_grad, jax.jacfwd, *([jax.hessian] if name in TWICE else [])]
    results = [jax.jit(lambda x, f=f: [d(f)(x) for d in derivatives])(X) for f in (ours, plain)]
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-10), *results)


def everything(x: Any) -> Any:
    for name in ("jit", "fori", "cond", "scan", "checkpoint", "rule"):
        x = jnp.tanh(PLACES[name](x))
        x = x[0] if x.ndim > 1 else x
    return jnp.sum(x**2)


TRANSFORMATIONS = {
    "grad": jax.grad,
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](x),
    "vmap of grad": lambda f: lambda x: jax.vmap(jax.grad(f))(jnp.stack([x, 2 * x])),
    "grad of vmap": lambda f: jax.grad(lambda x: jax.vmap(f)(jnp.stack([x, 2 * x])).sum()),
    "reverse over reverse": lambda f: jax.jacrev(jax.grad(f)),
    "inside checkpoint": lambda f: jax.grad(jax.checkpoint(f)),
    "inside scan": lambda f: jax.grad(
        lambda x: lax.scan(lambda c, _: (c + f(c) * x, None), x, length=2)[0].sum()
    ),
    "itself": lambda f: jax.grad(checkpoint_loops(f, min_length=1)),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
@quick
def test_every_transformation(name: str) -> None:
    transformed = TRANSFORMATIONS[name]
    ours = jax.jit(transformed(checkpoint_loops(everything)))(X)
    np.testing.assert_allclose(ours, jax.jit(transformed(everything))(X), rtol=1e-10)


def test_functions_with_a_reverse_rule_keep_it() -> None:
    ours = checkpoint_loops(with_reverse_rule)
    np.testing.assert_array_equal(jax.grad(lambda x: ours(x).sum())(X), 3 * X)
    assert explain_loops(with_reverse_rule)(X).loops == {}


def test_a_program_without_loops_stays_the_same() -> None:
    fun = lambda x: lax.associative_scan(jnp.multiply, x)  # noqa: E731
    assert explain_loops(fun)(X).loops == {}
    equations = jax.make_jaxpr(checkpoint_loops(fun))(X).eqns[0].params["jaxpr"].jaxpr.eqns
    assert list(map(str, equations)) == list(map(str, jax.make_jaxpr(fun)(X).jaxpr.eqns))


# While loops


def halves(x: Any, until: Any = 1e-3) -> Any:
    return lax.while_loop(lambda c: jnp.max(c) > until, lambda c: c * 0.5 + 0.1 * until * x, x)


@quick
def test_a_while_loop_needs_a_bound() -> None:
    assert loops_in(checkpoint_loops(halves), X) == 0
    expected = jax.jacfwd(halves)(X)
    for options in ({"max_steps": 50}, {"checkpoints": 3}, {"max_steps": 50, "memory": "2kB"}):
        ours = checkpoint_loops(halves, **cast(Any, options))
        for result in jax.jit(lambda x, f=ours: (jax.jacrev(f)(x), jax.jacfwd(f)(x)))(X):
            np.testing.assert_allclose(result, expected, rtol=1e-12)


def test_a_bound_that_is_too_small_is_an_error() -> None:
    with pytest.raises(Exception, match="did not finish within max_steps=5 steps"):
        checkpoint_loops(halves, max_steps=5, min_length=1)(X).block_until_ready()


def test_bounds_one_by_one() -> None:
    def fun(x: Any) -> Any:
        with jax.named_scope("coarse"):
            x = halves(x, 1e-1)
        with jax.named_scope("fine"):
            return halves(x)

    asked: list[str] = []

    def where(loop: FoundLoop) -> dict[str, int] | bool:
        asked.append(loop.name)
        return {"max_steps": 40} if "fine" in loop.name else False

    loops = explain_loops(fun, where=where)(X).loops
    assert asked == ["coarse/while", "fine/while"]
    coarse, fine = loops.values()
    assert coarse is None
    assert fine is not None
    assert fine.plan.length == 40


@pytest.mark.slow
def test_nested_while_loops_of_an_optimiser() -> None:
    from jax.scipy.optimize import minimize

    def best(x: Any) -> Any:
        return minimize(lambda y: jnp.sum((y - x) ** 4 + y**2), jnp.zeros(4), method="BFGS").x

    ours = checkpoint_loops(best, max_steps=64)
    np.testing.assert_allclose(ours(X), best(X), rtol=1e-12)
    np.testing.assert_allclose(jax.jacrev(ours)(X), jax.jacfwd(best)(X), rtol=1e-6, atol=1e-9)


# Memory


def gradient_and_temporaries(fun: Callable[..., Any], u: Any) -> tuple[Any, int]:
    compiled = jax.jit(jax.grad(fun)).lower(u).compile()
    analysis = compiled.memory_analysis()
    assert analysis is not None
    return compiled(u), analysis.temp_size_in_bytes


def stencil(u: Any, _: Any = None) -> tuple[Any, None]:
    return u + 0.1 * (jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1)) - 0.01 * u**3, None


def three_loops(u: Any) -> Any:
    """A long one, a short one, and one in another one."""
    u = lax.scan(stencil, u, length=400)[0]
    u = lax.scan(stencil, u, length=50)[0]
    outer = lambda u, _: (lax.scan(stencil, u, length=40)[0], None)  # noqa: E731
    return jnp.sum(lax.scan(outer, u, length=30)[0] ** 2)


@cache
def plain_three_loops() -> tuple[Any, Any, int]:
    u = jnp.linspace(0.0, 1.0, 2000)
    return u, *gradient_and_temporaries(three_loops, u)


@pytest.mark.parametrize("carries", [20, pytest.param(60, marks=pytest.mark.exhaustive), 200])
def test_loops_share_the_memory(carries: int) -> None:
    u, expected, plain = plain_three_loops()
    size = u.nbytes
    budget = carries * size
    ours = checkpoint_loops(three_loops, memory=budget)
    gradient, temporaries = gradient_and_temporaries(ours, u)
    np.testing.assert_allclose(gradient, expected, rtol=1e-12)
    reports = [r for r in explain_loops(three_loops, memory=budget)(u).loops.values() if r]
    assert len(reports) == 4
    *outermost, inner = (r.memory(r.plan) for r in reports)
    assert 0.4 * budget < sum(outermost) <= budget
    # What the gradient of a single step takes comes on top, here that of a whole loop.
    assert temporaries <= budget + inner + 3 * size + 16_000
    assert plain > 1600 * size


def test_loops_left_alone_hold_what_is_in_them_at_every_step() -> None:
    u = jnp.linspace(0.0, 1.0, 2000)
    inner_only = lambda loop: loop.depth == 1  # noqa: E731
    loops = explain_loops(three_loops, memory=200 * u.nbytes, where=inner_only)(u).loops
    (report,) = (r for r in loops.values() if r)
    assert report.memory(report.plan) <= 200 * u.nbytes // 30


@quick
def test_too_little_memory_names_the_loops() -> None:
    with pytest.raises(ValueError, match=r"memory must be at least \d+ bytes here, but is 100: .*"):
        checkpoint_loops(three_loops, memory=100)(jnp.ones(50))
    least = int(_error(lambda: checkpoint_loops(three_loops, memory=1)(jnp.ones(50))).split()[5])
    u = jnp.linspace(0.0, 1.0, 50)
    ours = checkpoint_loops(three_loops, memory=least)
    np.testing.assert_allclose(jax.grad(ours)(u), jax.grad(three_loops)(u), rtol=1e-12)


def _error(fun: Callable[[], Any]) -> str:
    with pytest.raises(ValueError, match="memory") as info:
        fun()
    return str(info.value)


@st.composite
def outlays(draw: Any) -> list[tuple[int, float]]:
    """More and more bytes, each of which saves less time than the one before."""
    steps = draw(st.lists(st.integers(1, 9), max_size=4))
    gains = sorted(draw(st.lists(st.integers(1, 99), min_size=4, max_size=4, unique=True)))[::-1]
    choices = [(draw(st.integers(0, 9)), 2000.0)]
    for size, gain in zip(steps, gains, strict=False):
        choices.append((choices[-1][0] + size, choices[-1][1] - size * gain))
    return choices


@given(st.lists(outlays(), min_size=1, max_size=4), st.integers(0, 100))
def test_shares(loops: list[list[tuple[int, float]]], spare: int) -> None:
    budget = sum(choices[0][0] for choices in loops) + spare
    shares = share(budget, loops)
    left = budget - sum(shares)
    assert left >= 0
    for choices, size in zip(loops, shares, strict=True):
        sizes = [s for s, _ in choices]
        following = sizes[sizes.index(size) + 1 :]
        assert not following or following[0] - size > left
    least = min(
        sum(t for _, t in other)
        for other in product(*loops)
        if sum(size for size, _ in other) <= budget
    )
    time = sum(dict(choices)[size] for choices, size in zip(loops, shares, strict=True))
    savings = [a[1] - b[1] for choices in loops for a, b in pairwise(choices)]
    assert time <= least + max(savings, default=0)  # the last bytes may not fit


# Which loops, and how


def test_where_decides() -> None:
    lengths: list[int | None] = []

    def where(loop: FoundLoop) -> bool | dict[str, Any]:
        lengths.append(loop.length)
        return {"checkpoints": 7, "block": 2} if loop.length == 400 else loop.depth > 0

    loops = explain_loops(three_loops, where=where)(jnp.ones(50)).loops
    plans = [report.plan if report else None for report in loops.values()]
    assert lengths == [400, 50, 30, 40]
    assert plans[0] is not None
    assert (plans[0].checkpoints, plans[0].block) == (7, 2)
    assert plans[1] is plans[2] is None
    assert plans[3] is not None
    assert loops_in(checkpoint_loops(three_loops, where=where), jnp.ones(50)) == 2


def test_short_loops_are_left_alone() -> None:
    assert loops_in(checkpoint_loops(sines, min_length=21), X) == 0
    assert loops_in(checkpoint_loops(sines, min_length=20), X) == 1
    assert loops_in(checkpoint_loops(partial(sines, length=15)), X) == 0


def test_what_is_known_of_a_loop() -> None:
    def fun(x: Any) -> Any:
        with jax.named_scope("mine"):
            return jax.jit(sines)(x)

    (loop,) = explain_loops(fun)(X).loops
    assert (loop.name, loop.kind, loop.length) == ("mine/sines/scan", "scan", 20)
    assert loop.source.startswith("test_checkpoint_loops.py:")
    assert (loop.depth, loop.carry_bytes, loop.residual_bytes) == (0, X.nbytes, X.nbytes)
    assert loop.plain_bytes == 20 * X.nbytes


def test_the_report_is_a_table() -> None:
    lines = str(explain_loops(three_loops, checkpoints=5)(jnp.ones(50))).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[0].split("  ")[0] == "loop"
    assert lines[1].split() == (
        f"scan {lines[1].split()[1]} 400 160 kB 2.8 kB 5 1".split()  # five states, one step, one
    )
    short = str(explain_loops(sines, min_length=99)(X))
    assert short.splitlines()[1].endswith("as before")


# As a function


def test_it_is_compiled_once() -> None:
    traces = 0

    @checkpoint_loops(checkpoints=3)
    def fun(x: Any, length: int, *, scale: Any) -> tuple[Any, str]:
        nonlocal traces
        traces += 1
        return sines(x * scale, length), "done"

    for value in (1.0, 2.0):
        result, word = fun(X, 20, scale=jnp.asarray(value))
        np.testing.assert_allclose(result, sines(X * value), rtol=1e-12)
        assert word == "done"
    assert traces == 1
    assert fun.__name__ == "fun"
    np.testing.assert_allclose(fun(X, 30, scale=2.0)[0], sines(X * 2, 30), rtol=1e-12)
    assert traces == 2


@quick
def test_modules_keys_and_closures() -> None:
    model = eqx.nn.MLP(4, 4, 8, 2, key=jax.random.key(0))

    def apply(model: Any, x: Any, key: Any) -> Any:
        def step(c: Any, key: Any) -> tuple[Any, None]:
            return model(c) + 0.1 * jax.random.normal(key, c.shape), None

        return jnp.sum(lax.scan(step, x, jax.random.split(key, 20))[0] ** 2)

    ours, theirs = (
        eqx.filter_jit(eqx.filter_grad(f))(model, X, jax.random.key(1))
        for f in (checkpoint_loops(apply), apply)
    )
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)

    def closed_over(w: Any) -> Any:
        return checkpoint_loops(lambda x: sines(x * w))(X).sum()

    np.testing.assert_allclose(
        jax.grad(closed_over)(2.0), jax.grad(lambda w: sines(X * w).sum())(2.0), rtol=1e-12
    )


def test_without_jit_it_is_the_function_itself() -> None:
    with jax.disable_jit():
        np.testing.assert_allclose(checkpoint_loops(sines)(X), sines(X), rtol=1e-12)
        assert len(explain_loops(sines)(X).loops) == 1


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "where": ({"where": 3}, TypeError, "where must be a function from a loop to a bool or a dict"),
    "nonsense": ({"where": lambda loop: None}, TypeError, r"returns None .* the loop 'scan' of"),
    "key": ({"where": lambda loop: {"checkpoint": 3}}, ValueError, "has the key 'checkpoint'"),
    "value": ({"where": lambda loop: {"checkpoints": 0}}, ValueError, "checkpoints must be"),
    "min_length": ({"min_length": 0}, ValueError, "min_length must be an int >= 1, but is 0"),
    "both": ({"checkpoints": 3, "memory": 10}, ValueError, "checkpoints must be None where memory"),
    "max_steps": ({"max_steps": -1}, ValueError, "max_steps must be"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    options, error, message = BAD[name]
    for of in (checkpoint_loops, explain_loops):
        with pytest.raises(error, match=message):
            of(sines, **options)(X)
