"""`checkpoint_loops`: programs that know nothing of it, with their loops checkpointed."""

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_derivatives import SymbolicZero
from support.compiled import compiled, stencil_step
from support.oracles import assert_close, with_reverse_rule

from jax_revolve import checkpoint_loops, checkpointed_chain, checkpointed_scan, explain, plan
from jax_revolve.typing import FoundLoop

quick = pytest.mark.usefixtures("compile_quickly")

X = jnp.linspace(0.1, 1.0, 4)


def sines(x: Any, length: int = 20) -> Any:
    return lax.scan(lambda c, _: (jnp.sin(c), None), x, length=length)[0]


@jax.custom_jvp
def with_rule(x: Any, n: Any) -> Any:
    return sines(x) * n


@partial(with_rule.defjvp, symbolic_zeros=True)
def _rule(primals: Any, tangents: Any) -> Any:
    x, n = primals
    if type(tangents[1]) is not SymbolicZero:
        raise TypeError("There is no derivative with respect to n.")
    return with_rule(x, n), tangents[0] * jnp.cos(sines(x)) * n


def sines_of_user(x: Any) -> Any:
    return sines(x)


ruled = with_reverse_rule(sines_of_user, lambda x, ct: 3 * ct * x)


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
    "ours": lambda x: checkpointed_scan(lambda c, _: (sines(c), c), x, length=3)[1],
    "chain": lambda x: checkpointed_chain([jnp.cos, sines], x, checkpoints=1),
    "twice": lambda x: (lambda f: f(f(x)))(jax.jit(sines)),
    "closure": lambda x: lax.scan(lambda c, y: (jnp.sin(c) * x, y), x, jnp.ones(20))[0],
}


