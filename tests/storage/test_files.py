"""Files in folders that processes own: disks that fill, that fail, or whose processes die."""

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import killed_program
from support.file_systems import before_each_operation, size_of, small_disk
from support.runs import Ended, bits, ends_at, environment, run

from jax_revolve import Disk, checkpointed_scan, host_scan, plan
from jax_revolve.storage import files

Patch = pytest.MonkeyPatch
pytestmark = pytest.mark.usefixtures("default_precision")

CARRY = 4 * killed_program.SIZE
"""The bytes of a checkpoint of the program that is killed."""

LIKE = [((3,), np.dtype(np.float32))]
VALUES = [np.arange(3, dtype=np.float32)]


def in_process(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a program that needs no JAX, and may kill itself."""
    start = "import os, sys, numpy as np; from pathlib import Path\n"
    start += "from jax_revolve.storage import files; directory = Path(sys.argv[1])\n"
    command = [sys.executable, "-c", start + program, *map(str, arguments)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)


LEAVES = "files.write_file(directory, [np.ones(3, np.float32)]); os.kill(os.getpid(), 9)"


def left_folder(directory: Path) -> Path:
    """The folder of a process that was killed."""
    before = set(directory.iterdir()) if directory.exists() else set()
    assert in_process(LEAVES, directory).returncode == -9
    (found,) = set(directory.iterdir()) - before
    assert len(list(found.iterdir())) == 2
    return found


def write_and_read(directory: Path) -> None:
    ticket = files.write_file(directory, VALUES)
    (found,) = files.read_file(directory, ticket, LIKE, is_last=True)
    np.testing.assert_array_equal(found, VALUES[0])


def own(directory: Path) -> Path:
    return files.folder_in(directory).path


# Owners


def test_what_dead_processes_left_is_removed_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "with" / "parents"
    first, second = left_folder(directory), left_folder(directory / ".." / "others")
    theirs = [directory / "jax_revolve-notes", first / "notes", directory / f"{first.name}.txt"]
    theirs[0].mkdir()
    theirs[1].write_text("kept")
    theirs[2].write_text("kept")
    empty = directory / "jax_revolve-0123456789abcdef"
    empty.mkdir()  # of a process that was killed before it had a lock
    size = size_of(first) - len("kept") - len((first / "lock").read_text())
    write_and_read(directory)
    write_and_read(directory)
    assert sorted(directory.iterdir()) == sorted([*theirs[::2], first, own(directory)])
    assert list(first.iterdir()) == [theirs[1]]
    assert second.exists()
    (text,) = [record.getMessage() for record in caplog.records]
    assert text == f"storage=Disk({str(directory)!r}): removed {size} bytes that dead " + (
        "processes had left."
    )


def test_a_living_process_keeps_its_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = LEAVES.replace("os.kill(os.getpid(), 9)", "print('written', flush=True); input()")
    start = "import os, sys, numpy as np; from jax_revolve.storage import files\n"
    start += "directory = sys.argv[1]\n"
    command = [sys.executable, "-c", start + program, str(tmp_path)]
    pipe: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment(), **pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        (theirs,) = tmp_path.iterdir()
        before = sorted(theirs.iterdir())
        write_and_read(tmp_path)
        host, number, _ = (theirs / "lock").read_text().split()
        assert (host, int(number)) == (files.HOST, process.pid)
        assert sorted(theirs.iterdir()) == before
        process.communicate("\n")
    assert not theirs.exists(), "a process removes its own at its end"
    assert not caplog.records


@pytest.mark.parametrize("obstacle", ["host", "no fcntl", "no locks"])
def test_what_may_live_is_left_and_it_says_how_to_remove_it(
    obstacle: str, monkeypatch: Patch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In a folder of checkpoints, and in a saved run."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    theirs, directory = left_folder(tmp_path), tmp_path / "run"
    with ends_at(60, monkeypatch), pytest.raises(Ended):
        run(directory)
    orphan = directory / "process-0" / f"{0:016x}.arrays"
    orphan.write_text("an array")
    elsewhere = f"{'elsewhere' if obstacle == 'host' else files.HOST} 1 2026-01-01T00:00:00"
    for lock in (theirs / "lock", orphan.parent / "lock"):
        lock.write_text(elsewhere)
    if obstacle == "no fcntl":
        monkeypatch.setattr(files, "fcntl", None)
    elif obstacle == "no locks":
        monkeypatch.setattr(fcntl, "flock", refuse)
    write_and_read(tmp_path)
    assert len(list(theirs.iterdir())) == 2
    found = bits(run(directory))
    assert orphan.exists()
    why = "it cannot be seen from here" if obstacle == "host" else "there are no locks here"
    ways = ["Remove it by hand once", "Remove the file 'lock' there once"]
    texts = [r.getMessage() for r in caplog.records if "because" in r.getMessage()]
    assert len(texts) == 2, texts
    for way, text in zip(ways, texts, strict=True):
        assert way in text
        assert why in text
        assert "process 1 of host" in text
    (orphan.parent / "lock").unlink()
    assert found == bits(run(directory)) == bits(run(tmp_path / "whole"))
    assert not orphan.exists()


def test_many_processes_begin_at_once(tmp_path: Path) -> None:
    """One may see a folder of another one that it has not locked yet."""
    for _ in range(3):
        left_folder(tmp_path)
    program = """
for _ in range(6):
    for _ in range(4):
        if os.fork() == 0:
            ticket = files.write_file(directory, [np.ones(3)])
            (x,) = files.read_file(directory, ticket, [((3,), np.dtype(float))], is_last=True)
            files._remove_own()
            os._exit(int(x.sum() != 3))
    assert [os.wait()[1] for _ in range(4)] == [0] * 4
"""
    done = in_process(program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())


# Small disks


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Any]]:
    with ExitStack() as stack:

        def of_size(size: int) -> Any:
            try:
                return stack.enter_context(small_disk(tmp_path / "disk", size))
            except PermissionError as error:
                pytest.skip(str(error))

        yield of_size


LARGE = np.ones(50_000, np.float32)


def test_a_disk_that_holds_one_save(disk: Any, monkeypatch: Patch, tmp_path: Path) -> None:
    """A run that was killed in its first save goes on."""
    disk(2 * LARGE.nbytes - 4096)
    step = lambda u, _: (jnp.sin(u), None)  # noqa: E731
    options: dict[str, Any] = {"length": 4, "directory": tmp_path / "disk" / "run"}
    with ends_at(7, monkeypatch) as events, pytest.raises(Ended):
        host_scan(step, LARGE, **options)
    assert events == [*["step"] * 4, "fsync", "replace", "fsync", "replace"]
    assert size_of(tmp_path / "disk") > LARGE.nbytes
    found, _ = host_scan(step, LARGE, **options)
    np.testing.assert_array_equal(found, host_scan(step, LARGE, length=4)[0])


def test_a_full_disk_in_a_saved_run(disk: Any, tmp_path: Path) -> None:
    """It goes on from its last state when there is room. Every error leaves two states or fewer."""
    resize, directory = disk(3 * LARGE.nbytes), tmp_path / "disk" / "run"
    options: dict[str, Any] = {"start": LARGE, "ct": np.ones(1, np.float32), "checkpoints": 2}
    call = lambda directory: run_sum(directory, **options)  # noqa: E731
    expected, found, errors = bits(call(None)), b"", 0
    for room in range(4, 20):
        try:
            found = bits(call(directory))
            break
        except OSError as error:
            errors += 1
            text = str(error)
            assert error.errno == errno.ENOSPC  # noqa: PT017
            assert f"of {LARGE.nbytes} bytes could not be written to {directory}" in text
            assert "bytes are free there; 0 bytes that dead processes had left" in text
            assert len(list(directory.rglob("state-*"))) <= 2
            assert not list(directory.rglob("*.part"))
        resize(room * LARGE.nbytes)
    assert errors
    assert found == expected


def run_sum(directory: Path | None, start: Any, checkpoints: int, **_: Any) -> Any:
    def loss(start: Any) -> Any:
        step = lambda u, _: (jnp.sin(u), None)  # noqa: E731
        options = {"length": 5, "directory": directory, "save_every": 0}
        return jnp.sum(host_scan(step, start, checkpoints=checkpoints, **options)[0])

    return jax.grad(loss)(start)


def gradient_in_files(directory: Path, start: Any, scan: Any = checkpointed_scan) -> Any:
    """A gradient with five writes and reads."""
    storage = Disk(directory, transfer=0, checkpoints=3)
    assert plan(8, 1, storage=storage).writes == 3
    step = lambda u, _: (jnp.sin(u), None)  # noqa: E731
    loss = lambda u: jnp.sum(scan(step, u, length=8, checkpoints=1, storage=storage)[0])  # noqa: E731
    return jax.grad(loss)(start)


def test_a_full_disk_of_checkpoints(disk: Any, tmp_path: Path) -> None:
    """What the gradient had written is removed, so the next one needs no more room."""
    resize = disk(2 * LARGE.nbytes + 8192)
    for scan, error in ((checkpointed_scan, jax.errors.JaxRuntimeError), (host_scan, OSError)):
        run = partial(gradient_in_files, tmp_path / "disk", scan=scan)
        run = jax.jit(run) if scan is checkpointed_scan else run
        resize(2 * LARGE.nbytes + 8192)
        with pytest.raises(error, match=r"checkpoint of 200000 bytes could .* \d+ bytes are free"):
            jax.block_until_ready(run(LARGE))
        del error
        assert not list((tmp_path / "disk").glob("*/*.*"))
        resize(4 * LARGE.nbytes)
        np.testing.assert_array_equal(run(LARGE), gradient_in_files(tmp_path, LARGE))


# Operations that fail


def failing(at: int, number: int, *, lasts: bool) -> Callable[[str], None]:
    """Fails at an operation, or from it on; of a full disk, only what needs room."""
    count = iter(range(10**6))

    def act(name: str) -> None:
        now = next(count)
        needs_room = name in ("open to write", "write", "fsync", "replace", "mkdir")
        if now == at or (now > at and lasts and (needs_room or number != errno.ENOSPC)):
            raise OSError(number, os.strerror(number))

    return act


def count_operations(directory: Path, run: Callable[[], Any]) -> int:
    names: list[str] = []
    with before_each_operation(directory, names.append):
        run()
    return len(names)


KINDS = [errno.ENOSPC, errno.EROFS, errno.ENOENT]


@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=errno.errorcode.get)
def test_every_operation_on_a_checkpoint_fails_in_turn(
    kind: int, lasts: bool, tmp_path: Path
) -> None:
    """In both sweeps: the right gradient or this error, and no file of it once the disk works."""
    compiled = jax.jit(partial(gradient_in_files, tmp_path)).lower(LARGE[:9]).compile()
    expected = np.asarray(compiled(LARGE[:9]))

    def run() -> Any:
        files._remove_own()
        files._of_disk.clear()
        return np.asarray(compiled(LARGE[:9]))

    failed, number = 0, count_operations(tmp_path, run)
    assert number >= 20
    for at in range(number):
        try:
            with before_each_operation(tmp_path, failing(at, kind, lasts=lasts)):
                np.testing.assert_array_equal(run(), expected)
        except jax.errors.JaxRuntimeError as error:
            failed += 1
            assert f"Errno {kind}" in str(error) or "does not exist" in str(error)  # noqa: PT017
        left = list(tmp_path.glob("*/*.*"))
        assert len(left) <= (3 if lasts else 1), at
        np.testing.assert_array_equal(run(), expected)
        assert not list(tmp_path.glob("*/*.*")), at
    assert failed > number / 3


@pytest.mark.parametrize("step", [80, pytest.param(7, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS, ids=errno.errorcode.get)
def test_every_operation_of_a_saved_run_fails_in_turn(
    kind: int, step: int, monkeypatch: Patch, tmp_path: Path
) -> None:
    whole, directory = tmp_path / "whole", tmp_path / "run"

    def saved(directory: Path) -> bytes:
        storage = Disk(directory, transfer=0, checkpoints=2)
        return bits(run(directory, length=4, checkpoints=1, storage=storage))

    expected, failed = saved(whole), 0
    number = count_operations(directory, lambda: saved(directory))
    for at in range(0, number, step):
        shutil.rmtree(directory)
        for lasts in (True, False):
            try:
                with before_each_operation(directory, failing(at, kind, lasts=lasts)):
                    assert saved(directory) == expected, at
            except OSError as error:
                failed += 1
                assert error.errno == kind or "is missing, or" in str(error), at  # noqa: PT017
            assert len(list(directory.rglob("state-*"))) <= 2 + 1
        assert saved(directory) == expected
        assert len(list(directory.rglob("*.*"))) == len(list(whole.rglob("*.*"))), at
    assert failed


# Processes that die


def killed(subject: str, places: int, directory: Path) -> Any:
    command = [sys.executable, "-W", "ignore", killed_program.__file__]
    command += [subject, str(directory / "killed"), str(places)]
    given = environment() | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for each in found["killed"]:
        assert each["result"] == found["whole"]["result"]
    return found


@pytest.mark.parametrize(
    ("subject", "places"),
    [
        ("files", 100),
        pytest.param("kept", 2, marks=pytest.mark.slow),
        pytest.param("disk", 15, marks=pytest.mark.slow),
    ],
)
def test_two_kills_leave_no_checkpoint(subject: str, places: int, tmp_path: Path) -> None:
    """And the directory never holds more than one run's."""
    found, count = killed(subject, places, tmp_path), 3 if subject == "files" else 4
    assert len(found["killed"]) >= min(places, 15)
    for each in [found["whole"], *found["killed"]]:
        assert each["left"] == []
        assert count * CARRY <= each["most"] <= count * CARRY + 100


@pytest.mark.slow
def test_two_kills_of_a_saved_run(tmp_path: Path) -> None:
    """The directory holds no more than three saves, and in the end what it holds anyway."""
    found = killed("saved", 30, tmp_path)
    assert len(found["killed"]) >= 30
    text = 10_000  # of a state
    rows = 12 * 4 * 2  # ys, and their cotangents
    most = 3 * ((6 + 3) * CARRY + text) + rows
    for each in [found["whole"], *found["killed"]]:
        assert each["most"] <= most
        assert len(each["left"]) == len(found["whole"]["left"])
