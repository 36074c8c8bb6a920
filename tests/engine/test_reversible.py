"""Loops whose step has an inverse: blocks are walked back."""

import math
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify
from support import reversible_programs
from support.asked import explained_scan
from support.oracles import with_reverse_rule

from jax_revolve import (
    Disk,
    HostMemory,
    Inverse,
    bounded_while_loop,
    checkpointed_fori_loop,
    checkpointed_scan,
    drift,
    plan,
)
from jax_revolve.typing import ProgressMeter

N = 12
quick = pytest.mark.usefixtures("compile_quickly")

Step = Callable[[Any, Any, Any], Any]
"""Of params, carry and x."""


def leapfrog(p: Any, carry: Any, x: Any) -> Any:
    q, v = carry
    v = v - 0.1 * jnp.stack([q[0] + 2 * p * q[0] * q[1], q[1] + p * (q[0] ** 2 - q[1] ** 2)])
    return (q + 0.1 * v, v), jnp.sum(q * q)


def leapfrog_back(p: Any, carry: Any, x: Any, y: Any, wrong: float = 1.0) -> Any:
    q, v = carry
    q = q - 0.1 * v
    force = jnp.stack([q[0] + 2 * p * q[0] * q[1], q[1] + p * (q[0] ** 2 - q[1] ** 2)])
    return q, v + wrong * 0.1 * force


def laplacian(u: Any) -> Any:
    return sum(jnp.roll(u, shift, axis) for shift in (1, -1) for axis in (0, 1)) - 4 * u


def wave(p: Any, carry: Any, x: Any) -> Any:
    u, before = carry
    return (2 * u - before + p * jnp.cos(u) * laplacian(u), u), jnp.mean(u**2)


def wave_back(p: Any, carry: Any, x: Any, y: Any) -> Any:
    after, u = carry
    return u, 2 * u - after + p * jnp.cos(u) * laplacian(u)


def coupling(p: Any, carry: Any, x: Any) -> Any:
    a, b = carry
    a = a + jnp.tanh(b @ p) @ p.T
    return (a, b + jnp.sin(a @ p)), None


def coupling_back(p: Any, carry: Any, x: Any, y: Any) -> Any:
    a, b = carry
    b = b - jnp.sin(a @ p)
    return a - jnp.tanh(b @ p) @ p.T, b


def heun(p: Any, carry: Any, x: Any) -> Any:
    y, h = carry
    new = 2 * y - h + jnp.tanh(p @ h) * 0.1
    return (y + 0.05 * (jnp.tanh(p @ h) + jnp.tanh(p @ new)), new), jnp.sum(y)


def heun_back(p: Any, carry: Any, x: Any, y: Any) -> Any:
    y1, new = carry
    h = 2 * y1 - new - jnp.tanh(p @ new) * 0.1
    return y1 - 0.05 * (jnp.tanh(p @ h) + jnp.tanh(p @ new)), h


def normal(seed: int, *shape: int) -> Any:
    return jax.random.normal(jax.random.key(seed), shape)


SYSTEMS: dict[str, tuple[Step, Any, Any, Any]] = {
    "leapfrog": (leapfrog, leapfrog_back, jnp.float64(0.9), (0.3 * normal(1, 2), normal(2, 2))),
    "wave": (wave, wave_back, 0.1 * jnp.cos(normal(0, 3, 4)), (0.3 * normal(1, 3, 4),) * 2),
    "coupling": (coupling, coupling_back, 0.5 * normal(0, 3, 3), (normal(1, 2, 3),) * 2),
    "heun": (heun, heun_back, 0.5 * normal(0, 3, 3), (normal(1, 3),) * 2),
}


def loss(name: str, scan: Any, p: Any, init: Any) -> Any:
    """`scan` is `lax.scan`, or the options of ours."""
    f, back, *_ = SYSTEMS[name]
    if isinstance(scan, dict):
        how = {"inverse": lambda c, x, y: back(p, c, x, y), **scan}
        scan = partial(checkpointed_scan, **how)
    end, ys = scan(partial(f, p), init, None, N)
    total = sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(end))
    return total + sum(jnp.sum(y * y) for y in jax.tree.leaves(ys))


def dot(a: Any, b: Any) -> Any:
    return sum(map(jnp.vdot, jax.tree.leaves(a), jax.tree.leaves(b)))


