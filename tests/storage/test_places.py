"""Checkpoints beside the device: in the host's memory, on two levels, and in files."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.asked import explained_scan, for_bound, for_scan
from support.calls import option
from support.evaluations import evaluations, steps_executed
from support.oracles import assert_close

import jax_revolve.loops.options as storage_checks
from jax_revolve import Disk, HostMemory, bounded_while_loop, checkpointed_scan, plan
from jax_revolve._compat.memories import default_device, to_device
from jax_revolve.profiles.profile import CPU
from jax_revolve.schedule import cost
from jax_revolve.schedule.plan import Plan
from jax_revolve.storage import buffers, files

pytestmark = pytest.mark.usefixtures("default_precision")

quick = pytest.mark.usefixtures("compile_quickly")

X: Any = np.linspace(-1.0, 1.0, 16, dtype=np.float32)


def step(u: jax.Array, t: Any) -> tuple[jax.Array, jax.Array]:
    u = jnp.sin(1.1 * u + 0.1 * t) + 0.2 * jnp.roll(u, 1)
    return u, u.sum()


def loss(x: jax.Array, length: int = 40, **options: Any) -> jax.Array:
    ts = 0.1 * jnp.arange(length)
    final, ys = checkpointed_scan(step, x, ts, **options)
    return jnp.sum(final**2) + jnp.vdot(ys, ts)


def loss_of_while(x: jax.Array, steps: Any, max_steps: int | None, **options: Any) -> jax.Array:
    body = lambda state: (step(state[0], 0.1 * state[1])[0], state[1] + 1)  # noqa: E731
    run = partial(bounded_while_loop, max_steps=max_steps, throw=False, **options)
    return jnp.sum(run(lambda state: state[1] < steps, body, (x, jnp.int32(0)))[0] ** 2)


def places(directory: Path) -> dict[str, dict[str, Any]]:
    """Places for checkpoints, with the checkpoints on the device."""
    return {
        "host": {"checkpoints": 0, "storage": HostMemory(checkpoints=6)},
        "two levels": {"checkpoints": 3, "storage": HostMemory(transfer=1)},
        "few": {"checkpoints": 2, "storage": HostMemory(checkpoints=3, transfer=0)},
        "disk": {"checkpoints": 3, "storage": Disk(directory, transfer=1)},
    }


PLACES = list(places(Path()))


@pytest.mark.parametrize(
    ("place", "block_size"),
    [
        *(("host", 4), ("two levels", 1), ("few", 4), ("disk", 1)),
        *(pytest.param(place, 1, marks=pytest.mark.slow) for place in ("host", "few")),
        *(pytest.param(place, 4, marks=pytest.mark.slow) for place in ("two levels", "disk")),
    ],
)
def test_gradients_are_those_of_the_device_bit_for_bit(
    place: str, block_size: int, tmp_path: Path
) -> None:
    def gradient(length: int, **options: Any) -> Any:
        return jax.jit(jax.value_and_grad(partial(loss, length=length, **options)))(X)

    options = {"block_size": block_size, **places(tmp_path)[place]}
    for length in (1, 41):
        ours, on_device = gradient(length, **options), gradient(length, checkpoints=4)
        jax.tree.map(np.testing.assert_array_equal, ours, on_device)


@quick
@pytest.mark.parametrize("place", PLACES)
def test_while_loops_stop_anywhere(place: str, tmp_path: Path) -> None:
    """Before, at and after each carry that is stored, and at the bound."""
    options = places(tmp_path)[place]
    value_and_grad = jax.value_and_grad(loss_of_while)
    run = jax.jit(partial(value_and_grad, max_steps=30, **options))
    on_device = jax.jit(partial(value_and_grad, max_steps=30, checkpoints=4))
    for steps in (0, 1, 2, 3, 7, 12, 13, 28, 29, 30, 32):
        jax.tree.map(np.testing.assert_array_equal, run(X, steps), on_device(X, steps))
    assert not list(tmp_path.glob("*/*.*"))


@quick
@pytest.mark.parametrize(
    ("length", "checkpoints", "storage", "block_size"),
    [(200, 3, HostMemory(transfer=5), 4), (61, 1, HostMemory(transfer=0), 1)],
)
def test_it_runs_as_often_as_the_plan_says(
    length: int, checkpoints: int, storage: HostMemory, block_size: int
) -> None:
    chosen = plan(length, checkpoints, block_size=block_size, storage=storage)
    assert chosen.stores
    assert len(steps_executed(length, None, jax.grad, plan=chosen)) == chosen.evaluations
    ran = evaluations(length + 1, jax.grad, max_steps=length, plan=chosen, throw=False)
    assert ran == cost.evaluations(chosen, is_while=True)


@pytest.mark.parametrize(("transfer", "checkpoints"), [(0.25, None), (0.5, 4)])
def test_files_are_written_and_read_as_the_plan_says(
    transfer: float, checkpoints: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def note(name: str) -> None:
        function = getattr(files, name)
        noting = lambda *args, **named: calls.append(name) or function(*args, **named)  # noqa: E731
        monkeypatch.setattr(files, name, noting)

    note("write_file")
    note("read_file")
    storage = Disk(tmp_path, checkpoints=checkpoints, transfer=transfer)
    chosen = plan(50, 2, storage=storage)
    jax.jit(jax.grad(partial(loss, length=50, checkpoints=2, storage=storage)))(X)
    assert calls == ["write_file"] * chosen.writes + ["read_file"] * chosen.reads
    assert not list(tmp_path.glob("*/*.*"))


# In the host's memory


def _types(function: Callable[..., Any], *arguments: Any) -> set[tuple[tuple[int, ...], bool]]:
    """Shapes of what is moved, each with whether it is moved to the host, on a TPU. A CPU has but
    one memory, and JAX leaves moves out of what it lowers for that."""
    text = jax.jit(function).trace(*arguments).lower(lowering_platforms=("tpu",)).as_text()
    moved = [line for line in text.splitlines() if "annotate_device_placement" in line]
    found = set()
    for line in moved:
        shape = line.rsplit("tensor<", 1)[1].split("xf", 1)[0]
        found.add((tuple(map(int, shape.split("x"))), "pinned_host" in line))
    return found


@pytest.mark.parametrize("place", ["host", "two levels"])
def test_single_carries_are_moved_and_no_more(place: str, tmp_path: Path) -> None:
    """Each move is that of one carry: no buffer is moved as a whole, nor made on the device."""
    options = places(tmp_path)[place]
    assert _types(jax.grad(partial(loss, **options)), X) == {((16,), True), ((16,), False)}
    assert _types(jax.grad(partial(loss, checkpoints=6)), X) == set()
    batched = _types(jax.vmap(jax.grad(partial(loss, **options))), jnp.stack([X, X]))
    assert batched == {((2, 16), True), ((2, 16), False)}


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The backend's memory has not been tried, and is tried again by others."""
    storage_checks.check_host_memory.cache_clear()
    yield monkeypatch
    storage_checks.check_host_memory.cache_clear()


