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


def refused(capsys: Captured, *arguments: object) -> str:
    """The error, which is one line and leads to exit code 2."""
    try:
        code: object = main(list(map(str, arguments)))
    except SystemExit as exit:
        code = exit.code
    assert code == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("python -m jax_revolve")
    return err


BLOCKS = ["--block-size", 4]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--length", 0], plan(0)),
        (["--length", 1000, "--checkpoints", 30, *BLOCKS], plan(1000, 30, block_size=4)),
        (["--length", 1000, "--repetitions", 3], plan(1000, repetitions=3)),
        (["--length", 1000, "--overhead", "1.5"], plan(1000, overhead=1.5)),
        (["--checkpoints", 5, "--repetitions", 3, *BLOCKS], longest_plan(5, 3, block_size=4)),
    ],
    ids=str,
)
def test_plan(capsys: Captured, options: list[object], expected: object) -> None:
    assert printed(capsys, *options) == f"{expected}\n"


def test_memory(capsys: Captured) -> None:
    expected = plan(1000, memory=100_000, state_bytes=1000, residual_bytes=2000)
    for memory in ("100kB", "100000"):
        out = printed(capsys, "--length", 1000, "--memory", memory, *SIZES)
        assert out.startswith(f"{expected}\nmemory: ")
        taken = float(out.split()[-2])
        assert taken == pytest.approx(expected.memory(1000, 2000) / 1000, abs=0.05)


def test_pictures(capsys: Captured, tmp_path: Path) -> None:
    shown = printed(capsys, "--length", 10, "--checkpoints", 3, "--show")
    assert shown == f"{plan(10, 3).show()}\n"
    file = tmp_path / "plan.png"
    out = printed(capsys, "--length", 100, "--block-size", 3, "--plot", file)
    assert out == f"{plan(100, block_size=3)}\nwritten: {file}\n"
    assert file.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--length is needed, or --checkpoints and --repetitions for the longest loop"),
        (["--length", -1], "length must be an int >= 0, but is -1"),
        (["--length", 10, "--checkpoints", 0], "checkpoints must be an int >= 1 .* but is 0"),
        (["--length", 10, "--checkpoints", "x"], "argument --checkpoints: must be an int or"),
        (["--length", 10, "--overhead", "x"], "argument --overhead: invalid float value: 'x'"),
        (["--length", 10, "--memory", "10", *SIZES], "memory must be at least 4000 bytes here"),
        (["--length", 10, "--memory", "1kB"], "state_bytes must be an int >= 0 where memory"),
        (["--length", 10, "--weight", 3], "unrecognized arguments: --weight 3"),
        (["--length", 10, "--plot", "/tmp/plan.xyz"], "Format 'xyz' is not supported"),
    ],
    ids=lambda x: " ".join(map(str, x)) if isinstance(x, list) else "",
)
def test_refused(capsys: Captured, options: list[object], message: str) -> None:
    err = refused(capsys, "plan", *options)
    assert re.match(rf"python -m jax_revolve( plan)?: error: {message}", err)


def test_missing_matplotlib(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    err = refused(capsys, "plan", "--length", 10, "--plot", "plan.png")
    assert "pip install matplotlib" in err
    err = refused(capsys, "plot")
    assert re.search(r"invalid choice: 'plot' \(choose from '?plan'?, '?demo'?\)", err)


def helped(capsys: Captured, *arguments: str) -> str:
    with pytest.raises(SystemExit) as raised:
        main([*arguments, "--help"])
    out, err = capsys.readouterr()
    assert (raised.value.code, err) == (0, "")
    return out


def test_help(capsys: Captured, tmp_path: Path) -> None:
    """Its examples run."""
    assert re.search(r"^ +plan +\S.*\n^ +demo +\S", helped(capsys), re.MULTILINE)
    text = helped(capsys, "plan")
    for option in {*inspect.signature(plan).parameters} - {"storage", "levels"}:
        assert re.search(rf"^  --{option.replace('_', '-')}\b.*\S", text, re.MULTILINE)
    text = text.replace("\\\n", "").replace("plan.png", f"{tmp_path}/plan.png")
    examples = re.findall(r"^ +python -m jax_revolve (plan .*?)(?:  +\(.*)?$", text, re.MULTILINE)
    assert len(examples) >= 4
    for example in examples:
        assert main(example.split()) == 0


def test_a_plan_does_without_the_demonstration(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] in ("tsunami", "tqdm", "matplotlib"):
            monkeypatch.delitem(sys.modules, name)
    path = sys.path[:]
    printed(capsys, "--length", 10, "--show")
    loaded = {name.partition(".")[0] for name in sys.modules}
    assert not loaded & {"tsunami", "tqdm", "matplotlib"}
    assert sys.path == path
