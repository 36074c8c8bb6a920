"""`host_scan` takes and returns what `lax.scan` does, with the evaluations and transfers of its
plan, keeps arrays where they are, and refuses what it cannot do."""

import os
import threading
import time
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
from jax.experimental import io_callback
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from parity.cases import SCAN_CASES
from parity.transformations import ALL
from support.calls import option
from support.evaluations import steps_of
from support.host_scan_program import WORKLOADS
from support.oracles import Loops, assert_same
from support.rejected import REJECTED, check_same_error

from jax_revolve import Disk, HostMemory, host_scan, plan
from jax_revolve.host import arrays, problem
from jax_revolve.host.identity import digest_of_array
from jax_revolve.host.problem import trace
from jax_revolve.host.watch import Watch
from jax_revolve.typing import ProgressMeter

Patch = pytest.MonkeyPatch
N = 11
DISK = Disk("", checkpoints=2, transfer=0.1)
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "one": {"checkpoints": 1},
    "some": {"checkpoints": 3},
    "all": {"checkpoints": "all"},
    "budget": {"memory": "2kB"},
    "host": {"checkpoints": 0, "storage": HostMemory(checkpoints=3)},
    "two levels": {"checkpoints": 2, "storage": HostMemory(checkpoints=2, transfer=0.1)},
    "disk": {"checkpoints": 2, "storage": DISK},
}


def options_of(name: str, directory: Path) -> dict[str, Any]:
    options = OPTIONS[name]
    return options | ({"storage": replace(DISK, directory=directory)} if name == "disk" else {})


def mixed(scan: Any, weights: Any, start: Any, xs: Any) -> Any:
    """Leaves of every kind: weights, a running sum, a counter, keys, an unchanged leaf, integers
    among the xs, beside arrays of no numbers."""

    def step(carry: Any, x: Any) -> Any:
        h = jnp.tanh(weights @ carry["h"] + x["a"] * carry["fixed"])
        key = jax.random.fold_in(carry["key"], carry["count"])
        noise = jax.random.uniform(key, h.shape) + jax.random.uniform(x["key"])
        h = h * (1 + 0.1 * noise) + 0.01 * x["i"]
        new = {"h": h, "sum": carry["sum"] + jnp.sum(h), "count": carry["count"] + 1, "key": key}
        return {**carry, **new}, (jnp.sin(h), x["i"], key)

    init = {"h": start, "sum": 0.0, "count": 0, "key": jax.random.key(1), "fixed": jnp.ones(3)}
    keys = jax.random.split(jax.random.key(3), N)
    given = {"a": xs, "i": np.arange(N), "key": keys, "empty": [jnp.ones((N, 0))]}
    carry, (ys, numbers, keys) = scan(step, init, given)
    assert jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)
    weight = jnp.arange(N)[:, None]
    used = jnp.sum(weight * ys) + carry["sum"] + jnp.sum(carry["h"] ** 2) + jnp.sum(numbers)
    return used + jnp.sum(jax.random.key_data(keys) % 7)


def arguments() -> tuple[Any, Any, Any]:
    draw = np.random.default_rng(0).normal
    return tuple(jnp.asarray(draw(size=shape)) for shape in ((3, 3), (3,), (N, 3)))  # pyright: ignore[reportReturnType]


same = partial(assert_same, rtol=1e-11, weak_types=False)
"""The ys are NumPy arrays, which have none."""


def whole(
    f: Any, init: Any, xs: Any = None, length: Any = None, reverse: bool = False, **_: Any
) -> Any:
    """`lax.scan`, whose xs may be a function, and whose other options count for nothing."""
    if callable(xs):
        xs = jax.tree.map(lambda *x: np.stack(x), *(xs(i) for i in range(length)))
    return lax.scan(f, init, xs, length, reverse)


@pytest.mark.parametrize("case", [case for case in SCAN_CASES if case.name != "nested"])
def test_cases_of_the_parity_tests(case: Any) -> None:
    """Trees, integers, keys, weak types, no step at all, rules: but for the loop in its own step,
    where values are not known."""

    def outcome(transformation: str, scan: Any) -> Any:
        run = lambda *args, unroll=1, **options: scan(*args, **options)  # noqa: E731
        program = case.program(Loops(partial(run, **case.options), scan))
        return ALL[transformation](program, tuple(map(jnp.asarray, case.arguments)))

    for transformation in ("evaluate", "grad_without_jit"):
        ours, theirs = (outcome(transformation, scan) for scan in (host_scan, whole))
        same(ours, theirs, rtol=case.rtol)


