"""`python -m jax_revolve plan`, called as a function: what it prints, writes and refuses."""

import inspect
import re
import sys
from pathlib import Path

import matplotlib
import pytest

from jax_revolve import longest_plan, plan
from jax_revolve.__main__ import main

matplotlib.use("Agg")

SIZES = ["--state-bytes", "1000", "--residual-bytes", "2000"]
Captured = pytest.CaptureFixture[str]


def printed(capsys: Captured, *options: object) -> str:
    """What the command prints, which is all that it does."""
    assert main(["plan", *map(str, options)]) == 0
    out, err = capsys.readouterr()
    assert not err
    return out


def ends(capsys: Captured, *arguments: object) -> tuple[object, str, str]:
    """The exit code, and what is printed."""
    try:
        code: object = main(list(map(str, arguments)))
    except SystemExit as exit:
        code = exit.code
    out, err = capsys.readouterr()
    return code, out, err


BUDGET = plan(1000, memory=100_000, state_bytes=1000, residual_bytes=2000)
BLOCKS = ["--block-size", 4]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--length", 0], plan(0)),
        (["--length", 1000, "--checkpoints", 30, *BLOCKS], plan(1000, 30, block_size=4)),
        (["--length", 1000, "--repetitions", 3], plan(1000, repetitions=3)),
        (["--length", 1000, "--overhead", "1.5"], plan(1000, overhead=1.5)),
        (["--checkpoints", 5, "--repetitions", 3, *BLOCKS], longest_plan(5, 3, block_size=4)),
        (["--length", 1000, "--memory", "100kB", *SIZES], f"{BUDGET}\nmemory: 100 kB"),
        (["--length", 1000, "--memory", "100000", *SIZES], f"{BUDGET}\nmemory: 100 kB"),
        (["--length", 10, "--checkpoints", 3, "--show"], plan(10, 3).show()),
    ],
    ids=str,
)
def test_plan(capsys: Captured, options: list[object], expected: object) -> None:
    assert printed(capsys, *options) == f"{expected}\n"


def test_plot(capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "plan.png"
    out = printed(capsys, "--length", 100, "--block-size", 3, "--plot", file)
    assert out == f"{plan(100, block_size=3)}\nwritten: {file}\n"
    assert file.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = ends(capsys, "plan", "--length", 10, "--plot", "plan.png")
    assert code == 2
    assert "pip install matplotlib" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["plan"], "--length is needed, or --checkpoints and --repetitions for the longest loop"),
        (["plan", "--length", -1], "length must be an int >= 0, but is -1"),
        (["plan", "--length", 10, "--checkpoints", 0], "checkpoints must be an int >= 1 .* is 0"),
        (["plan", "--length", 10, "--checkpoints", "x"], "argument --checkpoints: must be an int"),
        (["plan", "--length", 10, "--overhead", "x"], "argument --overhead: invalid float value"),
        (["plan", "--length", 10, "--memory", "10", *SIZES], "memory must be at least 4000 bytes"),
        (["plan", "--length", 10, "--memory", "1kB"], "state_bytes must be an int >= 0 where mem"),
        (["plan", "--length", 10, "--weight", 3], "unrecognized arguments: --weight 3"),
        (["plan", "--length", 10, "--plot", "/tmp/plan.xyz"], "Format 'xyz' is not supported"),
        (["plot"], ".*invalid choice: 'plot' .choose from '?plan'?, '?demo'?"),
    ],
    ids=lambda x: " ".join(map(str, x)) if isinstance(x, list) else "",
)
def test_refused(capsys: Captured, options: list[object], message: str) -> None:
    """In one line."""
    code, _, err = ends(capsys, *options)
    assert (code, err.count("\n")) == (2, 1)
    assert re.match(rf"python -m jax_revolve( plan)?: error: {message}", err)


def test_help(capsys: Captured, tmp_path: Path) -> None:
    """Its examples run."""
    code, text, err = ends(capsys, "--help")
    assert (code, err) == (0, "")
    assert re.search(r"^ +plan +\S.*\n^ +demo +\S", text, re.MULTILINE)
    _, text, _ = ends(capsys, "plan", "--help")
    for option in {*inspect.signature(plan).parameters} - {"storage", "levels"}:
        assert re.search(rf"^  --{option.replace('_', '-')}\b.*\S", text, re.MULTILINE)
    text = text.replace("\\\n", "").replace("plan.png", f"{tmp_path}/plan.png")
    examples = re.findall(r"^ +python -m jax_revolve (plan .*?)(?:  +\(.*)?$", text, re.MULTILINE)
    assert len(examples) >= 4
    for example in examples:
        assert main(example.split()) == 0