def along(f: Any, v: Any) -> Any:
    return lambda *z: jax.jvp(f, z, v)[1]


def gradient(f: Any) -> Any:
    return jax.grad(f, argnums=(0, 1))


ORDERS: dict[str, Callable[[Any, Any], Any]] = {
    "value": lambda f, v: f,
    "grad": lambda f, v: gradient(f),
    "grad of jvp": lambda f, v: gradient(along(f, v)),
    "jvp of grad": lambda f, v: along(gradient(f), v),
    "grad of grad": lambda f, v: gradient(lambda *z: dot(gradient(f)(*z), v)),
    "jvp of jvp of grad": lambda f, v: along(along(gradient(f), v), v),
    "grad of jvp of grad": lambda f, v: gradient(lambda *z: dot(along(gradient(f), v)(*z), v)),
}


def derivative(name: str, order: str, scan: Any) -> Any:
    _, _, p, init = SYSTEMS[name]
    v = jax.tree.map(jnp.cos, (p, init))
    return jax.jit(ORDERS[order](partial(loss, name, scan), v))(p, init)


def assert_close(found: Any, wanted: Any, rtol: float = 1e-10) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * float(jnp.max(jnp.abs(b))))


THIRD = [order for order in ORDERS if order.count("of") == 2]
CASES = [(name, order) for name in SYSTEMS for order in ORDERS if order not in THIRD]
CASES += [(name, order) for name in ("leapfrog", "coupling") for order in THIRD]
SLOW = [(name, order) for name in ("wave", "heun") for order in THIRD]


@quick
@pytest.mark.parametrize(
    ("name", "order"), [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]
)
def test_every_order_is_as_in_lax(name: str, order: str) -> None:
    how = {"checkpoints": 1} if name == "coupling" else {"block_size": 3, "checkpoints": 2}
    assert_close(derivative(name, order, how), derivative(name, order, lax.scan))


def wrong_leapfrog(p: Any, carry: Any, x: Any, y: Any) -> Any:
    return leapfrog_back(p, carry, x, y, wrong=1.01)


def wrong_derivative(p: Any, carry: Any, x: Any, y: Any) -> Any:
    return leapfrog_back(1.01 * p - 0.01 * lax.stop_gradient(p), carry, x, y)


@quick
@pytest.mark.parametrize("order", [order for order in ORDERS if "grad" in order])
def test_a_wrong_inverse_is_nan_at_every_order(order: str) -> None:
    for back in (wrong_leapfrog, wrong_derivative):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(SYSTEMS, "leapfrog", (leapfrog, back, *SYSTEMS["leapfrog"][2:]))
            found = derivative("leapfrog", order, {"checkpoints": 3})
        if back is wrong_leapfrog or order != "grad":
            assert all(bool(jnp.all(jnp.isnan(x))) for x in jax.tree.leaves(found)), back
        else:  # which does not take the derivative of the inverse
            assert_close(found, derivative("leapfrog", order, lax.scan))


def test_an_error_says_where() -> None:
    _, _, p, init = SYSTEMS["leapfrog"]

    def run(**how: Any) -> Any:
        inverse = Inverse(partial(wrong_leapfrog, p), **how)
        scan = partial(checkpointed_scan, inverse=inverse, block_size=4, checkpoints=3)
        return jax.grad(lambda q: jnp.sum(scan(partial(leapfrog, p), (q, init[1]), None, N)[0][1]))

    wanted = r"(?s)step of leapfrog at .*drift_tol=1.5e-08.* step \d, carry\[1\] differs .* by 0.0"
    with pytest.raises(jax.errors.JaxRuntimeError, match=wanted):
        jax.block_until_ready(jax.jit(run(throw=True))(init[0]))
    assert jnp.all(jnp.isfinite(run(drift_tol=math.inf)(init[0])))
    assert jnp.all(jnp.isfinite(run(drift_tol=0.5, throw=True)(init[0])))