@pytest.mark.parametrize("name", WORKLOADS)
def test_programs_that_are_killed_elsewhere(name: str, tmp_path: Path) -> None:
    """Those whose runs `test_host_scan_resume` ends compute what `lax.scan` does: with weights and
    ys, xs from a function, and a step that calls NumPy."""
    ours, theirs = (WORKLOADS[name](tmp_path / "run", scan) for scan in (host_scan, whole))
    same(ours, theirs, rtol=1e-10)


@pytest.mark.parametrize("reverse", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_gradients(reverse: bool, tmp_path: Path) -> None:
    """The same bits with every plan, since the same compiled steps run."""

    def gradient(scan: Any, **options: Any) -> Any:
        run = partial(mixed, partial(scan, reverse=reverse, **options))
        return jax.value_and_grad(run, (0, 1, 2))(*arguments())

    first, *others = (gradient(host_scan, **options_of(name, tmp_path)) for name in OPTIONS)
    same(first, gradient(lax.scan))
    for other in others:
        jax.tree.map(np.testing.assert_array_equal, first, other)
    assert not list(tmp_path.rglob("*.checkpoint"))


@pytest.mark.parametrize("checkpoints", [1, 2])
def test_linearize_and_several_pullbacks(checkpoints: int) -> None:
    ours = partial(mixed, partial(host_scan, checkpoints=checkpoints))
    value, pullback = jax.vjp(ours, *arguments())
    expected, their_pullback = jax.vjp(partial(mixed, lax.scan), *arguments())
    same(value, expected)
    for cotangent in (1.0, -2.0, 1.0):
        same(pullback(cotangent), their_pullback(cotangent))
    _, linear = jax.linearize(ours, *arguments())
    same(jax.linear_transpose(linear, *arguments())(1.0), their_pullback(1.0))


def test_rules_as_objects() -> None:
    """JAX traces such a function, whose values must be known here."""
    with option("jax_custom_vjp3"):
        same(
            jax.grad(partial(mixed, host_scan))(*arguments()),
            jax.grad(partial(mixed, lax.scan))(*arguments()),
        )


def cotangents_of_integers(scan: Any) -> Any:
    def run(a: Any) -> Any:
        step = lambda c, x: ((c[0] * jnp.sin(x), c[1] + 1), (c[1], c[0]))  # noqa: E731
        return scan(step, (a, 0), jnp.arange(4.0))

    def cotangent(x: Any) -> Any:
        is_float = jnp.issubdtype(x.dtype, jnp.floating)
        return np.ones(x.shape, x.dtype if is_float else jax.dtypes.float0)

    results, pullback = jax.vjp(run, 0.7)
    return results, pullback(jax.tree.map(cotangent, results))


def one_array_in_several_places(scan: Any) -> Any:
    def loss(a: Any) -> Any:
        step = lambda c, x: ((c[0] * a + x[1], c[0]), (c, c[::-1]))  # noqa: E731
        c, ys = scan(step, (a, a), (np.arange(3.0),) * 2)
        return c[0] + c[1] + sum(map(jnp.sum, jax.tree.leaves(ys)))

    return jax.value_and_grad(loss)(0.9)


@pytest.mark.parametrize("run", [cotangents_of_integers, one_array_in_several_places])
def test_same_as_lax_scan(run: Any) -> None:
    same(run(host_scan), run(whole))


def test_no_carry(tmp_path: Path) -> None:
    def loss(scan: Any, a: Any, **options: Any) -> Any:
        return jnp.sum(scan(lambda c, x: (c, jnp.sin(a * x)), (), jnp.arange(5.0), **options)[1])

    for options in ({}, {"directory": tmp_path, "save_every": 0}):
        ours = jax.value_and_grad(partial(loss, host_scan, **options))(0.3)
        same(ours, jax.value_and_grad(partial(loss, lax.scan))(0.3))


# What runs


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
    length: int, checkpoints: int, storage: Any, monkeypatch: Patch, tmp_path: Path
) -> None:
    storage = replace(storage, directory=tmp_path) if isinstance(storage, Disk) else storage
    made = plan(length, checkpoints, block_size=1, storage=storage)
    counted, keep = Counter[str](), arrays.keep

    def counting(storage: Any, values: Any) -> Any:
        held = keep(storage, values)
        if storage is None:
            return held
        counted["writes"] += 1
        return replace(held, on_device=lambda: counted.update(reads=1) or held.on_device())

    monkeypatch.setattr("jax_revolve.host.run.keep", counting)

    def loss(u: Any) -> Any:
        def step(u: Any, x: Any) -> Any:
            jax.debug.callback(lambda: counted.update(evaluations=1))
            return jnp.sin(u) * x, u

        u, ys = host_scan(step, u, jnp.ones(length), plan=made)
        return u + jnp.sum(ys)

    jax.block_until_ready(jax.value_and_grad(loss)(1.0))
    jax.effects_barrier()
    expected = {"evaluations": made.evaluations}
    if storage is not None:
        assert made.writes
        expected |= {"writes": made.writes, "reads": made.reads}
    assert counted == expected


