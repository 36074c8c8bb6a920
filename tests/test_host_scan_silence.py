"""What could go wrong in `host_scan` without a word: each of these did, or could have."""

import hashlib
import os
import random
import shutil
import signal
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_host_scan_resume import Ended, acting, bits, contents, ends_at, run

from jax_revolve import Disk, HostMemory, host_scan, plan
from jax_revolve.host import directory as run_directory
from jax_revolve.host import problem
from jax_revolve.host.fingerprint import Contents, digest_of_array
from jax_revolve.host.problem import trace
from jax_revolve.host.watch import Watch
from jax_revolve.schedule.actions import SCHEDULE
from jax_revolve.schedule.selection import Request
from jax_revolve.storage.states import States

pytestmark = pytest.mark.usefixtures("default_precision")

# Slices of a function


def test_a_function_may_fill_one_buffer() -> None:
    def loss(a: Any, xs: Any) -> Any:
        u, ys = host_scan(lambda u, x: (jnp.sin(a * u + x), u), a, xs, 40, checkpoints=3)
        return u + jnp.sum(ys)

    buffer = np.zeros(())

    def read(i: int) -> Any:
        buffer[...] = np.cos(i)
        return buffer

    fresh = lambda i: np.cos(float(i))  # noqa: E731
    assert bits(jax.value_and_grad(loss)(0.7, read)) == bits(jax.value_and_grad(loss)(0.7, fresh))


def test_an_initial_carry_may_change_while_the_loop_runs() -> None:
    start = np.full(100_000, 0.5)

    def read(i: int) -> Any:
        start[:] = 0.5 if i == 0 else i
        return 0.0

    step = lambda u, x: (jnp.sin(u) + x, None)  # noqa: E731
    carry, _ = host_scan(step, start, read, 3)
    np.testing.assert_allclose(carry, np.sin(np.sin(np.sin(0.5))), rtol=1e-6)


def test_a_function_is_called_with_the_settings_of_the_caller() -> None:
    """That is, by its thread. Each slice is asked for before Python waits for the step before."""
    events: list[Any] = []

    def read(i: int) -> Any:
        events.append(("xs", i, threading.current_thread()))
        return jnp.ones(()) * i

    def consume(i: int, y: Any) -> None:
        events.append(("y", i, threading.current_thread()))

    host_scan(lambda c, x: (c + x, x), 0.0, read, 4, consume=consume)
    assert {thread for *_, thread in events} == {threading.current_thread()}
    order = [event[:2] for event in events]
    assert order.index(("xs", 3)) < order.index(("y", 0))


# The run is another one


def test_what_cannot_be_pickled_needs_a_version(tmp_path: Path) -> None:
    file = (tmp_path / "forcing").open("w+b")
    file.write(np.arange(6.0).tobytes())

    def read(i: int) -> Any:
        file.seek(8 * i)
        return np.frombuffer(file.read(8))[0]

    def value(**options: Any) -> Any:
        step = lambda u, x: (u + x, None)  # noqa: E731
        return host_scan(step, 0.0, read, 6, directory=tmp_path / "run", **options)[0]

    with file, pytest.raises(ValueError, match=r"version must not be None .*read, file of xs"):
        value()
    with (tmp_path / "forcing").open("rb") as file:
        assert value(version="1") == value(version="1") == 15
        with pytest.raises(ValueError, match="has another run: the version differ"):
            value(version="2")


def test_modules_caches_and_recursion_are_known() -> None:
    def recursive(i: int) -> int:
        return i if i < 1 else recursive(i - 1)

    first, again = (Contents().of("f", recursive, np.sin, np.random, jnp.sin) for _ in range(2))
    assert first == again
    known: dict[Any, Any] = {"self": recursive}
    known["itself"] = known
    assert Contents().of("f", known) == Contents().of("f", known)


def test_colors_and_addresses_do_not_count() -> None:
    """JAX prints what it is made of in colors in a terminal: a run that began there did not go on
    in a pipe."""

    class Printed:
        __module__ = "jax.printed"
        text = ""

        def __repr__(self) -> str:
            return Printed.text

    digests = []
    for Printed.text in ("f at 0x12", "\x1b[31mf\x1b[0m at 0xab", "g"):
        digests.append(Contents().of("f", Printed()))
    assert digests[0] == digests[1] != digests[2]