def test_examples_are_checked_each_by_itself() -> None:
    """An example that is far smaller than the others, too; and only it is NaN."""

    def run(scan: Any, a: Any, c: Any) -> Any:
        inverse = lambda c, x, y: (c[0] / jnp.where(a < 1, 0.99 * a, a), c[1])  # noqa: E731
        how = {} if scan is lax.scan else {"inverse": inverse}
        return scan(lambda c, _: ((a * c[0], c[0]), None), (c, c), None, N, **how)[0][0]

    a, c = jnp.array([1.1, 0.9, 1.2]), jnp.array([1.0, 1e-9, 1.0])
    found = jax.vmap(jax.grad(partial(run, checkpointed_scan)))(a, c)
    wanted = jax.vmap(jax.grad(partial(run, lax.scan)))(a, c)
    assert np.array_equal(np.isnan(found), [False, True, False])
    np.testing.assert_allclose(found[::2], wanted[::2], rtol=1e-10)
    summed = lambda a: jnp.sum(jax.vmap(partial(run, checkpointed_scan))(a, c))  # noqa: E731
    assert np.all(np.isnan(jax.grad(summed)(a)))
    assert_close(
        jax.grad(summed)(jnp.maximum(a, 1)),
        jax.vmap(jax.grad(partial(run, lax.scan)))(jnp.maximum(a, 1), c),
    )


@quick
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 12))]
)
def test_random_steps(seed: int) -> None:
    reversible_programs.run(seed)


def test_a_block_drifts_no_further() -> None:
    """After each block the walk goes on from an exact carry: 40 steps would lose 70 bits."""

    def run(scan: Any, x: Any, **how: Any) -> Any:
        inverse = lambda c, x, y: (back(c[0]), c[1] - jnp.sin(back(c[0])))  # noqa: E731
        how = {} if scan is lax.scan else {"inverse": inverse, **how}
        f = lambda c, _: ((0.3 * c[0] + 0.1, c[1] + jnp.sin(c[0])), None)  # noqa: E731
        back = lambda c: (c - 0.1) / 0.3  # noqa: E731
        return scan(f, (x, x), None, 40, **how)[0][1]

    ours = lambda **how: jax.grad(partial(run, checkpointed_scan, **how))(0.7)  # noqa: E731
    assert_close(ours(block_size=5), jax.grad(partial(run, lax.scan))(0.7))
    assert jnp.isnan(ours(block_size=40))


def damped(scan: Any, x: Any, **how: Any) -> Any:
    inverse = lambda c, x, y: (c[0] / 0.99, c[1] - jnp.sin(c[0] / 0.99))  # noqa: E731
    how = {} if scan is lax.scan else {"inverse": inverse, **how}
    f = lambda c, _: ((0.99 * c[0], c[1] + jnp.sin(c[0])), None)  # noqa: E731
    return jnp.sum(scan(f, (x, x), None, N, **how)[0][1] ** 2)


def test_checkpoints_anywhere(tmp_path: Any) -> None:
    x = normal(1, 3)
    wanted = jax.grad(partial(damped, lax.scan))(x)
    for how in (
        {"plan": plan(N, 2, block_size=3)},
        {"plan": plan(N, levels=(2, 3), block_size=2)},
        {"storage": HostMemory(transfer=1.0), "checkpoints": 1, "block_size": 2},
        {"storage": HostMemory(), "checkpoints": 0},
        {"storage": Disk(tmp_path, transfer=1.0), "checkpoints": 1, "block_size": 2},
        {"memory": "1MB"},
        {"memory": "1MB", "block_size": 2},
        {"progress": ProgressMeter()},
    ):
        assert_close(jax.grad(partial(damped, checkpointed_scan, **how))(x), wanted)


def test_devices() -> None:
    mesh = jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    x, p = normal(1, 8, 2), jnp.float64(0.7)

    def run(scan: Any, p: Any, x: Any) -> Any:
        f = lambda c, _: ((c[1], c[0] + jnp.sin(p * c[1])), None)  # noqa: E731
        inverse = lambda c, x, y: (c[1] - jnp.sin(p * c[0]), c[0])  # noqa: E731
        how = {} if scan is lax.scan else {"inverse": inverse}
        local = lambda p, x: lax.psum(jnp.sum(scan(f, (x, 2 * x), None, N, **how)[0][0] ** 2), "i")  # noqa: E731
        return jax.shard_map(local, mesh=mesh, in_specs=(jax.P(), jax.P("i")), out_specs=jax.P())(
            p, x
        )

    for order in (gradient, lambda f: along(gradient(f), (p, x))):
        found, wanted = (
            jax.jit(order(partial(run, s)))(p, x) for s in (checkpointed_scan, lax.scan)
        )
        assert_close(found, wanted)