def test_a_backend_without_that_memory_or_with_wrong_gradients_is_refused(
    untried: pytest.MonkeyPatch,
) -> None:
    """As XLA did on GPUs: a value that comes back from the host's memory is another one."""
    gradient = partial(jax.grad(loss), X, checkpoints=0, storage=HostMemory(checkpoints=3))
    untried.setattr(buffers, "to_device", lambda x: to_device(x) + 1)
    with pytest.raises(RuntimeError, match=r"host's memory is wrong on the cpu backend"):
        gradient()
    untried.setattr(storage_checks, "has_host_memory", lambda: False)
    with pytest.raises(ValueError, match=r"storage must be None or a Disk on the cpu backend"):
        gradient()
    untried.undo()
    assert np.isfinite(gradient()).all()


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize(
    "setting", [partial(jax.transfer_guard, "disallow"), jax.disable_jit], ids=["guard", "no jit"]
)
def test_host_memory_is_tried_under_any_setting(setting: Any) -> None:
    """Without jit, the gradient that it is tried with had no loop. Found by a random program."""
    with setting():
        storage_checks.try_storage(Plan(10, 3, 1, HostMemory()))


def test_host_memory_is_tried_on_the_default_device(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr(storage_checks, "check_host_memory", tried.append)
    monkeypatch.setattr(jax, "default_backend", lambda: "another")
    first, fourth = jax.devices()[0], jax.devices()[3]
    for device, found in ((None, first), ("cpu", first), (fourth, fourth)):
        with jax.default_device(device):
            assert default_device() == found
            storage_checks.try_storage(Plan(10, 3, 1, HostMemory()))
    assert tried == ["cpu"] * 3


# Budgets


def test_two_budgets() -> None:
    state = jax.ShapeDtypeStruct((1000,), jnp.float32)
    explained = partial(explained_scan, lambda u, _: (jnp.sin(u), None), state, length=1000)
    report, alone = (
        explained(memory="60kB", storage=storage) for storage in (HostMemory(memory="100kB"), None)
    )
    assert report.plan.segments
    assert report.memory(report.plan) <= 60_000
    assert report.plan.storage_bytes(report.sizes.checkpoint) <= 100_000
    assert report.evaluations(report.plan) < alone.evaluations(alone.plan)


def test_a_transfer_takes_what_the_device_says() -> None:
    """It was five steps, whatever the step and the carry. What does not pay is left out."""
    taken = {"host_transfer": 500.0, "host_byte": 0.5, "disk_transfer": 4500.0, "disk_byte": 0.5}
    profile = replace(CPU, evaluation=0.0, **taken)
    for work, on_host, on_disk in ((100.0, 10.0, 50.0), (1000.0, 1.0, 5.0)):
        sizes = cost.Sizes(1000, 1000, 1000, 1000, work=work, profile=profile)
        for storage, steps in ((HostMemory(), on_host), (Disk("."), on_disk)):
            given = replace(storage, transfer=steps)
            for call in (for_scan, for_bound):
                wanted = call(1000, 3, storage=storage, sizes=sizes)
                given_plan = plan(1000, 3, storage=given)
                assert wanted == call(1000, 3, storage=given) == given_plan
    assert for_scan(10, 9, storage=HostMemory(transfer=100)) == plan(10, 9)


@pytest.mark.parametrize("call", [for_scan, for_bound])
def test_bytes_of_a_storage_are_counted_when_sizes_are_known(call: Any) -> None:
    """The start of a while loop's tail is one of the checkpoints in the storage."""
    sizes = cost.Sizes(1000, 1000, 1000, 1000)
    tail = 1 if call is for_bound else 0
    for checkpoints, stored in ((3, 9 - tail), (0, 9)):
        wanted = call(100, checkpoints, 5, storage=HostMemory(memory=9000), sizes=sizes)
        expected = plan(100, checkpoints, block_size=5, storage=HostMemory(checkpoints=stored))
        assert wanted == expected
    with pytest.raises(ValueError, match=f"at least {1000 * (1 + tail)} bytes here, but is 999"):
        call(100, 3, storage=HostMemory(memory=999), sizes=sizes)


@pytest.mark.parametrize("limit", [{"memory": 5 * X.nbytes}, {"checkpoints": 5}])
def test_all_on_the_host_without_a_bound(limit: dict[str, Any]) -> None:
    stored = jax.grad(loss_of_while)(X, 20, None, checkpoints=0, storage=HostMemory(**limit))
    on_device = jax.grad(loss_of_while)(X, 20, None, checkpoints=5)
    np.testing.assert_array_equal(stored, on_device)
    with pytest.raises(ValueError, match=r"storage must be .* where max_steps is None"):
        loss_of_while(X, 3, None, storage=HostMemory())
    with pytest.raises(ValueError, match=r"storage must be None where"):
        loss(X, storage=HostMemory(), plan=plan(40, 3))


# In files


def in_files(directory: Path) -> dict[str, Any]:
    return {"checkpoints": 3, "storage": Disk(directory, transfer=1)}


def on_disk(directory: Path) -> Callable[[jax.Array], jax.Array]:
    return partial(loss, **in_files(directory))


def test_keys_narrow_types_and_several_cotangents_in_files(tmp_path: Path) -> None:
    def noisy(state: Any, _: Any) -> Any:
        u, key = state
        key, own = jax.random.split(key)
        return (jnp.sin(u) + u * jax.random.uniform(own, u.shape, u.dtype), key), None

    def run(x: jax.Array, **options: Any) -> jax.Array:
        carry, _ = checkpointed_scan(noisy, (x, jax.random.key(0)), length=30, **options)
        return carry[0].astype(jnp.float32)

    places, x = (in_files(tmp_path), {"checkpoints": 4}), X.astype(jnp.bfloat16)
    np.testing.assert_array_equal(*(jax.jacrev(partial(run, **options))(x) for options in places))


def test_a_pullback_works_once(tmp_path: Path) -> None:
    """Its files are gone then, and it says so."""
    value, pullback = jax.vjp(on_disk(tmp_path), X)
    assert list(tmp_path.glob("*/*.checkpoint"))
    pullback(jnp.ones_like(value))
    with pytest.raises(Exception, match=r"can be called once"):
        pullback(jnp.ones_like(value))


@pytest.mark.parametrize("order", [1, 2])
def test_files_in_a_branch_that_is_mapped(order: int, tmp_path: Path) -> None:
    """JAX runs both branches, and the one that is not taken reads a file of no ticket."""
    storage = Disk(tmp_path, checkpoints=2, transfer=0.1)
    in_files = partial(checkpointed_scan, length=6, checkpoints=1, storage=storage)

    def gradients(scan: Any) -> Any:
        step = lambda c, _: (1.1 * jnp.sin(c), None)  # noqa: E731
        loop = lambda x: scan(step, x, None)[0]  # noqa: E731
        loss = lambda p, x: jnp.sum(lax.cond(p, loop, jnp.square, x) ** 2)  # noqa: E731
        derivative = (jax.grad, jax.hessian)[order - 1](loss, 1)
        return jax.jit(jax.vmap(derivative))(np.array([True, False]), np.ones((2, 3)))

    assert_close(gradients(in_files), gradients(partial(lax.scan, length=6)), rtol=1e-5)


@pytest.mark.parametrize("wrapped", [jax.jit, jax.checkpoint])
def test_equal_sweeps_write_files_of_their_own(wrapped: Any, tmp_path: Path) -> None:
    """XLA merges equal calls without effects: two sweeps had the same files, and what the first one
    removed, the other one did not find. Random programs 3118080 and 3115126 met it."""

    def total(x: jax.Array, **options: Any) -> jax.Array:
        run = wrapped(partial(loss, **options))
        pullbacks = [jax.vjp(run, x)[1] for _ in range(2)]
        return jnp.stack([pull(y)[0] for pull, y in zip(pullbacks, x[:2], strict=True)])

    on_device = jax.jit(total)(X)
    ours = jax.jit(partial(total, **in_files(tmp_path)))(X)
    np.testing.assert_allclose(ours, on_device, rtol=1e-5, atol=1e-6)


def test_a_directory_that_goes_away_or_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "with" / "parents"
    compiled = jax.jit(jax.grad(on_disk(directory))).lower(X).compile()
    expected = compiled(X)
    shutil.rmtree(directory.parent)
    np.testing.assert_array_equal(compiled(X), expected)
    shutil.rmtree(directory)
    directory.mkdir(0o500)
    if os.geteuid() != 0:  # root may write anywhere
        with pytest.raises(PermissionError, match=r"cannot be made"):
            jax.grad(on_disk(directory))(X)
    directory.chmod(0o700)
    full = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(Exception, match=r"checkpoint of 64 bytes could not be written to .*No spa"):
        compiled(X)
    assert not list(directory.glob("*/*.*"))


@pytest.mark.parametrize("damage", ["cut", "changed", "another's"])
def test_a_damaged_file_is_refused(damage: str, tmp_path: Path) -> None:
    value, pullback = jax.vjp(on_disk(tmp_path), X)
    first, second, *_ = sorted(tmp_path.glob("*/*.checkpoint"))
    content = first.read_bytes()
    changed = content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]
    damaged = {"cut": content[:-8], "changed": changed, "another's": second.read_bytes()}
    first.write_bytes(damaged[damage])
    with pytest.raises(Exception, match=r"is damaged: it is not what was written"):
        pullback(jnp.ones_like(value))


