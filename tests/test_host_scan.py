"""`host_scan` computes what `lax.scan` computes, with the evaluations and transfers of its plan."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from test_errors import REJECTED

from jax_revolve import Disk, HostMemory, Plan, ProgressMeter, host_scan, plan
from jax_revolve.host import levels
from jax_revolve.host.watch import Watch
from jax_revolve.schedule.actions import Advance, Tape

N = 11
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "one": {"checkpoints": 1},
    "some": {"checkpoints": 3},
    "all": {"checkpoints": "all"},
    "budget": {"memory": "2kB"},
    "host": {"checkpoints": 0, "storage": HostMemory(checkpoints=3)},
    "two levels": {"checkpoints": 2, "storage": HostMemory(checkpoints=2, transfer=0.1)},
    "disk": {"checkpoints": 2, "storage": Disk("", checkpoints=2, transfer=0.1)},
}


def options_of(name: str, directory: Path) -> dict[str, Any]:
    options = OPTIONS[name]
    if isinstance(options.get("storage"), Disk):
        return {**options, "storage": Disk(directory, checkpoints=2, transfer=0.1)}
    return options


def mixed(scan: Any, weights: Any, start: Any, xs: Any) -> Any:
    """Leaves of every kind: weights, a running sum, a counter, a key, an unchanged leaf."""

    def step(carry: Any, x: Any) -> Any:
        h = jnp.tanh(weights @ carry["h"] + x["a"] * carry["fixed"])
        key = jax.random.fold_in(carry["key"], carry["count"])
        h = h * (1 + 0.1 * jax.random.uniform(key, h.shape)) + 0.01 * x["i"]
        new = {"h": h, "sum": carry["sum"] + jnp.sum(h), "count": carry["count"] + 1, "key": key}
        return {**carry, **new}, (jnp.sin(h), x["i"], key)

    init = {"h": start, "sum": 0.0, "count": 0, "key": jax.random.key(1), "fixed": jnp.ones(3)}
    carry, (ys, numbers, keys) = scan(step, init, {"a": xs, "i": np.arange(N)})
    assert jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)
    weight = jnp.arange(N)[:, None]
    used = jnp.sum(weight * ys) + carry["sum"] + jnp.sum(carry["h"] ** 2) + jnp.sum(numbers)
    return used + jnp.sum(jax.random.key_data(keys) % 7)


def nested(scan: Any, weights: Any, start: Any, xs: Any) -> Any:
    """A loop inside the step, and a carry whose type is promoted."""

    def step(carry: Any, x: Any) -> Any:
        h, total = carry
        h = lax.fori_loop(0, 3, lambda _, h: jnp.sin(weights @ h + x), h)
        return (h, total + h[0]), None

    (h, total), _ = scan(step, (start, 0), xs)
    return jnp.sum(h) * total


BODIES: dict[str, Callable[..., Any]] = {"mixed": mixed, "nested": nested}


def arguments() -> tuple[Any, Any, Any]:
    draw = np.random.default_rng(0).normal
    return tuple(jnp.asarray(draw(size=shape)) for shape in ((3, 3), (3,), (N, 3)))  # pyright: ignore[reportReturnType]


def assert_same(ours: Any, theirs: Any, rtol: float = 1e-11) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "reverse"),
    [
        pytest.param(name, reverse, marks=[] if (i + reverse) % 3 == 1 else pytest.mark.slow)
        for i, name in enumerate(OPTIONS)
        for reverse in (False, True)
    ],
)
def test_gradients_are_those_of_lax_scan(name: str, reverse: bool, tmp_path: Path) -> None:
    for body in BODIES.values():
        scan = partial(host_scan, reverse=reverse, **options_of(name, tmp_path))
        theirs = jax.value_and_grad(
            partial(body, partial(lax.scan, reverse=reverse)), argnums=(0, 1, 2)
        )
        assert_same(
            jax.value_and_grad(partial(body, scan), argnums=(0, 1, 2))(*arguments()),
            theirs(*arguments()),
        )
    assert not list(tmp_path.rglob("*.checkpoint"))


@pytest.mark.parametrize("active", [(1,), (0, 2)])
def test_some_derivatives(active: tuple[int, ...]) -> None:
    ours = jax.grad(partial(mixed, partial(host_scan, checkpoints=2)), active)(*arguments())
    assert_same(ours, jax.grad(partial(mixed, lax.scan), active)(*arguments()))


def test_results() -> None:
    """Types and structures too; ys are NumPy arrays."""

    def step(carry: Any, x: Any) -> Any:
        return (carry[0] + x, carry[1] * 2), {"y": x * 2, "none": None}

    init: Any = (0, 1.0)
    ours, theirs = (scan(step, init, np.arange(4)) for scan in (host_scan, lax.scan))
    assert_same(ours, theirs)
    assert isinstance(ours[1]["y"], np.ndarray)
    assert [x.weak_type for x in ours[0]] == [x.weak_type for x in theirs[0]]


@pytest.mark.parametrize("xs", [None, np.zeros((0, 2))])
def test_no_steps(xs: Any) -> None:
    def loss(scan: Any, a: Any) -> Any:
        length = 0 if xs is None else None
        carry, ys = scan(lambda c, x: (c * a, c), a**2, xs, length)
        return carry + jnp.sum(ys)

    ours, theirs = (jax.value_and_grad(partial(loss, scan))(2.0) for scan in (host_scan, lax.scan))
    assert_same(ours, theirs)


def test_linearize_and_several_pullbacks() -> None:
    for scan in (partial(host_scan, checkpoints=2), partial(host_scan, checkpoints=1)):
        ours, theirs = partial(mixed, scan), partial(mixed, lax.scan)
        value, pullback = jax.vjp(ours, *arguments())
        expected, their_pullback = jax.vjp(theirs, *arguments())
        assert_same(value, expected)
        for cotangent in (1.0, -2.0, 1.0):
            assert_same(pullback(cotangent), their_pullback(cotangent))
        _, linear = jax.linearize(ours, *arguments())
        assert_same(jax.linear_transpose(linear, *arguments())(1.0), their_pullback(1.0))


def test_same_bits_as_the_step_one_by_one() -> None:
    """No matter which plan, where the same compiled steps run."""
    plans = ("one", "some", "all", "host", "two levels")
    found = [
        jax.value_and_grad(partial(mixed, partial(host_scan, **OPTIONS[name])), (0, 1, 2))(
            *arguments()
        )
        for name in plans
    ]
    for other in found[1:]:
        jax.tree.map(np.testing.assert_array_equal, found[0], other)


# What runs


def evaluations_of(length: int, options: dict[str, Any], monkeypatch: Any) -> Counter[str]:
    """What a gradient evaluates, writes and reads."""
    counted = Counter[str]()
    keep = levels.keep

    def counting(storage: Any, values: Any) -> Any:
        held = keep(storage, values)
        if storage is None:
            return held
        counted["writes"] += 1

        def on_device() -> Any:
            counted["reads"] += 1
            return held.on_device()

        return replace(held, on_device=on_device)

    monkeypatch.setattr("jax_revolve.host.loop.keep", counting)

    def step(u: Any, x: Any) -> Any:
        jax.debug.callback(lambda: counted.update(evaluations=1))
        return jnp.sin(u) * x, u

    def loss(u: Any) -> Any:
        u, ys = host_scan(step, u, jnp.ones(length), **options)
        return u + jnp.sum(ys)

    jax.block_until_ready(jax.value_and_grad(loss)(1.0))
    jax.effects_barrier()
    return counted


@pytest.mark.parametrize(
    ("length", "checkpoints", "storage"),
    [
        (1, 1, None),
        (20, 3, None),
        (21, 2, None),
        (30, 2, HostMemory(checkpoints=3, transfer=0.5)),
        (30, 2, Disk("", checkpoints=2, transfer=0.5)),
    ],
)
def test_evaluations_writes_and_reads_are_those_of_the_plan(
    length: int,
    checkpoints: int,
    storage: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    if isinstance(storage, Disk):
        storage = Disk(tmp_path, checkpoints=storage.checkpoints, transfer=storage.transfer)
    made = plan(length, checkpoints, block_size=1, storage=storage)
    counted = evaluations_of(length, {"plan": made}, monkeypatch)
    expected = {"evaluations": made.evaluations}
    if not isinstance(made, Plan):
        assert made.writes
        expected |= {"writes": made.writes, "reads": made.reads}
    assert counted == expected


def test_a_value_runs_each_step_once() -> None:
    counted: list[Any] = []

    def step(u: Any, i: Any) -> Any:
        jax.debug.callback(counted.append, i)
        return jnp.sin(u), None

    host_scan(step, 1.0, np.arange(9))
    jax.effects_barrier()
    assert len(counted) == 9


@pytest.mark.parametrize("reverse", [False, True])
def test_xs_from_a_function(reverse: bool) -> None:
    """Called whenever a step runs, in the order of the steps."""
    xs, asked = np.random.default_rng(0).normal(size=(N, 3)), []

    def read(i: int) -> Any:
        asked.append(i)
        return {"x": xs[i]}

    def loss(scan: Any, xs: Any, a: Any) -> Any:
        h, ys = scan(
            lambda h, x: (jnp.sin(a * h + x["x"]), h * x["x"]), jnp.ones(3), xs, N, reverse
        )
        return jnp.sum(h) + jnp.sum(ys)

    ours = jax.value_and_grad(partial(loss, partial(host_scan, checkpoints=2), read))(0.7)
    assert_same(ours, jax.value_and_grad(partial(loss, lax.scan, {"x": xs}))(0.7))
    made = plan(N, 2)
    ran = [action for action in made if isinstance(action, Advance | Tape)]
    steps = [i for action in ran for i in range(action.start, action.stop)]
    assert asked == [N - 1 - i if reverse else i for i in steps]
    assert len(asked) == made.evaluations


def test_errors_of_functions_are_raised_as_they_are() -> None:
    def read(i: int) -> Any:
        if i == 5:
            raise FileNotFoundError("no day 5")
        return np.float64(i)

    add = lambda c, x: (c + x, c)  # noqa: E731
    with pytest.raises(FileNotFoundError, match="no day 5"):
        host_scan(add, 0.0, read, 9)

    def consume(i: int, y: Any) -> None:
        if i == 3:
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        host_scan(add, 0.0, np.arange(9.0), consume=consume)
    with pytest.raises(TypeError, match=r"xs\(2\) must have .* of the first slice"):
        host_scan(lambda c, _: (c, None), 0.0, lambda i: np.zeros(i // 2), 9)


@pytest.mark.parametrize("reverse", [False, True])
def test_ys_to_a_function(reverse: bool) -> None:
    found: list[Any] = []
    step = lambda c, x: (c * x, {"y": c + x})  # noqa: E731

    def loss(a: Any) -> Any:
        found.clear()
        carry, ys = host_scan(
            step, a, jnp.linspace(1, 2, N), reverse=reverse, consume=lambda *y: found.append(y)
        )
        assert ys is None
        return carry

    jax.grad(loss)(2.0)
    _, expected = lax.scan(step, 2.0, jnp.linspace(1, 2, N), reverse=reverse)
    assert [i for i, _ in found] == sorted(range(N), reverse=reverse)
    for i, y in found:
        assert isinstance(y["y"], np.ndarray)
        np.testing.assert_allclose(y["y"], expected["y"][i])


def test_a_step_that_calls_numpy() -> None:
    """With a rule of its own."""

    def on_host(function: Any, *arrays: Any) -> Any:
        like = jax.ShapeDtypeStruct(arrays[-1].shape, arrays[-1].dtype)
        return jax.pure_callback(function, like, *arrays)

    @jax.custom_vjp
    def solve(a: Any, b: Any) -> Any:
        return on_host(np.linalg.solve, a, b)

    def forward(a: Any, b: Any) -> Any:
        x = solve(a, b)
        return x, (a, x)

    def backward(held: Any, ct: Any) -> Any:
        a, x = held
        ct_b = on_host(lambda a, ct: np.linalg.solve(np.asarray(a).T, ct), a, ct)
        return -jnp.outer(ct_b, x), ct_b

    solve.defvjp(forward, backward)

    def loss(scan: Any, solve: Any, a: Any, u: Any, xs: Any) -> Any:
        def step(u: Any, x: Any) -> Any:
            u = solve(a, u + x)
            return u, jnp.sum(u**2)

        u, ys = scan(step, u, xs)
        return jnp.sum(jnp.sin(u)) + jnp.sum(ys)

    a = np.eye(3) * 2 + 0.1 * np.arange(9.0).reshape(3, 3)
    inputs = a, jnp.ones(3), jnp.asarray(arguments()[2])
    theirs = partial(loss, lax.scan, jnp.linalg.solve)
    expected = jax.value_and_grad(theirs, (0, 1, 2))(*inputs)
    for options in ({}, {"checkpoints": 2}):
        ours = partial(loss, partial(host_scan, **options), solve)
        assert_same(jax.value_and_grad(ours, (0, 1, 2))(*inputs), expected)


# What is refused


@pytest.mark.parametrize("name", sorted({*REJECTED} - {"unroll", "unroll_type", "traced_length"}))
def test_same_error_as_lax_scan(name: str) -> None:
    try:
        REJECTED[name](lax.scan)
    except Exception as expected:
        theirs = expected
    else:
        pytest.skip("this version of lax.scan accepts it")
    with pytest.raises(type(theirs)) as caught:
        REJECTED[name](host_scan)
    assert str(caught.value).split("\n---")[0] == str(theirs).split("\n---")[0]


def cube(a: Any) -> Any:
    return host_scan(lambda c, _: (c * a, None), 1.0, length=3)[0]


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: jax.jit(cube)(2.0), "cannot run inside jax.jit"),
        (lambda: jax.jit(jax.grad(cube))(2.0), "cannot run inside jax.jit"),
        (lambda: jax.vmap(cube)(jnp.ones(2)), "cannot run inside jax.jit"),
        (lambda: jax.vmap(jax.vjp(cube, 2.0)[1])(jnp.ones(2)), "cannot run inside jax.jit"),
        (lambda: lax.map(cube, jnp.ones(2)), "cannot run inside jax.jit"),
        (lambda: jax.grad(jax.checkpoint(cube))(2.0), "cannot run inside jax.jit"),
        (lambda: jax.grad(jax.grad(cube))(2.0), "cannot run inside jax.jit"),
        (lambda: jax.jvp(cube, (2.0,), (1.0,)), "no forward mode.*checkpointed_scan"),
        (lambda: jax.jacfwd(cube)(2.0), "checkpointed_scan"),
        (lambda: jax.hessian(cube)(2.0), "checkpointed_scan"),
    ],
)
def test_transformations_are_refused(run: Callable[[], Any], message: str) -> None:
    with pytest.raises(NotImplementedError, match=message):
        run()


def test_effects_that_cannot_be_repeated_are_refused() -> None:
    from jax.experimental import io_callback

    def step(c: Any, _: Any) -> Any:
        return c + io_callback(lambda: np.float64(1), jax.ShapeDtypeStruct((), float)), None

    with pytest.raises(NotImplementedError, match="does not support the effects of f"):
        host_scan(step, 0.0, length=3)


@pytest.mark.skipif(not hasattr(jax, "new_ref"), reason="this JAX has no mutable references")
def test_mutable_references_are_refused() -> None:
    ref = jax.new_ref(jnp.zeros(()))

    def step(c: Any, _: Any) -> Any:
        ref[...] += 1
        return c, None

    with pytest.raises(NotImplementedError, match="does not support mutable array references"):
        host_scan(step, 0.0, length=3)


def test_a_step_without_a_derivative_is_an_error_before_the_loop_runs() -> None:
    ran = []

    def step(c: Any, i: Any) -> Any:
        jax.debug.callback(ran.append, i)
        return lax.while_loop(lambda c: c < 5, lambda c: c * 2, c), None

    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work for"):
        jax.grad(lambda a: host_scan(step, a, np.arange(3))[0])(1.0)
    jax.effects_barrier()
    assert ran == []


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"jit": False}, TypeError, "jit is gone. .*jax.pure_callback"),
        ({"block_size": 2}, TypeError, "block_size is gone"),
        ({"spam": 2}, TypeError, "has no argument 'spam'"),
        ({"plan": plan(3, 1, block_size=2)}, ValueError, "plan must have blocks of a single step"),
        ({"version": 1.0}, TypeError, "version must be a str, an int or None"),
        ({"storage": Disk("a"), "directory": "b"}, ValueError, "storage must be Disk.'b'."),
        ({"consume": 3}, TypeError, "consume must be a function"),
        ({"directory": 3}, TypeError, "directory must be a str"),
        ({"save_every": "1"}, TypeError, "save_every must be a number >= 0"),
        ({"save_every": -1}, ValueError, "save_every must be a number >= 0"),
        ({"checkpoints": 0}, ValueError, "checkpoints must be an int >= 1"),
        ({"storage": Disk("/does/not/exist")}, FileNotFoundError, "no such directory"),
        ({"xs": lambda i: i, "length": None}, TypeError, "length must be an int >= 1"),
        ({"xs": lambda i: i, "length": 0}, ValueError, "length must be an int >= 1"),
    ],
)
def test_bad_arguments(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        host_scan(**{"f": lambda c, _: (c, None), "init": 1.0, "length": 3, **options})


# Where values are


def test_sharded_carries_stay_sharded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = jax.make_mesh((8,), ("a",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = NamedSharding(mesh, P("a"))
    seen = []
    keep = levels.keep

    def looking(storage: Any, values: Any) -> Any:
        held = keep(storage, values)
        seen.extend(x.sharding for x in [*values, *held.on_device()])
        return held

    monkeypatch.setattr("jax_revolve.host.loop.keep", looking)

    def loss(scan: Any, w: Any, h: Any) -> Any:
        step = lambda h, _: (jnp.tanh(h * jnp.mean(h) + w), None)  # noqa: E731
        return jnp.sum(scan(step, h, length=N)[0] ** 2)

    w, h = (jax.device_put(jnp.linspace(x, 1, 16), sharding) for x in (0.1, 0.2))
    expected = jax.grad(partial(loss, lax.scan), (0, 1))(w, h)
    for name in ("some", "two levels", "disk"):
        scan = partial(host_scan, **options_of(name, tmp_path))
        ours = jax.grad(partial(loss, scan), (0, 1))(w, h)
        assert_same(ours, expected)
        assert all(x.sharding.is_equivalent_to(sharding, 1) for x in ours)
    assert seen
    assert all(x.is_equivalent_to(sharding, 1) for x in seen)


def test_memory_on_the_device_is_that_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Besides, there are the result and its cotangent, the carry, and its cotangents before and
    after a step."""
    size, most, between_steps = 977, [0], Watch.between_steps

    def counting(watch: Watch, *arguments: Any) -> None:
        most[0] = max(most[0], sum(x.size == size for x in jax.live_arrays()))
        between_steps(watch, *arguments)

    monkeypatch.setattr(Watch, "between_steps", counting)

    def loss(start: Any, **options: Any) -> Any:
        return jnp.sum(host_scan(lambda u, _: (jnp.sin(u), None), start, length=60, **options)[0])

    start = jnp.ones(size)
    for options, held in [
        ({"checkpoints": 5}, 5),
        (
            {"checkpoints": 2, "storage": HostMemory(checkpoints=4)},
            2 + 4,
        ),  # on a CPU, both are one memory
    ]:
        most[0] = 0
        jax.grad(partial(loss, **options))(start)
        assert held <= most[0] <= held + 5


class Log(ProgressMeter):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def start(self, name: str, total: int | None) -> Any:
        self.seen.append((name, total))

    def update(self, bar: Any, steps: int) -> None:
        self.seen.append(steps)

    def note(self, bar: Any, text: str) -> None:
        self.noted = text

    def close(self, bar: Any) -> None:
        self.seen.append("closed")


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jax_revolve.host.watch.SECONDS_AHEAD", 0)
    log = Log()
    step = lambda c, _: (jnp.sin(c), None)  # noqa: E731
    jax.grad(lambda a: host_scan(step, a, length=4, checkpoints=4, progress=log)[0])(1.0)
    swept = [1, 2, 3, 4, 4, "closed"]
    assert log.seen == [("forward", 4), *swept, ("reverse", 4), *swept]
    assert log.noted == "8 of 8 evaluations, 8 B on the device"
    two = {"checkpoints": 1, "storage": HostMemory(checkpoints=2, transfer=0.0)}
    host_scan(step, jnp.ones(4), length=4, progress=log)
    jax.vjp(lambda a: host_scan(step, a, length=4, progress=log, **two), jnp.ones(4))
    assert log.noted == "4 of 9 evaluations, 32 B on the device, 64 B in host memory"
