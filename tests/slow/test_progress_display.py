"""What people see: in a terminal, and in a notebook."""

import contextlib
import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}

PROGRAM = """
import warnings
warnings.simplefilter("error")
warnings.simplefilter("ignore", ResourceWarning)  # the kernel's sockets
import jax, jax.numpy as jnp
from jax_revolve import bounded_while_loop, checkpointed_scan

def scan(x):
    step = lambda x, _: (jnp.sin(jnp.roll(x, 1)), None)
    return jnp.sum(checkpointed_scan(step, x, length=2000, progress=True)[0])

def stop_early(x):
    step = lambda state: (jnp.sin(jnp.roll(state[0], 1)), state[1] + 1)
    u, _ = bounded_while_loop(
        lambda state: state[1] < 321, step, (x, 0), max_steps=1000, progress=True
    )
    return jnp.sum(u)

"""
RUN = """
jax.block_until_ready(jax.jit(jax.grad({}))(jnp.ones(20000)))
jax.effects_barrier()
"""


def terminal(program: str) -> list[str]:
    """The lines that a terminal shows after the program: a carriage return writes over a line."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=theirs, stderr=theirs, env=ENVIRONMENT
    )
    os.close(theirs)
    written = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while new := os.read(ours, 4096):
            written += new
    os.close(ours)
    assert process.wait() == 0, written.decode()
    lines = []
    for line in written.decode().replace("\r\n", "\n").split("\n"):
        shown = ""
        for text in line.split("\r"):
            shown = text + shown[len(text) :]
        lines.append(shown.rstrip())
    return [line for line in lines if line]


def test_terminal() -> None:
    lines = terminal(PROGRAM + RUN.format("scan") + RUN.format("stop_early"))
    assert not any("\x1b" in line for line in lines)
    bars = [("forward", 2000), ("reverse", 2000), ("forward", 321), ("reverse", 321)]
    for line, (name, steps) in zip(lines, bars, strict=True):
        known = (name, steps) != ("forward", 321)
        end = rf"100%.*{steps}/{steps} \[" if known else rf"{steps} steps \["
        assert re.match(rf"{name}: {end}.* steps/s\]$", line), line
        assert ("█" in line) == known


def executed(*cells: str) -> Any:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute(env=ENVIRONMENT)
    return notebook


@pytest.mark.filterwarnings("ignore")
def test_notebook_with_widgets() -> None:
    notebook = executed(PROGRAM + RUN.format("scan"), RUN.format("stop_early"))
    for cell, steps in zip(notebook.cells, (2000, 321), strict=True):
        names = [output.data["text/plain"].split(":")[0] for output in cell.outputs]
        assert names == ["forward", "reverse"], steps
    widgets = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"].state
    bars = [w.state for w in widgets.values() if w.model_name == "FloatProgressModel"]
    assert sorted(bar.value for bar in bars if bar.max > 1) == [321, 2000, 2000]
    assert all(bar.bar_style == "success" for bar in bars)
