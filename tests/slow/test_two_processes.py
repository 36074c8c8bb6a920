"""Two processes on one machine, joined by `jax.distributed`, that differentiate one loop; and runs
of theirs that are killed and go on."""

import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from support.runs import environment

PROGRAM = Path(__file__).with_name("two_processes.py")
SECONDS = 120
"""After so long the processes are taken to wait for each other for ever; they need 5 to 30."""

Codes = tuple[int | None, int | None]


def run(folder: Path, *what: list[str], expected: Codes = (0, 0)) -> list[str]:
    """What the processes print, after they ended as expected: `None` is one that had to be ended,
    because another one failed.

    Once in more than a thousand runs both waited for ever. It is not known where: Python calls the
    programs in the same order. So they have a second chance, and say where they wait.
    """
    codes, texts = _run(folder, *what)
    if codes == (-signal.SIGABRT,) * 2:
        print("both processes wait for ever:", *texts, sep="\n")
        codes, texts = _run(folder, *what)
    if codes != expected:
        parts = [f"process {i} ended with {codes[i]}:\n{texts[i]}" for i in range(2)]
        pytest.fail("\n".join(parts), pytrace=False)
    return texts


def _run(folder: Path, *what: list[str]) -> tuple[Codes, list[str]]:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    outputs = [folder / f"process-{i}.txt" for i in range(2)]
    last = time.monotonic() + SECONDS
    with ExitStack() as stack:
        processes = []
        for i, output in enumerate(outputs):
            python = [sys.executable, "-X", "faulthandler", str(PROGRAM)]
            command = [*python, address, str(i), *what[i % len(what)]]
            file = stack.enter_context(output.open("w"))
            process = subprocess.Popen(
                command, env=environment(), stdout=file, stderr=subprocess.STDOUT
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        codes = [process.poll() for process in processes]
        while None in codes and not any(codes) and time.monotonic() < last:
            time.sleep(0.1)
            codes = [process.poll() for process in processes]
        if codes == [None, None]:  # they print where they are
            for process in processes:
                process.send_signal(signal.SIGABRT)
            codes = [process.wait() for process in processes]
    return (codes[0], codes[1]), [output.read_text() for output in outputs]


@pytest.mark.parametrize(
    "names", [["grad"], ["jvp", "forward_over_reverse", "reverse_over_reverse"]], ids=" ".join
)
def test_derivatives_are_those_of_one_process(names: list[str], tmp_path: Path) -> None:
    texts = run(tmp_path, ["derivatives", *names])
    assert [text.count(" same\n") for text in texts] == [3 * len(names)] * 2


def test_gradients_of_host_scan_are_those_of_one_process(tmp_path: Path) -> None:
    texts = run(tmp_path, ["host_scan", str(tmp_path)])
    assert [text.count(" same\n") for text in texts] == [4, 4]
    assert not list(tmp_path.rglob("*.checkpoint"))


def test_a_run_of_two_processes_goes_on(tmp_path: Path) -> None:
    """One of them is killed when the other one may have written a state more."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    never, at_17 = (["run", str(killed), count] for count in ("0", "17"))
    run(whole, ["run", str(whole), "0"])
    run(killed, never, at_17, expected=(None, -signal.SIGKILL))
    states = [{p.name for p in killed.glob(f"run/process-{i}/state-*.json")} for i in range(2)]
    assert states[1] == {"state-15.json", "state-16.json"}
    assert "state-16.json" in states[0]
    texts = run(killed, never)
    assert {text.splitlines()[-1] for text in texts} == {"12 saved"}
    for i in range(2):
        with np.load(whole / f"process-{i}.npz") as a, np.load(killed / f"process-{i}.npz") as b:
            assert a.files == b.files
            for name in a.files:
                np.testing.assert_array_equal(a[name], b[name])