def test_memory_is_free_of_the_length() -> None:
    """A single block holds a few carries, however many steps it has."""
    x = jnp.ones(50_000)

    def temporaries(length: int, **how: Any) -> int:
        f = lambda c, _: ((c[1], c[0] + jnp.sin(c[1])), None)  # noqa: E731
        inverse = lambda c, x, y: (c[1] - jnp.sin(c[0]), c[0])  # noqa: E731
        run = lambda x: jnp.sum(  # noqa: E731
            checkpointed_scan(f, (x, x), None, length, inverse=inverse, **how)[0][0]
        )
        used: Any = jax.jit(jax.grad(run)).lower(x).compile().memory_analysis()
        return used.temp_size_in_bytes

    few, many = (temporaries(n, checkpoints=1) for n in (100, 10_000))
    assert few == many < 6 * 2 * x.nbytes
    assert temporaries(1000, memory="8MB") < 8_000_000 + 2 * 2 * x.nbytes
    assert temporaries(10_000) < 50 * 2 * x.nbytes


def test_the_carry_after_a_step_is_known() -> None:
    """4 products forth; back, 4 of the step and its inverse together, and 8 of its transpose."""
    p, init = normal(0, 64, 64), (normal(1, 8, 64), normal(2, 8, 64))
    f = lambda c, w: (coupling(w, c, None)[0], None)  # noqa: E731
    inverse = lambda c, w, y: coupling_back(w, c, w, y)  # noqa: E731

    def run(ws: Any) -> Any:
        end, _ = checkpointed_scan(f, init, ws, inverse=inverse, checkpoints=1)
        return jnp.sum(end[0] * end[1])

    text: Any = jax.jit(jax.value_and_grad(run)).lower(jnp.stack([p] * 4)).compile().as_text()
    products = sum("dot(" in line or "matmul" in line for line in text.splitlines() if "=" in line)
    assert products == 3 + 3 + 6, text


def test_plans() -> None:
    f = lambda c, _: ((c[1], c[0] + jnp.sin(c[1])), None)  # noqa: E731
    inverse = lambda c, x, y: (c[1] - jnp.sin(c[0]), c[0])  # noqa: E731

    def planned(**how: Any) -> tuple[int, int]:
        made = explained_scan(f, (jnp.ones(100),) * 2, length=1000, inverse=inverse, **how).plan
        return made.checkpoints, made.block_size

    assert planned() == (17, 59)
    assert planned(checkpoints=1) == (1, 1000)
    assert planned(checkpoints=5) == (5, 200)
    assert planned(block_size=100) == (3, 100)
    assert planned(memory="1MB") == (17, 59)
    assert planned(memory=20_000) == (9, 112)
    assert planned(memory=20_000, block_size=50)[1] == 50
    report = explained_scan(f, (jnp.ones(100),) * 2, length=1000, inverse=inverse)
    assert report.evaluations(report.plan) == 2000
    assert "walked back by the inverse" in str(report)


def run_orbit(z: Any, p: Any, most: Any, **how: Any) -> Any:
    """A while loop, or with `lax` as a scan that stands still at the end."""

    wrong = how.pop("wrong", 1)

    def f(s: Any) -> Any:
        v = s[1] - 0.1 * p * jnp.sin(s[0])
        return s[0] + 0.1 * v, v, s[2] + 1

    def inverse(s: Any) -> Any:
        q = s[0] - 0.1 * s[1]
        return q, s[1] + 0.1 * p * wrong * jnp.sin(q), s[2] - 1

    go_on = lambda s: (s[2] < most) & (jnp.sum(s[0]) < 3)  # noqa: E731
    start = (z, 2 * z, jnp.int32(0))
    if how.pop("lax", False):
        step = lambda s, _: (jax.tree.map(partial(jnp.where, go_on(s)), f(s), s), None)  # noqa: E731
        end = lax.scan(step, start, None, 30)[0]
    else:
        how = {"throw": False, **how, "inverse": inverse, "max_steps": 30}
        end = bounded_while_loop(go_on, f, start, **how)
    return jnp.sum(jnp.sin(end[0]) * end[1] * p)