KILLED = """
import os, signal, sys
import jax, jax.numpy as jnp
from jax_revolve import Disk, checkpointed_scan
from jax_revolve.storage import files

count, replace = 0, os.replace

def replace_or_die(*paths):
    global count
    count += 1
    if count == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(*paths)

if sys.argv[2] == "killed":
    files.os.replace = replace_or_die

def loss(x):
    storage = Disk(sys.argv[1], transfer=0)
    return checkpointed_scan(lambda u, _: (jnp.sin(u), None), x, None, 12, checkpoints=1,
                             storage=storage)[0].sum()

jax.vjp(loss, jnp.ones(4))
if sys.argv[2] != "unused":
    print(jax.grad(loss)(jnp.ones(4)).tolist())
"""

FORKED = """
import os, sys
import numpy as np
from jax_revolve.storage import files

ours = files.write_file(sys.argv[1], [np.zeros(4)])
child = os.fork()
if not child:
    theirs = files.write_file(sys.argv[1], [np.ones(4)])
    sys.exit(int((theirs == ours).all()))
assert os.waitpid(child, 0)[1] == 0
like = [((4,), np.dtype(float))]
(kept,) = files.read_file(sys.argv[1], ours, like, is_last=True)
assert not kept.any()
"""


def run_program(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path: Path) -> None:
    assert run_program(KILLED, tmp_path, "killed").returncode == -9
    assert {path.suffix for path in tmp_path.glob("*/*")} == {".checkpoint", ".part", ""}
    later = run_program(KILLED, tmp_path, "whole")
    assert later.returncode == 0, later.stderr
    expected = jax.grad(lambda x: lax.scan(lambda u, _: (jnp.sin(u), None), x, None, 12)[0].sum())
    np.testing.assert_allclose(eval(later.stdout), expected(jnp.ones(4)), rtol=1e-6)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("program", [KILLED, FORKED], ids=["unread", "forked"])