def test_a_run_goes_on_by_its_own_plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever would be chosen today."""
    budget: dict[str, Any] = {"checkpoints": None, "memory": 100}
    expected = bits(run(tmp_path / "whole", **budget))
    with ends_at(100, monkeypatch), pytest.raises(Ended):
        run(tmp_path / "run", **budget)
    other = plan(9, 1, block_size=1)
    monkeypatch.setattr(Request, "resolve", lambda *_: other)
    fresh = run(tmp_path / "fresh", **budget)
    np.testing.assert_allclose(
        jax.tree.leaves(fresh)[0], np.frombuffer(expected[:4], np.float32), 1e-5
    )
    assert bits(run(tmp_path / "run", **budget)) == expected


@pytest.mark.parametrize("name", ["SCHEDULE", "LAYOUT"])
def test_another_version_of_saved_runs_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run(tmp_path)
    before = contents(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(run_directory, name, 1000)
        with pytest.raises(ValueError, match=f"the version of the {name.lower()} differ"):
            run(tmp_path)
    assert contents(tmp_path) == before


def test_the_version_of_the_schedule_is_that_of_its_actions() -> None:
    """If this fails, saved runs would go on elsewhere: give `SCHEDULE` another number, and write
    the new digest here."""
    plans = [plan(n, s, block_size=1) for n in (1, 2, 17, 100) for s in (1, 3, 20)]
    storages = [HostMemory(checkpoints=3, transfer=0.5), Disk("", transfer=2.0)]
    plans += [plan(50, s, block_size=1, storage=x) for s in (1, 4) for x in storages]
    actions = [[(type(a).__name__, *a) for a in each] for each in plans]
    digest = hashlib.sha256(repr(actions).encode()).hexdigest()
    assert (SCHEDULE, digest[:16]) == (1, "ad00f027134c3f7e")


def test_a_second_cotangent_has_its_own_gradient(tmp_path: Path) -> None:
    """The directory keeps the first one's."""

    def pullbacks(directory: Any) -> list[bytes]:
        _, pullback = jax.vjp(lambda a: run(directory, start=a, is_value=True), 0.7)
        return [bits(pullback(jnp.asarray(ct))) for ct in (1.0, -2.0, 1.0)]

    expected = pullbacks(None)
    for _ in range(2):
        assert pullbacks(tmp_path) == expected


def test_ys_in_a_local_class(tmp_path: Path) -> None:
    class Local:
        def __init__(self, y: Any) -> None:
            self.y = y

    jax.tree_util.register_pytree_node(Local, lambda x: ([x.y], None), lambda _, y: Local(*y))
    step = lambda u, _: (u * 2, Local(u))  # noqa: E731
    for _ in range(2):
        options = {"length": 5, "directory": tmp_path, "save_every": 0}
        _, ys = host_scan(step, 1.0, **options)
        np.testing.assert_array_equal(ys.y, 2.0 ** np.arange(5))


