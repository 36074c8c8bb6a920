"""Two processes on one machine, joined by `jax.distributed`, that differentiate one loop."""

import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("two_processes_program.py")
SECONDS = 240
"""After so long the processes are taken to wait for each other for ever."""


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return f"localhost:{probe.getsockname()[1]}"


def _run(commands: list[list[str]], outputs: list[Path]) -> list[int | None]:
    """What the processes end with; `None` of those that had to be ended, because the time is over
    or another one failed."""
    paths = [str(PROGRAM.parents[1]), *filter(None, sys.path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    last = time.monotonic() + SECONDS
    with ExitStack() as stack:
        processes = []
        for command, output in zip(commands, outputs, strict=True):
            file = stack.enter_context(output.open("w"))
            process = subprocess.Popen(
                command, env=environment, stdout=file, stderr=subprocess.STDOUT
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        codes = [process.poll() for process in processes]
        while None in codes and not any(codes) and time.monotonic() < last:
            time.sleep(0.1)
            codes = [process.poll() for process in processes]
    return codes


@pytest.mark.parametrize(
    "derivatives",
    [
        ["grad"],
        pytest.param(
            ["jvp", "forward_over_reverse", "reverse_over_reverse"], marks=pytest.mark.slow
        ),
    ],
    ids=" ".join,
)
def test_derivatives_are_those_of_one_process(derivatives: list[str], tmp_path: Path) -> None:
    start, address = [sys.executable, str(PROGRAM)], _free_address()
    commands = [[*start, address, str(i), *derivatives] for i in range(2)]
    outputs = [tmp_path / f"process-{i}.txt" for i in range(2)]
    codes = _run(commands, outputs)
    texts = [output.read_text() for output in outputs]
    same = [text.count(" same\n") for text in texts]
    if codes != [0, 0] or same != [3 * len(derivatives)] * 2:
        parts = [f"process {i} ended with {codes[i]}:\n{texts[i]}" for i in range(2)]
        pytest.fail("\n".join(parts), pytrace=False)