def test_files_are_removed_at_exit(program: str, tmp_path: Path) -> None:
    """A forked process once had its parent's numbers, wrote over its files and removed them."""
    ran = run_program(program, tmp_path, "unused")
    assert ran.returncode == 0, ran.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("outer", [{}, {"checkpoints": 2, "block_size": 2}], ids=str)
def test_a_loop_in_a_loop_with_checkpoints_in_the_hosts_memory(outer: dict[str, Any]) -> None:
    """What the inner loop holds is a residual of the outer step, which was put through a branch and
    into buffers as if it were on the device. Found by a random program."""

    def gradient(outer_scan: Any, inner_scan: Any) -> Any:
        def step(x: Any, scale: Any) -> tuple[Any, None]:
            inner = lambda x, scale: (jnp.sin(x) * scale, None)  # noqa: E731
            return inner_scan(inner, x, scale * jnp.array([1.0, 0.9, 1.1]))[0], None

        loss = lambda x: jnp.sum(outer_scan(step, x, jnp.linspace(0.5, 1, 5))[0])  # noqa: E731
        return jax.jit(jax.grad(loss))(jnp.linspace(0.1, 1, 4))

    inner = partial(checkpointed_scan, checkpoints=0, storage=HostMemory(checkpoints=3))
    ours = gradient(partial(checkpointed_scan, **outer), inner)
    np.testing.assert_allclose(ours, gradient(lax.scan, lax.scan), rtol=1e-5)