def test_two_threads_in_one_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The second is refused, also in the same thread."""
    expected, refused = bits(run(tmp_path / "whole")), list[Exception]()
    between_steps = Watch.between_steps

    def call_again(*arguments: Any) -> None:
        monkeypatch.setattr(Watch, "between_steps", between_steps)
        for in_thread in (True, False):
            if in_thread:
                thread = threading.Thread(target=call)
                thread.start()
                thread.join()
            else:
                call()
        between_steps(*arguments)

    def call() -> None:
        with pytest.raises(RuntimeError, match="is used by another call in this process") as caught:
            run(tmp_path / "run")
        refused.append(caught.value)

    monkeypatch.setattr(Watch, "between_steps", call_again)
    assert bits(run(tmp_path / "run")) == expected
    assert len(refused) == 2


def test_another_call_goes_on_between_the_sweeps(tmp_path: Path) -> None:
    """And the pullback then, where that one was."""
    expected = bits(jax.grad(lambda a: run(tmp_path / "whole", start=a, is_value=True))(1.0))
    pull = lambda: jax.vjp(lambda a: run(tmp_path / "run", start=a, is_value=True), 1.0)[1]  # noqa: E731
    first, second = pull(), pull()
    assert bits(second(1.0)) == expected
    assert bits(first(1.0)) == expected
    third = pull()
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(FileNotFoundError):
        third(1.0)


# Interrupts


@contextmanager
def interrupted_at(
    event: int | None, twice: bool, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[str]]:
    """Ctrl-C before that event, once or twice."""

    def interrupt() -> None:
        for _ in range(1 + twice):
            signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    with acting(event, interrupt, monkeypatch) as events:
        yield events


def check_interrupts(numbers: Any, monkeypatch: Any, tmp_path: Path) -> None:
    """At each of these events, and then a little later, once or twice."""
    with interrupted_at(None, False, monkeypatch) as events:
        expected = bits(run(tmp_path / "whole"))
    for event in numbers(len(events)):
        directory, twice = tmp_path / str(event), bool(event % 2)
        for at in (event, event // 2, 3):
            with interrupted_at(at, twice, monkeypatch) as seen:
                try:
                    assert bits(run(directory)) == expected
                    assert len(seen) <= at, "the interrupt is swallowed"
                except KeyboardInterrupt as interrupt:
                    notes = getattr(interrupt, "__notes__", [])
                    assert twice or notes, "nothing says that the run is saved"
                    if any("host_scan saved the run" in note for note in notes):
                        assert list(directory.rglob("state-*.json"))
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert bits(run(directory)) == expected, event
        shutil.rmtree(directory)


@pytest.mark.parametrize("everywhere", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_interrupts(everywhere: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    some = lambda n: random.Random(1).sample(range(n), 5)  # noqa: E731
    check_interrupts(range if everywhere else some, monkeypatch, tmp_path)


# Damage


def damages(content: bytes, draw: random.Random) -> dict[str, bytes | None]:
    """A file that is cut, changed, empty, longer, something else, or not there."""
    at = draw.randrange(max(len(content), 1))
    changed = bytes([content[at] ^ (1 << draw.randrange(8))]) if content else b"?"
    return {
        "cut": content[:at],
        "changed": content[:at] + changed + content[at + 1 :],
        "empty": b"",
        "longer": content + b"?",
        "zeros": bytes(len(content)),
        "missing": None,
    }


@pytest.mark.parametrize("event", [150, pytest.param(60, marks=pytest.mark.slow)])
def test_every_file_that_can_be_damaged(
    event: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The run goes on from the state before, as it always can if it is the newest one that is
    damaged, or says that there is none."""
    expected, begun = bits(run(tmp_path / "whole")), tmp_path / "begun"
    draw, went_on, refused = random.Random(event), 0, 0
    with ends_at(event, monkeypatch), pytest.raises(Ended):
        run(begun)
    paths = [path.relative_to(begun) for path in sorted(begun.rglob("*")) if path.is_file()]
    newest = max(begun.rglob("state-*.json"), key=lambda path: int(path.stem[6:]))
    for path in paths:
        for name, content in damages((begun / path).read_bytes(), draw).items():
            directory = tmp_path / "run"
            shutil.copytree(begun, directory)
            if content is None:
                (directory / path).unlink()
            else:
                (directory / path).write_bytes(content)
            try:
                assert bits(run(directory)) == expected, (path, name)
                went_on += 1
            except OSError as error:
                assert "is damaged, or missing" in str(error), (path, name)  # noqa: PT017
                assert begun / path != newest, name
                refused += 1
            shutil.rmtree(directory)
    assert went_on > 10
    for path in begun.rglob("state-*.json"):
        path.write_bytes(b"?")
    with pytest.raises(OSError, match="Every state in the directory"):
        run(begun)
    assert went_on + refused == 6 * len(paths)


# Copies


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


def test_numpy_arrays_reach_the_loop_as_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    np.save(tmp_path / "xs.npy", np.ones((5, 2), np.float32))
    xs, seen = np.load(tmp_path / "xs.npy", mmap_mode="r"), list[Any]()
    real = problem.slices_of
    monkeypatch.setattr(problem, "slices_of", lambda xs: seen.extend(xs) or real(xs))
    value = lambda a: host_scan(lambda c, x: (c + a * x[0], None), 0.0, xs)[0]  # noqa: E731
    assert value(2.0) == 10
    assert jax.grad(value)(2.0) == 5
    assert seen[0] is seen[1] is xs


def test_arrays_are_written_and_fingerprinted_without_copies(tmp_path: Path) -> None:
    array, states = np.ones((1000, 2000)), States(tmp_path / "states")
    states.lock()
    tracemalloc.start()
    file = states.write([array, array[:, :3], np.float32(2) * np.ones(())])
    digest_of_array(array)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < array.nbytes / 4
    for ours, theirs in zip(states.read(file), (array, array[:, :3], 2), strict=True):
        np.testing.assert_array_equal(ours, theirs)
