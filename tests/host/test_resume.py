"""A run of `host_scan` that ends anywhere, in any way, goes on, and its result has the same bits,
unless it says what is damaged."""

import errno
import fcntl
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.host_scan_program import WORKLOADS
from support.runs import PROGRAM, Ended, acting, bits, contents, end, ends_at, environment, run

from jax_revolve import Disk, HostMemory, checkpointed_scan, host_scan
from jax_revolve.storage import files

Patch = pytest.MonkeyPatch
pytestmark = pytest.mark.usefixtures("default_precision")


@cache
def expected(name: str) -> bytes:
    """The result of a run that nothing interrupts."""
    with tempfile.TemporaryDirectory() as directory:
        return bits(WORKLOADS[name](directory))


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize(
    "apart",
    [None, pytest.param(29, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.exhaustive)],
)
def test_ends_anywhere(name: str, apart: int | None, monkeypatch: Patch, tmp_path: Path) -> None:
    """The first run ends at an event, the second a little later, the third not at all."""
    with ends_at(None, monkeypatch) as events:
        WORKLOADS[name](tmp_path / "whole")
    assert {"step", "fsync", "replace", "unlink"} == set(events)
    numbers = range(0, len(events), apart or 1)
    for event in numbers if apart else random.Random(0).sample(numbers, 3):
        found, directory = b"", tmp_path / str(event)
        for at in (event, event // 3 + 5, None):
            with ends_at(at, monkeypatch), suppress(Ended):
                found = bits(WORKLOADS[name](directory))
        assert found == expected(name), event
        shutil.rmtree(directory)


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize(
    "kills",
    [pytest.param(10, marks=pytest.mark.slow), pytest.param(50, marks=pytest.mark.exhaustive)],
)
def test_killed_at_random_moments(name: str, kills: int, tmp_path: Path) -> None:
    """Several runs, if one does not take that many."""
    draw, killed, results, seconds = random.Random(kills), 0, set[bytes](), 0.5
    while killed < kills or not results:
        directory, result = tmp_path / f"run-{len(results)}", tmp_path / f"{len(results)}.bin"
        command = [sys.executable, str(PROGRAM), name, str(directory), str(result)]
        with subprocess.Popen(
            command, env=environment(), stdout=subprocess.PIPE, bufsize=0
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() in (b"a step\n", b"")
            started = time.monotonic()
            try:
                process.communicate(timeout=None if killed >= kills else draw.uniform(0, seconds))
                seconds = max(time.monotonic() - started, 0.5)
            except subprocess.TimeoutExpired:
                process.kill()
                killed += 1
        if result.exists():
            results.add(result.read_bytes())
            result.rename(tmp_path / f"done-{killed}.bin")
            shutil.rmtree(directory)
    assert results == {expected(name)}


# How much runs again


def value_of(directory: Path | None) -> Any:
    """A function to pull cotangents back of."""
    return lambda start: run(directory, start=start, is_value=True)


@pytest.mark.parametrize("consumed", [False, True])
def test_a_value_goes_on(consumed: bool, monkeypatch: Patch, tmp_path: Path) -> None:
    """No step runs more than one time too often; the ys of those that do are consumed again."""
    found = list[int]()
    options: dict[str, Any] = {"is_value": True, "length": 20}
    if consumed:
        options["consume"] = lambda i, y: found.append(i)
    with ends_at(60, monkeypatch) as first, pytest.raises(Ended):
        run(tmp_path / "run", **options)
    before = len(found)
    with ends_at(None, monkeypatch) as second:
        resumed = run(tmp_path / "run", **options)
    assert 0 < first.count("step") < 20
    assert first.count("step") + second.count("step") <= 21
    if consumed:
        assert found[:before] == [*range(before)]
        assert found[before:] == [*range(found[before], 20)]
        assert found[before] <= before
    assert bits(resumed) == bits(run(tmp_path / "whole", **options))


def test_a_run_that_is_over_runs_no_step(monkeypatch: Patch, tmp_path: Path) -> None:
    results = bits(run(tmp_path))
    with acting(None, end, monkeypatch, steps_only=True) as steps:
        assert bits(run(tmp_path)) == results
    assert not steps


def test_what_is_skipped_is_logged(
    monkeypatch: Patch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def resumed() -> str:
        caplog.clear()
        run(tmp_path)
        return caplog.text

    for at, sweep in ((5, "forward"), (12, "the forward sweep is skipped, the reverse")):
        shutil.rmtree(tmp_path / "process-0", ignore_errors=True)
        with acting(at, end, monkeypatch, steps_only=True), pytest.raises(Ended):
            run(tmp_path)
        assert re.search(rf"{sweep} sweep goes on after [1-9] of 9 steps\.", resumed())
    assert "over, so no step runs." in resumed()


def test_nothing_is_saved_more_often_than_asked(tmp_path: Path) -> None:
    run(tmp_path, is_value=True, save_every=1000)
    assert [p.name for p in tmp_path.rglob("*.json")] == ["state-1.json"]


# Disks and interrupts


def test_a_full_disk(monkeypatch: Patch, tmp_path: Path) -> None:
    """An error, and what was there is whole."""
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
    assert bits(run(directory)) == bits(run(tmp_path / "whole"))


def test_a_removed_directory(monkeypatch: Patch, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    with (
        acting(4, lambda: shutil.rmtree(directory), monkeypatch, steps_only=True),
        pytest.raises(FileNotFoundError, match="could not be written to"),
    ):
        run(directory, is_value=True)
    assert not directory.exists()
    assert bits(run(directory, is_value=True)) == bits(run(tmp_path / "whole", is_value=True))


def interrupt(times: int = 1) -> None:
    for _ in range(times):
        signal.raise_signal(signal.SIGINT)


@pytest.fixture
def interruptible() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("at", [3, 8, 12, 25])
def test_an_interrupt_is_saved(at: int, monkeypatch: Patch, tmp_path: Path) -> None:
    """In both sweeps, and after the last step of each: no step runs again."""
    options: dict[str, Any] = {"length": 8, "checkpoints": 2, "save_every": 1000}
    with acting(None, interrupt, monkeypatch, steps_only=True) as every:
        expected = bits(run(tmp_path / "whole", **options))
    assert len(every) == 25
    with acting(at - 1, interrupt, monkeypatch, steps_only=True) as counted:
        with pytest.raises(KeyboardInterrupt) as caught:
            run(tmp_path / "run", **options)
        assert "Call it again with the same arguments" in "".join(caught.value.__notes__)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert len(counted) == at
        assert bits(run(tmp_path / "run", **options)) == expected
        assert len(counted) == len(every)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("everywhere", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_interrupts(everywhere: bool, monkeypatch: Patch, tmp_path: Path) -> None:
    """At each of these steps and writes, and then a little later, once or twice."""
    with acting(None, interrupt, monkeypatch) as events:
        expected = bits(run(tmp_path / "whole"))
    numbers = range(len(events))
    for event in numbers if everywhere else random.Random(1).sample(numbers, 5):
        directory, twice = tmp_path / str(event), bool(event % 2)
        for at in (event, event // 2, 3):
            with acting(at, partial(interrupt, 1 + twice), monkeypatch) as seen:
                try:
                    assert bits(run(directory)) == expected
                    assert len(seen) <= at, "the interrupt is swallowed"
                except KeyboardInterrupt as caught:
                    notes = getattr(caught, "__notes__", [])
                    assert twice or notes, "nothing says that the run is saved"
                    if any("host_scan saved the run" in note for note in notes):
                        assert list(directory.rglob("state-*.json"))
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert bits(run(directory)) == expected, event
        shutil.rmtree(directory)


# Pullbacks


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_pullback_that_failed_can_be_called_again(is_saved: bool, tmp_path: Path) -> None:
    asked: list[int] = []

    def read(i: int) -> Any:
        asked.append(i)
        if len(asked) == 16:
            raise OSError("not now")
        return np.sin(float(i))

    def loss(directory: Path | None, a: Any) -> Any:
        options: dict[str, Any] = {"directory": directory, "save_every": 0}
        options |= {"checkpoints": 2, "storage": HostMemory(checkpoints=2), "version": 1}
        step: Any = lambda u, x: (jnp.sin(a * u + x), None)  # noqa: E731
        return host_scan(step, 1.0, read, 9, **options)[0]

    value, pullback = jax.vjp(partial(loss, tmp_path if is_saved else None), 0.7)
    with pytest.raises(OSError, match="not now"):
        pullback(1.0)
    again = pullback(1.0)
    assert bits((value, *again)) == bits(jax.value_and_grad(partial(loss, None))(0.7))


def test_a_second_cotangent_has_its_own_gradient(tmp_path: Path) -> None:
    """The directory keeps the first one's."""

    def pullbacks(directory: Any) -> list[bytes]:
        _, pullback = jax.vjp(value_of(directory), 0.7)
        return [bits(pullback(jnp.asarray(ct))) for ct in (1.0, -2.0, 1.0)]

    expected = pullbacks(None)
    for _ in range(2):
        assert pullbacks(tmp_path) == expected


def test_another_call_goes_on_between_the_sweeps(tmp_path: Path) -> None:
    """And the pullback then, where that one was."""
    expected = bits(jax.grad(value_of(tmp_path / "whole"))(1.0))
    pull = lambda: jax.vjp(value_of(tmp_path / "run"), 1.0)[1]  # noqa: E731
    first, second = pull(), pull()
    assert bits(second(1.0)) == expected
    assert bits(first(1.0)) == expected
    third = pull()
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(FileNotFoundError):
        third(1.0)


# Several runs in a directory


def test_a_run_in_another_thread(tmp_path: Path) -> None:
    """Interrupts come to the main thread alone; another one leaves them as they are."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(bits(run(tmp_path))))
    thread.start()
    thread.join()
    assert found == [bits(run(tmp_path))]


def test_two_threads_in_one_directory(monkeypatch: Patch, tmp_path: Path) -> None:
    """The second is refused, also in the same thread."""
    refused: list[Exception] = []

    def call() -> None:
        with pytest.raises(RuntimeError, match="is used by another call in this process") as caught:
            run(tmp_path / "run")
        refused.append(caught.value)

    def call_twice() -> None:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        call()

    with acting(0, call_twice, monkeypatch, steps_only=True):
        found = bits(run(tmp_path / "run"))
    assert found == bits(run(tmp_path / "whole"))
    assert len(refused) == 2


@pytest.mark.slow
def test_another_process_in_the_directory(tmp_path: Path) -> None:
    """It is refused as long as the first one runs, and goes on once that was killed."""
    program = (
        "import sys, time; from support.runs import run; from pathlib import Path\n"
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


def test_a_worker_that_was_forked_meanwhile_locks_nothing(
    monkeypatch: Patch, tmp_path: Path
) -> None:
    """A worker of `multiprocessing`, for example, which outlives the run."""
    ends, (goes_on, go_on), (answers, answer) = list[int](), os.pipe(), os.pipe()

    def fork() -> None:
        with warnings.catch_warnings(action="ignore"):  # of threads, which this worker does without
            ends.append(os.fork())
        if ends[0] == 0:
            held = list(files._held.values())
            os.write(answer, b"n" if held else b"y")
            os.read(goes_on, 1)
            os._exit(0)

    try:
        with acting(3, fork, monkeypatch, steps_only=True):
            expected = bits(run(tmp_path))
        assert os.read(answers, 1) == b"y"
        with (tmp_path / "process-0" / "lock").open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert bits(run(tmp_path)) == expected
    finally:
        os.write(go_on, b".")
        os.waitpid(ends[0], 0)


def test_a_relative_directory_is_found_when_it_is_given(monkeypatch: Patch, tmp_path: Path) -> None:
    """Though the working directory changes between the sweeps, and between two calls."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    storage, options = Disk("."), dict[str, Any](checkpoints=2, length=9)
    _, pullback = jax.vjp(lambda x: run(Path("run"), start=x, is_value=True), 1.0)
    _, on_disk = jax.vjp(lambda x: run(None, start=x, is_value=True, storage=storage), 1.0)
    scan = jax.jit(
        lambda x: checkpointed_scan(lambda u, _: (jnp.sin(u), None), x, storage=storage, **options)[
            0
        ]
    )
    monkeypatch.chdir(tmp_path / "there")
    assert bits(pullback(1.0)) == bits(on_disk(1.0))
    jax.block_until_ready(jax.grad(scan)(1.0))
    assert not list((tmp_path / "there").iterdir())
    assert (tmp_path / "here" / "run").exists()
    assert str(tmp_path / "here") in str(storage)


@pytest.mark.parametrize("ends", [False, True])
def test_a_directory_whose_run_ended_is_free(
    ends: bool, monkeypatch: Patch, tmp_path: Path
) -> None:
    """No matter how, and what still refers to it."""
    if ends:
        with ends_at(30, monkeypatch), pytest.raises(Ended) as held:
            run(tmp_path)
    else:
        held = jax.vjp(value_of(tmp_path), 1.0)
        held[1](1.0)
    descriptor = os.open(tmp_path / "process-0" / "lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)
    assert held


# Damage


@pytest.mark.parametrize("event", [150, pytest.param(60, marks=pytest.mark.slow)])
def test_every_file_that_can_be_damaged(event: int, monkeypatch: Patch, tmp_path: Path) -> None:
    """Cut, changed, empty, longer, something else, or not there. The run goes on from the state
    before, as it always can if it is the newest one that is damaged, or says that there is none."""
    expected, begun = bits(run(tmp_path / "whole")), tmp_path / "begun"
    draw, went_on = random.Random(event), 0
    with ends_at(event, monkeypatch), pytest.raises(Ended):
        run(begun)
    newest = max(begun.rglob("state-*.json"), key=lambda path: int(path.stem[6:]))
    for path, content in contents(begun).items():
        at = draw.randrange(max(len(content), 1))
        changed = bytes([content[at] ^ (1 << draw.randrange(8))]) if content else b"?"
        damages = [content[:at], content[:at] + changed + content[at + 1 :], b"", content + b"?"]
        damages = [*damages, bytes(len(content)), None]
        for damaged in damages if event == 60 else draw.sample(damages, 2):
            directory = tmp_path / "run"
            shutil.copytree(begun, directory)
            if damaged is None:
                (directory / path).unlink()
            else:
                (directory / path).write_bytes(damaged)
            try:
                assert bits(run(directory)) == expected, (path, damaged)
                went_on += 1
            except OSError as error:
                assert "is damaged, or missing" in str(error), (path, damaged)  # noqa: PT017
                assert begun / path != newest, damaged
            shutil.rmtree(directory)
    assert went_on > 3
    for path in begun.rglob("state-*.json"):
        path.write_bytes(b"?")
    with pytest.raises(OSError, match="Every state in the directory"):
        run(begun)