@pytest.mark.usefixtures("compile_quickly")
@pytest.mark.parametrize("name", ["weight", "keys", "vmap of grad", "vmap of a counter"])
def test_a_sharded_carry_on_an_explicit_mesh(name: str, tmp_path: Path) -> None:
    """A restored carry was once replicated, of another type than the one that was written. A
    counter was another one for each example, which JAX refuses as an index (3112588)."""
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
    put = lambda x, *axes: jax.device_put(x, jax.NamedSharding(mesh, jax.P(*axes)))  # noqa: E731
    x, weights = put(jnp.arange(8.0).reshape(4, 2) / 8, "i"), put(0.9 * jnp.eye(2))
    keys, scales = put(jax.random.split(jax.random.key(0), 4), "i"), jnp.linspace(0.5, 1, 9)

    def noisy(carry: Any, _: Any) -> Any:
        x, keys = carry
        noise = jax.vmap(lambda key: jax.random.normal(key, (2,)))(keys)
        return (jnp.sin(x) * (1 + noise), jax.vmap(partial(jax.random.fold_in, data=1))(keys)), None

    def loss(scan: Any, x: Any) -> Any:
        if name == "keys":
            return jnp.sum(scan(noisy, (x, keys), length=9)[0][0])
        if name == "vmap of a counter":
            step = lambda c, _: ((c[0] + 1, jnp.sin(c[1]) * scales[c[0]]), None)  # noqa: E731
            return jnp.sum(scan(step, (0, x), length=9)[0][1])
        return jnp.sum(scan(lambda c, _: (jnp.tanh(c @ weights), None), x, length=9)[0])

    storage = Disk(tmp_path, checkpoints=2, transfer=0.1)
    ours = partial(checkpointed_scan, checkpoints=2, storage=storage)
    gradients = [jax.grad(partial(loss, scan)) for scan in (ours, lax.scan)]
    if name.startswith("vmap"):
        gradients = map(jax.vmap, gradients)
    found, expected = (jax.jit(gradient)(x) for gradient in gradients)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("is_switched", [True, False])
def test_slots_without_tangents_on_the_host(is_switched: bool) -> None:
    """In a Hessian-vector product, the first slots have none. With `jax_custom_jvp3`, JAX fills in
    zeros, which were on the device."""

    def loss(scan: Any, w: Any, x: Any) -> Any:
        return jnp.sum(scan(lambda c, _: (jnp.sin(w @ c), None), x, None, 9)[0] ** 2)

    def product(scan: Any, w: Any) -> Any:
        x = jnp.linspace(0.5, 1.0, 6).reshape(2, 3)
        gradient = jax.grad(lambda w: jnp.sum(jax.vmap(partial(loss, scan, w))(x)))
        return jax.jvp(gradient, (w,), (jnp.cos(w),))[1]

    places: Any = {"checkpoints": 1, "storage": HostMemory(checkpoints=2, transfer=0.1)}
    w = jnp.linspace(0.1, 0.5, 9).reshape(3, 3)
    expected = jax.jit(partial(product, lax.scan))(w)
    with option("jax_custom_jvp3") if is_switched else nullcontext():
        ours = jax.jit(partial(product, partial(checkpointed_scan, **places)))(w)
    np.testing.assert_allclose(ours, expected, rtol=1e-5)