@pytest.mark.parametrize("reverse", [False, True])
def test_functions_for_xs_and_ys(reverse: bool) -> None:
    """Called whenever a step runs, in the order of the steps, by the thread of the caller, whose
    settings they see. Each slice is asked for before Python waits for the step before."""
    events, found, steps = list[Any](), list[Any](), [*range(N)][:: -1 if reverse else 1]
    step = lambda h, x: (jnp.sin(h + x), {"y": h * x})  # noqa: E731

    def read(i: int) -> Any:
        events.append(("xs", i, threading.current_thread()))
        return np.cos(float(i))

    def consume(i: int, y: Any) -> None:
        events.append(("y", i, threading.current_thread()))
        found.append(y["y"])

    def loss(a: Any) -> Any:
        carry, ys = host_scan(step, a, read, N, reverse, checkpoints=2, consume=consume)
        assert ys is None
        return carry

    jax.grad(loss)(0.7)
    assert {thread for *_, thread in events} == {threading.current_thread()}
    order = [event[:2] for event in events]
    assert [i for of, i in order if of == "xs"] == [steps[i] for i in steps_of(plan(N, 2))]
    assert [i for of, i in order if of == "y"] == steps
    assert order.index(("xs", steps[3])) < order.index(("y", steps[0]))
    _, expected = whole(step, 0.7, lambda i: np.cos(float(i)), N, reverse)
    assert all(isinstance(y, np.ndarray) for y in found)
    np.testing.assert_allclose(found, expected["y"][jnp.array(steps)])


def test_errors_of_functions_are_raised_as_they_are() -> None:
    def failing(i: int, y: Any = None) -> Any:
        if i == 5:
            raise FileNotFoundError("no day 5")
        return np.float64(i)

    add = lambda c, x: (c + x, c)  # noqa: E731
    for xs, options in [(failing, {"length": 9}), (np.arange(9.0), {"consume": failing})]:
        with pytest.raises(FileNotFoundError, match="no day 5"):
            host_scan(add, 0.0, xs, **options)
    with pytest.raises(TypeError, match=r"xs\(2\) must have .* of the first slice"):
        host_scan(lambda c, _: (c, None), 0.0, lambda i: np.zeros(i // 2), 9)


def test_what_a_function_fills_may_change() -> None:
    """A buffer for all slices, and the initial carry."""
    start, buffer = np.full(100_000, 0.5), np.zeros(())

    def read(i: int) -> Any:
        start[:] = 0.5 if i == 0 else i
        buffer[...] = np.cos(i)
        return buffer

    def loss(a: Any, start: Any, xs: Any) -> Any:
        options: dict[str, Any] = {"checkpoints": 3}
        u, ys = host_scan(lambda u, x: (jnp.sin(a * u + x), u[:2]), start, xs, 40, **options)
        return jnp.sum(u) + jnp.sum(ys)

    ours = jax.value_and_grad(loss)(0.7, start, read)
    fresh = jax.value_and_grad(loss)(0.7, np.full(100_000, 0.5), lambda i: np.cos(float(i)))
    jax.tree.map(np.testing.assert_array_equal, ours, fresh)


# What is refused


@pytest.mark.usefixtures("default_precision")
@pytest.mark.parametrize("name", sorted({*REJECTED} - {"unroll", "traced_length"}))
def test_same_error_as_lax_scan_raises(name: str) -> None:
    check_same_error(REJECTED[name], lax.scan, host_scan)


def cube(a: Any) -> Any:
    return host_scan(lambda c, _: (c * a, None), 1.0, length=3)[0]


@pytest.mark.usefixtures("default_precision")
@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: jax.jit(jax.grad(cube))(2.0), "cannot run inside jax.jit"),
        (lambda: jax.vmap(cube)(jnp.ones(2)), "cannot run inside jax.jit"),
        (lambda: jax.vmap(jax.vjp(cube, 2.0)[1])(jnp.ones(2)), "cannot run inside jax.jit"),
        (lambda: lax.map(cube, jnp.ones(2)), "cannot run inside jax.jit"),
        (lambda: jax.grad(jax.checkpoint(cube))(2.0), "cannot run inside jax.jit"),
        (lambda: jax.grad(jax.grad(cube))(2.0), "cannot run inside jax.jit"),
        (lambda: jax.jvp(cube, (2.0,), (1.0,)), "no forward mode.*checkpointed_scan"),
        (lambda: jax.hessian(cube)(2.0), "checkpointed_scan"),
    ],
)
def test_transformations_are_refused(run: Callable[[], Any], message: str) -> None:
    with pytest.raises(NotImplementedError, match=message):
        run()