def scalar(fun: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: sum(jnp.sum(y**2) for y in jax.tree.leaves(fun(x)))


def forwards(fun: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: jax.jvp(fun, (x,), (x,))


def found(fun: Callable[..., Any], **options: Any) -> list[FoundLoop]:
    """The loops that `checkpoint_loops` finds."""
    loops: list[FoundLoop] = []
    where = lambda loop: loops.append(loop) or True  # noqa: E731
    jax.eval_shape(checkpoint_loops(fun, where=where, **options), X)
    return loops


def loops_in(fun: Callable[..., Any], *args: Any) -> int:
    return str(jax.make_jaxpr(fun)(*args)).count("checkpointed_loop")


close = partial(assert_close, rtol=1e-10, atol=1e-14)

TWICE = {"here", "while", "cond", "ours"}
"""Where second derivatives are compared, too: what a loop is replaced by is the same everywhere."""

SLOW = {"here", "fori", "map", "scan", "checkpoint", "vmap", "ours"}
"""What others are made of, too."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in PLACES]
)
@quick
def test_loops_are_found_wherever_they_are(name: str) -> None:
    fun = PLACES[name]
    assert any(loop.plan.length in (20, 30) for loop in explain(fun)(X).loops if not loop.is_own)
    plain, ours = scalar(fun), scalar(checkpoint_loops(fun, checkpoints=4))
    assert loops_in(forwards(ours), X) > loops_in(forwards(plain), X)
    derivatives = [jax.value_and_grad, jax.jacfwd, *([jax.hessian] if name in TWICE else [])]
    if name == "twice":
        derivatives.append(lambda f: jax.grad(checkpoint_loops(f, min_length=1)))
    close(*(jax.jit(lambda x, f=f: [d(f)(x) for d in derivatives])(X) for f in (ours, plain)))


def test_functions_that_close_over_what_is_differentiated_and_no_jit() -> None:
    def loss(w: Any, wrap: Any = checkpoint_loops) -> Any:
        return jnp.sum(wrap(lambda x: sines(x * w))(X))

    close(jax.grad(loss)(2.0), jax.grad(partial(loss, wrap=lambda f: f))(2.0))
    with jax.disable_jit():
        close(checkpoint_loops(sines)(X), sines(X))
        assert len(explain(sines)(X).loops) == 1


def test_functions_with_a_reverse_rule_keep_it() -> None:
    np.testing.assert_array_equal(jax.grad(lambda x: checkpoint_loops(ruled)(x).sum())(X), 3 * X)
    report = explain(lambda x: jax.jit(ruled)(ruled(x)))(X)
    assert report.loops == report.left_alone == ()
    reason = "a derivative rule of its own determines its residuals"
    assert str(report) == f"No loops.\nThe loops in sines_of_user are left alone: {reason}."
    both = explain(lambda x: ruled(with_rule(x, 1.0)))(X)
    assert both.not_entered == {"with_rule": reason, "sines_of_user": reason}


@quick
def test_functions_with_a_forward_rule_keep_it() -> None:
    """The rule was once run on tangents of all operands, even if nothing was differentiated."""
    fun = lambda x: jnp.sum(sines(with_rule(x, lax.stop_gradient(x))))  # noqa: E731
    for derivative in (lambda f: f, jax.grad, jax.hessian):
        close(derivative(checkpoint_loops(fun))(X), derivative(fun)(X))
    report = explain(fun)(X)
    assert [loop.plan.length for loop in report.loops] == [20]
    assert [*report.not_entered] == ["with_rule"]


def test_a_gradient_that_is_already_taken() -> None:
    """The report once promised to reduce its memory."""
    said = "The function takes a derivative itself."
    taken = lambda f: jax.grad(lambda x: f(x).sum())  # noqa: E731
    ours = checkpoint_loops(sines)
    for fun, is_said in [(sines, 0), (ours, 0), (forwards(sines), 0), (forwards(ours), 1)]:
        assert (said in str(explain(fun)(X))) == is_said
    assert all(said in str(explain(taken(fun))(X)) for fun in (sines, ours))


@pytest.mark.parametrize("wrap", [checkpoint_loops, checkpoint_loops(), explain])
def test_what_is_no_function_is_refused_at_once(wrap: Any) -> None:
    with pytest.raises(TypeError, match=r"^fun must be a function, but is .* of type .*Pass the"):
        wrap(X)


def test_a_program_without_loops_stays_the_same() -> None:
    fun = lambda x: lax.associative_scan(jnp.multiply, x)  # noqa: E731
    assert str(explain(fun)(X)) == "No loops."
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
            close(result, expected)
    with pytest.raises(Exception, match="did not finish within max_steps=5 steps"):
        checkpoint_loops(halves, max_steps=5, min_length=1)(X).block_until_ready()


def in_a_scan(x: Any) -> Any:
    with jax.named_scope("outer"):
        return lax.scan(lambda c, _: (jnp.sin(halves(c)) + c, None), x, length=20)[0]


@pytest.mark.parametrize(
    ("fun", "options", "loop"),
    [
        (jax.jit(halves), {}, "halves/while"),
        (in_a_scan, {"memory": 10_000}, "outer/scan/while"),
        (in_a_scan, {"min_length": 21}, "outer/scan/while"),
        (halves, {"checkpoints": "all"}, "while"),
    ],
)
@quick
def test_reverse_mode_names_the_while_loop_that_needs_a_bound(
    fun: Any, options: Any, loop: str
) -> None:
    ours = checkpoint_loops(fun, **options)
    message = rf"max_steps must be an int .* the loop '{loop}' of test_checkpoint_loops.py:\d+ in"
    with pytest.raises(ValueError, match=message):
        jax.grad(scalar(ours))(X)
    assert "needs max_steps" in str(explain(ours)(X))
    results = [jax.jit(jax.jvp, static_argnums=0)(f, (X,), (X,)) for f in (ours, fun)]
    jax.tree.map(np.testing.assert_array_equal, *results)


@pytest.mark.parametrize("way", ["call", "jvp", "vmap", "linearize"])
def test_a_while_loop_without_a_bound_costs_what_it_costs_with_lax(way: str) -> None:
    def operations(f: Any) -> Counter[str]:
        run = {
            "call": f,
            "jvp": lambda x: jax.jvp(f, (x,), (x,)),
            "vmap": lambda x: jax.vmap(f)(jnp.stack([x, x])),
            "linearize": lambda x: jax.linearize(f, x)[1](x),
        }[way]
        return Counter(re.findall(r" = \S+ ([\w-]+)\(", compiled(run, X).as_text()))

    assert operations(checkpoint_loops(halves)) == operations(jax.jit(halves))


def test_a_bound_is_asked_for_only_where_there_is_a_derivative() -> None:
    def fun(x: Any) -> Any:
        count = lax.while_loop(lambda n: n < jnp.sum(x > 0.5), lambda n: n + 1, 0)
        unused = halves(x)
        return jnp.where(count > 0, x, unused.astype(int)).sum()

    np.testing.assert_array_equal(jax.grad(checkpoint_loops(fun))(X), jnp.ones(4))


def test_loops_with_while_loops_in_them_are_explained() -> None:
    outer, inner = found(in_a_scan, max_steps=50)
    assert outer.plain_bytes is inner.plain_bytes is None
    assert outer.residual_bytes == 2 * X.nbytes + 16  # the cosine; a carry, and where it is
    reports = explain(checkpoint_loops(in_a_scan, max_steps=50))(X).loops
    said = [(r.name, r.runs, r.is_while) for r in reports]
    assert said == [("in_a_scan/outer/scan", 1, False), ("in_a_scan/outer/scan/while", 20, True)]
    assert explain(in_a_scan)(X).loops == ()


# Memory


def gradient_and_temporaries(fun: Callable[..., Any], u: Any) -> tuple[Any, int]:
    gradient = compiled(jax.grad(fun), u)
    return gradient(u), gradient.memory_analysis().temp_size_in_bytes


def loop_in_a_loop(u: Any) -> Any:
    outer = lambda u, _: (lax.scan(stencil_step, u, length=40)[0], None)  # noqa: E731
    return jnp.sum(lax.scan(outer, u, length=30)[0] ** 2)


def three_loops(u: Any) -> Any:
    """A long one, a short one, and one in another one."""
    u = lax.scan(stencil_step, u, length=400)[0]
    return loop_in_a_loop(lax.scan(stencil_step, u, length=50)[0])


@pytest.mark.unchecked
@pytest.mark.parametrize("carries", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_loops_share_the_memory(carries: int) -> None:
    u = jnp.linspace(0.0, 1.0, 2000)
    expected, plain = gradient_and_temporaries(three_loops, u)
    size = u.nbytes
    budget = carries * size
    ours = checkpoint_loops(three_loops, memory=budget)
    gradient, temporaries = gradient_and_temporaries(ours, u)
    close(gradient, expected)
    report = explain(ours)(u)
    assert len(report.loops) == 4
    assert report.memory_now == report.memory
    assert 0.4 * budget < report.memory <= budget
    # The first checkpoint of a loop may be its operand.
    assert report.memory - 4 * size < temporaries < report.memory + 2 * size
    assert plain > 1600 * size


@pytest.mark.unchecked
def test_loops_left_alone_hold_what_is_in_them_at_every_step() -> None:
    u = jnp.linspace(0.0, 1.0, 2000)
    budget = 100 * u.nbytes
    options: Any = {"memory": budget, "where": lambda loop: loop.depth == 1}
    ours = checkpoint_loops(loop_in_a_loop, **options)
    report = explain(ours)(u)
    _, temporaries = gradient_and_temporaries(ours, u)
    assert 0.4 * budget < temporaries <= budget + 2 * u.nbytes
    assert report.memory_now == pytest.approx(temporaries, rel=0.02)
    assert report.memory < report.memory_now / 2


@quick
def test_loops_of_the_library_take_their_part_of_the_memory() -> None:
    """One after the loops of lax, and one around a loop of lax, with their own options."""

    def step(u: Any, _: Any) -> Any:
        return jnp.sin(u), None

    def after(u: Any) -> Any:
        u, _ = checkpointed_scan(step, u, length=100, checkpoints=20)
        return jnp.sum(lax.scan(step, u, length=100)[0])

    def around(u: Any) -> Any:
        inner = lambda u, _: lax.scan(step, u, length=100)  # noqa: E731
        return jnp.sum(checkpointed_scan(inner, u, length=10, checkpoints=4, block_size=2)[0])

    def alone(u: Any) -> Any:
        return jnp.sum(checkpointed_scan(step, u, length=100, checkpoints=20)[0])

    u = jnp.ones(100)  # 800 bytes
    for fun, budget in ((after, 26_000), (around, 40_000)):
        report = explain(checkpoint_loops(fun, memory=budget))(u)
        assert 0.5 * budget < report.memory <= budget
        assert (20 if fun is after else 4) in [loop.plan.checkpoints for loop in report.loops]
        same = jax.grad(checkpoint_loops(fun, memory=budget))(u)
        np.testing.assert_allclose(same, jax.grad(fun)(u), rtol=1e-12)
        assert explain(checkpoint_loops(fun, memory="1MB"))(u).memory > 2 * budget
    refused = (
        r"memory must be at least \d+ .*scan of .*, or give less memory to those of jax_revolve"
    )
    for fun in (after, alone):
        with pytest.raises(ValueError, match=refused):
            jax.grad(checkpoint_loops(fun, memory=15_000))(u)


def test_too_little_memory_names_the_loops() -> None:
    needed = r"memory must be at least \d+ bytes here, but is 100: .*"
    with pytest.raises(ValueError, match=needed) as info:
        jax.grad(checkpoint_loops(three_loops, memory=100))(jnp.ones(50))
    least = int(str(info.value).split()[5])
    u = jnp.linspace(0.0, 1.0, 50)
    ours = checkpoint_loops(three_loops, memory=least)
    close(jax.grad(ours)(u), jax.grad(three_loops)(u))


# Which loops, and how


def test_where_decides() -> None:
    asked: list[tuple[str, int | None]] = []

    def where(loop: FoundLoop) -> bool | dict[str, Any]:
        asked.append((loop.name, loop.length))
        if loop.kind == "while":
            return {"max_steps": 60}
        options = {400: {"checkpoints": 7, "block_size": 2}, 50: {"plan": plan(50, 4)}}
        return options.get(loop.length or 0, loop.depth > 0)

    ours = checkpoint_loops(lambda u: three_loops(halves(u)), where=where)
    bounded, first, *rest = explain(ours)(jnp.ones(50)).loops
    names = ["while", "scan", "scan", "scan", "scan/scan"]
    assert asked == list(zip(names, [None, 400, 50, 30, 40], strict=True))
    assert bounded.plan.length == 60
    assert (first.plan.checkpoints, first.plan.block_size) == (7, 2)
    found = [(loop.plan.length, loop.is_own) for loop in rest]
    assert found == [(50, True), (30, False), (40, True)]
    assert rest[0].plan == plan(50, 4)


def test_what_is_known_of_a_loop() -> None:
    assert loops_in(checkpoint_loops(sines, min_length=21), X) == 0
    assert loops_in(checkpoint_loops(partial(sines, length=15)), X) == 0

    def fun(x: Any) -> Any:
        with jax.named_scope("mine"):
            return jax.jit(sines)(x)

    (loop,) = found(fun)
    assert (loop.name, loop.kind, loop.length) == ("mine/sines/scan", "scan", 20)
    assert loop.source.startswith("test_checkpoint_loops.py:")
    assert (loop.depth, loop.carry_bytes, loop.residual_bytes) == (0, X.nbytes, X.nbytes)
    assert loop.plain_bytes == 20 * X.nbytes


def test_the_report_is_a_table() -> None:
    report = explain(checkpoint_loops(three_loops, checkpoints=5))(jnp.ones(50))
    title, *lines = str(report).splitlines()
    assert title == "The gradient with respect to u."
    assert lines[0].split("  ")[0] == "loop"
    words = lines[1].split()
    # Five states, the residuals of one step, and a carry.
    assert " ".join(words[2:]) == "400 1 400 B 400 B 160 kB 2.8 kB 5 1 2344"
    # lax keeps 400 + 50 + 30 * 40 states; the plans five for each of the outermost loops, and in
    # the third a carry, the residuals of a step, four checkpoints, and of the inner one both again.
    assert lines[-1].split() == ["together", "660", "kB", "9.2", "kB", str(report.evaluations)]
    assert report.memory == 23 * 400
    short = explain(partial(sines, length=15))(X)
    _, *lines = str(short).splitlines()
    assert "left alone" in lines[1]
    assert lines[2].split() == ["together", "480", "B", "480", "B", "0"]
    assert (short.memory, short.memory_now) == (480, 480)


# As a function


def test_static_arguments_that_are_equal_but_not_the_same() -> None:
    divide = checkpoint_loops(lambda x, n: x / n)
    assert [float(divide(jnp.float32(1), n)) for n in (0.0, -0.0)] == [np.inf, -np.inf]
    times = checkpoint_loops(lambda x, n: x * n)
    for n in (1, 1.0, True):
        assert times(jnp.int32(3), n).dtype == (jnp.int32(3) * n).dtype


def test_it_is_compiled_once() -> None:
    traces = 0

    @checkpoint_loops(checkpoints=3)
    def fun(x: Any, length: int, *, scale: Any) -> tuple[Any, str]:
        nonlocal traces
        traces += 1
        return sines(x * scale, length), "done"

    for length, scale, count in [(20, 1.0, 1), (20, 2.0, 1), (30, 2.0, 2)]:
        result, word = fun(X, length, scale=jnp.asarray(scale))
        close(result, sines(X * scale, length))
        assert (word, traces) == ("done", count)
    assert fun.__name__ == "fun"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"where": lambda loop: None}, TypeError, r"returns None .* the loop 'scan' of"),
        ({"where": lambda loop: {"checkpoint": 3}}, ValueError, "has the key 'checkpoint'"),
        ({"where": lambda loop: {"checkpoints": 0}}, ValueError, "checkpoints must be"),
        ({"min_length": 0}, ValueError, "min_length must be an int >= 1, but is 0"),
        ({"max_steps": -1}, ValueError, "max_steps must be"),
    ],
)
def test_bad_input(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        checkpoint_loops(sines, **options)(X)


# While loops of many


def test_a_while_loop_under_vmap_in_the_program() -> None:
    """Its predicate has a value for each example. Values of more axes than the batch's were an
    error, found in rigid-body physics; an example that is done must not make others NaN."""

    def halve(steps: Any, x: Any) -> Any:
        def body(state: Any) -> Any:
            i, x = state
            return i + 1, jnp.sqrt(x) * jnp.where(i >= steps, jnp.inf, 1.0)

        return lax.while_loop(lambda state: state[0] < steps, body, (0, x))[1]

    def by_python(steps: Any, x: Any) -> Any:
        return jnp.sum(jnp.stack([row ** (0.5**n) for n, row in zip(steps, x, strict=True)]) ** 2)

    steps, x = jnp.array([0, 1, 3]), jnp.arange(1.0, 7.0).reshape(3, 2)
    total = lambda x: jnp.sum(jax.vmap(halve)(steps, x) ** 2)  # noqa: E731
    ours = checkpoint_loops(total, max_steps=20)
    for derivative in (lambda f: f, lambda f: lambda x: jax.jvp(jax.grad(f), (x,), (x,))):
        close(derivative(ours)(x), derivative(partial(by_python, [0, 1, 3]))(x))
    with pytest.raises(Exception, match="max_steps=2"):
        checkpoint_loops(total, max_steps=2)(x)
    without_bound = checkpoint_loops(total)
    close(without_bound(x), by_python([0, 1, 3], x))
    with pytest.raises(ValueError, match=r"test_checkpoint_loops\.py:\d+.*max_steps"):
        jax.grad(without_bound)(x)


def test_a_while_loop_under_vmap_whose_examples_see_each_other() -> None:
    """Examples that are done count in the sum with their own values, as in lax."""

    def grow(x: Any) -> Any:
        body = lambda s: (s[0] - 1, s[1] + 0.1 * lax.psum(s[1], "i"))  # noqa: E731
        return lax.while_loop(lambda s: s[0] > 0, body, (x, jnp.cos(x)))[1]

    def by_scan(x: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            left, s = state
            more = s + 0.1 * lax.psum(s, "i")
            return (left - 1, jnp.where(left > 0, more, s)), None

        return lax.scan(step, (x, jnp.cos(x)), length=4)[0][1]

    x = jnp.array([3.0, 1.0, 0.0])
    ours = checkpoint_loops(jax.vmap(grow, axis_name="i"), max_steps=4)
    theirs = jax.vmap(by_scan, axis_name="i")
    close(ours(x), jax.vmap(grow, axis_name="i")(x))
    close(jax.jacrev(ours)(x), jax.jacrev(theirs)(x))


def test_a_while_loop_that_devices_leave_at_different_steps() -> None:
    """With a counter that is typed as the same on all devices, it was an error of JAX's about axes.
    Found by a random program."""
    mesh = jax.make_mesh((2,), ("b",), axis_types=(jax.sharding.AxisType.Auto,))

    def total(start: Any, x: Any) -> Any:
        def own(x: Any) -> Any:
            step = lambda state: (state[0] + 1, state[1] * 1.5)  # noqa: E731
            goes_on = lambda state: jnp.sum(state[1]) < 9  # noqa: E731
            return lax.while_loop(goes_on, step, (start(x), x))[1]

        run = jax.shard_map(own, mesh=mesh, in_specs=jax.P("b"), out_specs=jax.P("b"))
        return jnp.sum(run(x))

    x = jnp.array([1.0, 4.0])
    varying = checkpoint_loops(partial(total, lambda x: (x[0] * 0).astype(int)), max_steps=9)
    np.testing.assert_allclose(jax.grad(varying)(x), [1.5**6, 1.5**2], rtol=1e-12)
    with pytest.raises(NotImplementedError, match=r"'.*while' of test_checkpoint_loops\.py.*pcast"):
        checkpoint_loops(partial(total, lambda _: 0), max_steps=9)(x)