@quick
@pytest.mark.parametrize(
    "how",
    [
        {"checkpoints": 2, "block_size": 3},
        *(pytest.param(how, marks=pytest.mark.slow) for how in ({}, {"checkpoints": 2})),
    ],
)
def test_while_loops(how: dict[str, Any]) -> None:
    z, p, most = 0.1 * normal(1, 3), jnp.float64(0.8), jnp.array([7, 0, 30, 12])
    grads: dict[str, Callable[[Any], Any]] = {
        "grad": lambda f: jax.grad(f, (0, 1)),
        "jvp of grad": lambda f: along(
            lambda z, p, m: jax.grad(f)(z, p, m), (z, p, np.zeros((), jax.dtypes.float0))
        ),
        "grad of grad": lambda f: jax.grad(
            lambda z, p, m: jnp.sum(jnp.sin(jax.grad(f)(z, p, m))), (0, 1)
        ),
    }
    for make in grads.values():
        ours, theirs = (make(partial(run_orbit, **each)) for each in (how, {"lax": True}))
        assert_close(jax.jit(ours)(z, p, 17), jax.jit(theirs)(z, p, 17))
    over = lambda f: jax.vmap(f, (None, None, 0))(z, p, most)  # noqa: E731
    each = grads["grad"]
    assert_close(over(each(partial(run_orbit, **how))), over(each(partial(run_orbit, lax=True))))
    wrong = over(each(partial(run_orbit, wrong=1.01, **how)))
    assert np.array_equal(np.isnan(wrong[1]), [True, False, True, True])  # none taken, none wrong
    summed = lambda z: jnp.sum(over(lambda z_, p, m: run_orbit(z * 1.0, p, m, **how)))  # noqa: E731
    assert jnp.isfinite(summed(z))
    with pytest.raises(NotImplementedError, match=r"Take jax\.vmap of the gradient"):
        jax.grad(summed)(z)


def test_fori_loops() -> None:
    def run(x: Any, n: Any, **how: Any) -> Any:
        body = lambda i, s: (s[1] + 0.1 * i * jnp.sin(s[0]), s[0])  # noqa: E731
        inverse = lambda i, s: (s[1], s[0] - 0.1 * i * jnp.sin(s[1]))  # noqa: E731
        return checkpointed_fori_loop(2, n, body, (x, 2 * x), inverse=inverse, **how)[0]

    wanted = jax.grad(
        lambda x: lax.fori_loop(
            2, N, lambda i, s: (s[1] + 0.1 * i * jnp.sin(s[0]), s[0]), (x, 2 * x)
        )[0]
    )(0.7)
    assert_close(jax.grad(run)(0.7, N), wanted)
    assert_close(jax.jit(jax.grad(partial(run, max_steps=20)))(0.7, N), wanted)


def square(c: Any, _: Any) -> Any:
    return c * c, None


def root(c: Any, *_: Any) -> Any:
    return jnp.sqrt(c)


def test_a_loop_outside_jit_is_compiled_once() -> None:
    """The same step and inverse give the same program; another inverse gives another, and so does a
    wrapper that has taken over the step's attributes."""
    compiled = list[str]()

    def hear(event: str, *_: Any, **__: Any) -> None:
        compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(hear)

    def scan(step: Any, inverse: Any) -> Any:
        run = partial(checkpointed_scan, step, length=4, block_size=2, inverse=inverse)
        return jax.grad(lambda x: run(x)[0])(1.5)

    def until(x: Any) -> Any:
        run = partial(bounded_while_loop, going, body, max_steps=9, inverse=root)
        return jax.grad(run)(x)

    def going(c: Any) -> Any:
        return c < 100

    def body(c: Any) -> Any:
        return c * c

    for run in (partial(scan, square, root), partial(until, 1.5)):
        found = []
        for _ in range(2):
            compiled.clear()
            run()
            found.append(sum("backend_compile" in name for name in compiled))
        assert found[0] > 0
        assert found[1] == 0

    @wraps(square)
    def cube(c: Any, _: Any) -> Any:
        return c**3, None

    def cube_root(c: Any, *_: Any) -> Any:
        return jnp.cbrt(c)

    np.testing.assert_allclose(scan(cube, cube_root), 81 * 1.5**80)
    np.testing.assert_allclose(scan(square, root), 16 * 1.5**15)
    assert np.isnan(scan(square, cube_root))