def test_effects_and_references_are_refused() -> None:
    def effect(c: Any, _: Any) -> Any:
        return c + io_callback(lambda: np.float64(1), jax.ShapeDtypeStruct((), float)), None

    with pytest.raises(NotImplementedError, match="does not support the effects of f"):
        host_scan(effect, 0.0, length=3)
    ref = jax.new_ref(jnp.zeros(()))

    def mutation(c: Any, _: Any) -> Any:
        ref[...] += 1
        return c, None

    with pytest.raises(NotImplementedError, match="does not support mutable array references"):
        host_scan(mutation, 0.0, length=3)


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
        ({"plan": plan(3, 1, block_size=2)}, ValueError, "plan must have blocks of a single step"),
        ({"version": 1.0}, TypeError, "version must be a str, an int or None"),
        ({"storage": Disk("a"), "directory": "b"}, ValueError, "storage must be Disk.'b'."),
        ({"save_every": "1"}, TypeError, "save_every must be a number >= 0"),
        ({"save_every": -1}, ValueError, "save_every must be a number >= 0"),
        ({"storage": Disk("/dev/null/a")}, NotADirectoryError, "cannot be made: Not a dir"),
        ({"xs": lambda i: i, "length": None}, TypeError, "length must be an int >= 1"),
        ({"xs": lambda i: i, "length": 0}, ValueError, "length must be an int >= 1"),
    ],
)
def test_bad_arguments(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        host_scan(**{"f": lambda c, _: (c, None), "init": 1.0, "length": 3, **options})


# Where values are


def test_xs_and_ys_on_an_explicit_mesh(tmp_path: Path) -> None:
    """The types of their slices tell where those are."""
    explicit, devices = (jax.sharding.AxisType.Explicit,), jax.devices()[:2]
    mesh = jax.make_mesh((2,), ("a",), axis_types=explicit, devices=devices)

    def loss(scan: Any, h: Any, xs: Any) -> Any:
        step = lambda h, x: (jnp.tanh(h * x), jnp.sin(h))  # noqa: E731
        h, ys = scan(step, h, xs)
        return jnp.sum(h**2) + jnp.sum(ys)

    h, xs = jnp.linspace(0.1, 1, 2), jnp.linspace(0.5, 1, 6).reshape(3, 2)
    expected = jax.grad(partial(loss, lax.scan), (0, 1))(h, xs)
    h = jax.device_put(h, NamedSharding(mesh, P("a")))
    xs = jax.device_put(xs, NamedSharding(mesh, P(None, "a")))
    scan = partial(host_scan, checkpoints=1, directory=tmp_path, save_every=0)
    with jax.set_mesh(mesh):
        ours = jax.grad(partial(loss, scan), (0, 1))(h, xs)
    same(ours, expected)
    assert [x.sharding for x in ours] == [h.sharding, xs.sharding]


def test_sharded_carries_stay_sharded(tmp_path: Path, monkeypatch: Patch) -> None:
    mesh = jax.make_mesh((8,), ("a",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding, seen, keep = NamedSharding(mesh, P("a")), list[Any](), arrays.keep

    def looking(storage: Any, values: Any) -> Any:
        held = keep(storage, values)
        seen.extend(x.sharding for x in [*values, *held.on_device()])
        return held

    monkeypatch.setattr("jax_revolve.host.run.keep", looking)

    def loss(scan: Any, w: Any, h: Any) -> Any:
        step = lambda h, _: (jnp.tanh(h * jnp.mean(h) + w), None)  # noqa: E731
        return jnp.sum(scan(step, h, length=N)[0] ** 2)

    w, h = (jax.device_put(jnp.linspace(x, 1, 16), sharding) for x in (0.1, 0.2))
    expected = jax.grad(partial(loss, lax.scan), (0, 1))(w, h)
    for name in ("some", "two levels", "disk"):
        scan = partial(host_scan, **options_of(name, tmp_path))
        ours = jax.grad(partial(loss, scan), (0, 1))(w, h)
        same(ours, expected)
        assert all(x.sharding.is_equivalent_to(sharding, 1) for x in ours)
    assert seen
    assert all(x.is_equivalent_to(sharding, 1) for x in seen)


def test_memory_on_the_device_is_that_of_the_plan(monkeypatch: Patch) -> None:
    """Besides, there are the result and its cotangent, the carry, and its cotangents before and
    after a step."""
    size, most, between_steps = 977, [0], Watch.between_steps

    def counting(watch: Watch, *arguments: Any) -> None:
        most[0] = max(most[0], sum(x.size == size for x in jax.live_arrays()))
        between_steps(watch, *arguments)

    monkeypatch.setattr(Watch, "between_steps", counting)

    def loss(start: Any, **options: Any) -> Any:
        return jnp.sum(host_scan(lambda u, _: (jnp.sin(u), None), start, length=60, **options)[0])

    two = {"checkpoints": 2, "storage": HostMemory(checkpoints=4)}  # one memory on a CPU
    for options, held in [({"checkpoints": 5}, 5), (two, 2 + 4)]:
        most[0] = 0
        jax.grad(partial(loss, **options))(jnp.ones(size))
        assert held <= most[0] <= held + 5


def test_a_memory_mapped_array_is_not_read(tmp_path: Path) -> None:
    path, rows = tmp_path / "xs", 2**38  # 1 TB, of which nothing is on the disk
    with path.open("wb") as file:
        file.truncate(4 * rows)
    xs = np.memmap(path, np.float32, "r", shape=(rows,))
    started = time.monotonic()
    digest = digest_of_array(xs)
    traced = trace(lambda c, x: (c + x, None), 0.0, xs, None, False)
    assert time.monotonic() - started < 5
    assert traced.operands.xs[0] is xs
    assert digest != digest_of_array(xs[1:])
    os.utime(path, ns=(0, 0))
    assert digest != digest_of_array(xs)


def test_numpy_arrays_reach_the_loop_as_they_are(monkeypatch: Patch) -> None:
    xs, seen, slices_of = np.ones((5, 2)), list[Any](), problem.slices_of
    monkeypatch.setattr(problem, "slices_of", lambda xs: seen.extend(xs) or slices_of(xs))
    value = lambda a: host_scan(lambda c, x: (c + a * x[0], None), 0.0, xs)[0]  # noqa: E731
    assert value(2.0) == 10
    assert jax.grad(value)(2.0) == 5
    assert seen[0] is seen[1] is xs


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


def test_progress(monkeypatch: Patch) -> None:
    monkeypatch.setattr("jax_revolve.host.watch.SECONDS_AHEAD", 0)
    log = Log()
    step = lambda c, _: (jnp.sin(c), None)  # noqa: E731
    jax.grad(lambda a: host_scan(step, a, length=4, checkpoints=4, progress=log)[0])(1.0)
    swept = [1, 2, 3, 4, 4, "closed"]
    assert log.seen == [("forward", 4), *swept, ("reverse", 4), *swept]
    assert log.noted == "8 of 8 evaluations, 8 B on the device"
    two = {"checkpoints": 1, "storage": HostMemory(checkpoints=2, transfer=0.0)}
    jax.vjp(lambda a: host_scan(step, a, length=4, progress=log, **two), jnp.ones(4))
    assert log.noted == "4 of 9 evaluations, 32 B on the device, 64 B in host memory"
