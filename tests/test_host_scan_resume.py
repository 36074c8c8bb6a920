"""A run of `host_scan` that ends anywhere goes on, and its result has the same bits."""

import errno
import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import host_scan_program
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from host_scan_program import WORKLOADS

from jax_revolve import HostMemory, host_scan
from jax_revolve.host.watch import Watch
from jax_revolve.storage import files

pytestmark = pytest.mark.usefixtures("default_precision")

PROGRAM = Path(host_scan_program.__file__)


def bits(result: Any) -> bytes:
    return b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(result))


@cache
def expected(name: str) -> bytes:
    """The result of a run that nothing interrupts."""
    with tempfile.TemporaryDirectory() as directory:
        return bits(WORKLOADS[name](directory))


class Ended(BaseException):
    """The end of a process, as far as its files can tell."""


def end() -> None:
    raise Ended


@contextmanager
def acting(
    at: int | None, act: Any, monkeypatch: pytest.MonkeyPatch, *, steps_only: bool = False
) -> Iterator[list[str]]:
    """Acts once before that step, write, sync, rename or removal of a file, and notes them all. Of
    `steps_only`, it acts after the evaluation with that number."""
    events: list[str] = []

    def before(name: str, function: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            events.append(name)
            if len(events) - 1 == at:
                act()
            return function(*args, **kwargs)

        return run

    with monkeypatch.context() as patched:
        patched.setattr(Watch, "between_steps", before("step", Watch.between_steps))
        if not steps_only:
            patched.setattr(files.os, "fsync", before("fsync", lambda _: None))  # it takes its time
            patched.setattr(files.os, "replace", before("replace", os.replace))
            patched.setattr(Path, "unlink", before("unlink", Path.unlink))
        yield events


def ends_at(event: int | None, monkeypatch: pytest.MonkeyPatch) -> Any:
    return acting(event, end, monkeypatch)


def run_until_the_end(name: str, directory: Path, event: int, monkeypatch: Any) -> bytes:
    """The first run ends at the event, the second a little later, the third not at all."""
    for at in (event, event // 3 + 5, None):
        with ends_at(at, monkeypatch):
            try:
                return bits(WORKLOADS[name](directory))
            except Ended:
                continue
    raise AssertionError("the last run does not end early")


def check_ends(name: str, numbers: Any, monkeypatch: Any, tmp_path: Path, wanted: bytes) -> None:
    with ends_at(None, monkeypatch) as events:
        WORKLOADS[name](tmp_path / "whole")
    assert {"step", "fsync", "replace", "unlink"} == set(events)
    for event in numbers(len(events)):
        directory = tmp_path / str(event)
        assert run_until_the_end(name, directory, event, monkeypatch) == wanted, event
        shutil.rmtree(directory)


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize(
    "apart",
    [None, pytest.param(29, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.exhaustive)],
)
def test_ends_anywhere(
    name: str, apart: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def numbers(n: int) -> Any:
        return random.Random(0).sample(range(n), 3) if apart is None else range(0, n, apart)

    check_ends(name, numbers, monkeypatch, tmp_path, expected(name))


def environment() -> dict[str, str]:
    paths = [str(PROGRAM.parents[1]), str(PROGRAM.parent), *filter(None, sys.path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def killed_and_resumed(name: str, kills: int, tmp_path: Path, seed: int) -> bytes:
    """Processes that are killed at random moments, until one is not. There are several runs if one
    does not take that many."""
    command = [sys.executable, str(PROGRAM), name]
    draw, killed, results = random.Random(seed), 0, set[bytes]()
    seconds = 0.5
    while killed < kills or not results:
        directory, result = tmp_path / f"run-{len(results)}", tmp_path / f"{len(results)}.bin"
        arguments = [str(directory), str(result)]
        with subprocess.Popen(
            [*command, *arguments], env=environment(), stdout=subprocess.PIPE, bufsize=0
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() in (b"a step\n", b"")
            started = time.monotonic()
            try:
                process.communicate(timeout=None if killed >= kills else draw.uniform(0, seconds))
                seconds = max(time.monotonic() - started, 0.5)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                killed += 1
        if result.exists():
            results.add(result.read_bytes())
            result.rename(tmp_path / f"done-{killed}.bin")
            shutil.rmtree(directory)
    (found,) = results
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("kills", [2, 50])
def test_killed_at_random_moments(name: str, kills: int, tmp_path: Path) -> None:
    assert killed_and_resumed(name, kills, tmp_path, seed=kills) == expected(name)


# A run of a value, and what is done how often


def count_steps(
    directory: Any, executed: list[int], save_every: float = 0.0, a: Any = 1.0, **options: Any
) -> Any:
    def step(u: Any, i: Any) -> Any:
        jax.debug.callback(lambda i: executed.append(int(i)), i)
        return jnp.sin(u) + 0.1 * i, u

    options |= {"directory": directory, "save_every": save_every}
    result = host_scan(step, a, np.arange(20), **options)
    jax.effects_barrier()
    return result


def test_a_value_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole, executed = count_steps(tmp_path / "whole", []), list[int]()
    with ends_at(60, monkeypatch) as events, pytest.raises(Ended):
        count_steps(tmp_path / "run", executed)
    jax.effects_barrier()
    assert events.count("step") < 20
    resumed = count_steps(tmp_path / "run", executed)
    assert bits(resumed) == bits(whole)
    assert sorted(set(executed)) == [*range(20)]
    assert len(executed) <= 21


def test_a_run_that_is_over_runs_no_step(tmp_path: Path) -> None:
    executed = list[int]()

    def gradient() -> Any:
        value = lambda a: count_steps(tmp_path, executed, a=a, checkpoints=2)[0]  # noqa: E731
        return jax.value_and_grad(value)(1.0)

    results, count = gradient(), len(executed)
    assert count > 20
    assert bits(gradient()) == bits(results)
    assert len(executed) == count


def test_nothing_is_saved_more_often_than_asked(tmp_path: Path) -> None:
    count_steps(tmp_path, [], save_every=1000)
    assert [p.name for p in tmp_path.rglob("*.json")] == ["state-1.json"]


def test_consumed_ys_come_in_order_after_each_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those of steps that run again come again."""
    found: list[int] = []
    options: dict[str, Any] = {"consume": lambda i, y: found.append(i)}
    with ends_at(60, monkeypatch), pytest.raises(Ended):
        count_steps(tmp_path, [], **options)
    before = len(found)
    carry, ys = count_steps(tmp_path, [], **options)
    assert ys is None
    assert found[:before] == [*range(before)]
    assert found[before:] == [*range(found[before], 20)]
    assert found[before] <= before
    assert bits(count_steps(tmp_path, [], **options)[0]) == bits(carry)


# Another run, damage, and disks


def run(
    directory: Path | None,
    weight: Any = 0.5,
    start: Any = 1.0,
    power: int = 2,
    ct: float = 1.0,
    is_value: bool = False,
    checkpoints: int | None = 3,
    **more: Any,
) -> Any:
    options: Any = {"length": 9, "save_every": 0, "checkpoints": checkpoints, **more}

    def loss(weight: Any, start: Any) -> Any:
        step = lambda u, _: (jnp.sin(weight * u**power), u)  # noqa: E731
        return host_scan(step, start, directory=directory, **options)[0] * ct

    return (loss if is_value else jax.value_and_grad(loss))(weight, start)


@pytest.mark.parametrize(
    ("changed", "differs"),
    [
        ({"power": 3}, "the step"),
        ({"weight": 0.6}, "the inputs"),
        ({"start": 1.1}, "the inputs"),
        ({"checkpoints": 2}, "the options"),
        ({"reverse": True}, "the options"),
        ({"is_value": True, "checkpoints": None}, "the derivatives"),
        ({"ct": 2.0}, "the cotangents of the results"),
        ({"version": 2}, "the version"),
    ],
)
def test_another_run_is_refused(changed: dict[str, Any], differs: str, tmp_path: Path) -> None:
    expected = bits(run(tmp_path))
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=f"has another run: .*{differs}.* differ"):
        run(tmp_path, **changed)
    assert contents(tmp_path) == before
    assert bits(run(tmp_path)) == expected


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An error, and what was there is whole."""
    expected = bits(run(tmp_path / "whole"))
    directory, writes, replace = tmp_path / "run", [], os.replace

    def full(*paths: Path) -> None:
        writes.append(paths)
        if len(writes) > 30:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(*paths)

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "replace", full)
        with pytest.raises(OSError, match=r"could not be written to .*No space left") as caught:
            run(directory)
        assert caught.value.errno == errno.ENOSPC
    assert not list(directory.rglob("*.part"))
    assert bits(run(directory)) == expected


def test_a_removed_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    options: dict[str, Any] = {"length": 9, "save_every": 0}
    double = lambda u, _: (u * 2, None)  # noqa: E731
    with (
        acting(4, lambda: shutil.rmtree(directory), monkeypatch, steps_only=True),
        pytest.raises(FileNotFoundError, match="could not be written to"),
    ):
        host_scan(double, 1.0, directory=directory, **options)
    assert not directory.exists()
    with pytest.raises(FileNotFoundError):
        host_scan(double, 1.0, directory=tmp_path / "no" / "run", **options)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture
def interruptible() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("at", [3, 8, 12, 25])
def test_an_interrupt_is_saved(at: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In both sweeps, and after the last step of each."""
    with acting(None, interrupt, monkeypatch, steps_only=True) as whole:
        expected = bits(run_rarely_saved(tmp_path / "whole"))
    assert len(whole) == 25
    with acting(at - 1, interrupt, monkeypatch, steps_only=True) as counted:
        with pytest.raises(KeyboardInterrupt) as caught:
            run_rarely_saved(tmp_path / "run")
        assert "Call it again with the same arguments" in "".join(caught.value.__notes__)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert len(counted) == at
        assert bits(run_rarely_saved(tmp_path / "run")) == expected
        assert len(counted) == len(whole)


def run_rarely_saved(directory: Path) -> Any:
    """Saved only when it is interrupted, or a sweep is over."""

    def loss(rate: Any) -> Any:
        options = {"checkpoints": 2, "directory": directory, "save_every": 1000}
        u, ys = host_scan(lambda u, _: (jnp.sin(rate * u), u), rate, np.arange(8), **options)
        return u + jnp.sum(ys)

    return jax.value_and_grad(loss)(jnp.asarray(1.3))


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_pullback_that_failed_can_be_called_again(is_saved: bool, tmp_path: Path) -> None:
    asked: list[int] = []

    def read(i: int) -> Any:
        asked.append(i)
        if len(asked) == 16:
            raise OSError("not now")
        return np.sin(float(i))

    def loss(a: Any) -> Any:
        options: dict[str, Any] = {"directory": tmp_path if is_saved else None, "save_every": 0}
        options |= {"checkpoints": 2, "storage": HostMemory(checkpoints=2)}
        step: Any = lambda u, x: (jnp.sin(a * u + x), None)  # noqa: E731
        return host_scan(step, 1.0, read, 9, **options)[0]

    value, pullback = jax.vjp(loss, 0.7)
    with pytest.raises(OSError, match="not now"):
        pullback(1.0)
    again = pullback(1.0)
    is_saved = False
    assert bits((value, *again)) == bits(jax.value_and_grad(loss)(0.7))


def test_a_run_in_another_thread(tmp_path: Path) -> None:
    """Interrupts come to the main thread alone; another one leaves them as they are."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(bits(run(tmp_path))))
    thread.start()
    thread.join()
    assert found == [bits(run(tmp_path))]


@pytest.mark.slow
def test_another_process_in_the_directory(tmp_path: Path) -> None:
    """It is refused as long as the first one runs, and goes on once that was killed."""
    program = (
        "import sys, time; from test_host_scan_resume import run; from pathlib import Path\n"
        "from jax_revolve.host.watch import Watch; between_steps = Watch.between_steps\n"
        "def once(*args): between_steps(*args); print('a step', flush=True); time.sleep(600)\n"
        "Watch.between_steps = once; run(Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "run")]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"a step\n"
            before = contents(tmp_path)
            assert len(before) > 1
            with pytest.raises(RuntimeError, match=r"run'? is used by another process\. Wait"):
                run(tmp_path / "run")
            assert contents(tmp_path) == before
        finally:
            process.kill()
    assert bits(run(tmp_path / "run")) == bits(run(tmp_path / "whole"))


@pytest.mark.parametrize("ends", [False, True])
def test_a_directory_whose_run_ended_is_free(
    ends: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No matter how, and what still refers to it."""
    if ends:
        with ends_at(30, monkeypatch), pytest.raises(Ended) as held:
            run(tmp_path)
    else:
        held = jax.vjp(lambda a: run(tmp_path, start=a, is_value=True), 1.0)
        held[1](1.0)
    descriptor = os.open(tmp_path / "process-0" / "lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)
    assert held