def test_drift() -> None:
    f = lambda c, x: (0.5 * c + x, None)  # noqa: E731
    inverse = lambda c, x, y: (c - x) / 0.5 * (1 + 1e-9)  # noqa: E731
    for reverse in (False, True):
        found = drift(f, inverse, jnp.ones(3), jnp.ones(40), block_size=8, reverse=reverse)
        assert found.drift.shape == (5,)
        assert jnp.all((found.drift > 1e-9) & (found.drift < 1e-5))
    exact = drift(f, lambda c, x, y: 2 * (c - x), jnp.ones(3), jnp.ones(40))
    assert exact.largest_block == 8
    tolerant = Inverse(inverse, drift_tol=1e-3)
    loose = drift(f, tolerant, jnp.ones(3), jnp.ones(40), block_size=8)
    assert found.largest_block < loose.largest_block == 8


def test_what_is_refused() -> None:
    f, inverse = (lambda c, _: (jnp.sinh(c), None)), (lambda c, x, y: jnp.arcsinh(c))
    x = jnp.ones(3)

    def scan(f: Any = f, x: Any = x, **how: Any) -> Any:
        return checkpointed_scan(f, x, length=N, **{"inverse": inverse, **how})[0]

    for how, error, message in (
        ({"block_size": 1}, ValueError, "block_size must be at least 2 where an inverse"),
        ({"plan": plan(N, 3)}, ValueError, "block_size must be at least 2"),
        ({"inverse": 3}, TypeError, "inverse must be a function"),
        ({"inverse": lambda *_: (x, x)}, TypeError, "inverse must return a carry of the structure"),
        (
            {"inverse": lambda *_: x[:2]},
            TypeError,
            r"carry is float64\[2\] rather than float64\[3\]",
        ),
        ({"inverse": lambda *_: 1j * x}, TypeError, "carry is complex128"),
        ({"x": x.astype(jnp.bfloat16)}, ValueError, "its drift_tol is None and carry has"),
        ({"memory": 30}, ValueError, "memory must be at least"),
        ({"memory": "1MB", "storage": HostMemory()}, ValueError, "block_size must be given where"),
    ):
        with pytest.raises(error, match=message):
            jax.grad(lambda x, how=how: jnp.sum(scan(**{**how, "x": x})))(how.get("x", x))
    tolerant = Inverse(inverse, drift_tol=0.1)
    assert scan(x=x.astype(jnp.bfloat16), inverse=tolerant).dtype == jnp.bfloat16
    for call, error, message in (
        (lambda: Inverse(inverse, -1), ValueError, "drift_tol must be a number >= 0"),
        (lambda: Inverse(3), TypeError, "fun must be a function"),  # pyright: ignore[reportArgumentType]
        (lambda: drift(f, None, x, length=N), TypeError, "how must be"),  # pyright: ignore[reportArgumentType]
    ):
        with pytest.raises(error, match=message):
            call()

    reference = jax.new_ref(0.0)

    def writes(c: Any, _: Any) -> Any:
        reference[...] += 1.0
        return 2 * c, None

    def writes_x(c: Any, x: Any) -> Any:
        x[...] = c[0]
        return 2 * c, None

    for step, xs in ((writes, None), (writes_x, jax.new_ref(jnp.zeros(N)))):
        with pytest.raises(NotImplementedError, match="inverse must be None for a step that uses"):
            scan(step, xs=xs)
    with pytest.raises(NotImplementedError, match="inverse must be None under checkify"):
        checkify.checkify(scan)(f, x)
    ruled = with_reverse_rule(lambda c: 2 * c, lambda c, ct: 2 * ct)
    step = lambda c, _: (ruled(c), None)  # noqa: E731
    squared = lambda x: jnp.sum(scan(step, x, inverse=lambda c, *_: c / 2) ** 2)  # noqa: E731
    assert_close(jax.grad(squared)(x), 2 * 4.0**N * x)
    assert_close(jax.hessian(squared)(x), 2 * 4.0**N * jnp.eye(x.size))
    with pytest.raises(NotImplementedError, match="inverse must be None where the gradient of a"):
        jax.jacrev(jax.grad(squared))(x)
