"""The README and the documentation say what the code does, and their code runs."""

import doctest
import importlib
import importlib.util
import inspect
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from parity.transformations import ALL
from PIL import Image
from support.asked import explained_while
from support.evaluations import steps_executed

import jax_revolve
from jax_revolve import checkpoint_loops, plan, typing
from jax_revolve.integrations import diffrax, equinox
from jax_revolve.programs.choice import Choice
from jax_revolve.schedule.options import LARGEST_BOUND, LONGEST
from jax_revolve.typing import actions

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
SITE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Documentation"]
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
RUN_LONG = {README, *(ROOT / "docs" / name for name in ("progress.md", "tutorial.md"))}
"""They show the memory of optimized programs, or run longer than they compile."""
PUBLIC = [
    *(getattr(jax_revolve, name) for name in dir(jax_revolve)),
    *(getattr(typing, name) for name in dir(typing) if name[0].isupper()),
    *(equinox.filter_bounded_while_loop, equinox.filter_checkpointed_scan, diffrax.RevolveAdjoint),
]
WITH_EXAMPLE = [value for value in PUBLIC if "```python" in (inspect.getdoc(value) or "")]

BLOCK = re.compile(
    r"^( *)```python\n(?P<code>.*?)^\1```$(?:\n\n\1```text\n(?P<output>.*?)^\1```$)?",
    re.DOTALL | re.MULTILINE,
)
"""Python, in lists and admonitions too, and the text right after it, which is what it prints."""


def run(text: str, names: dict[str, object], printed: pytest.CaptureFixture[str]) -> int:
    """Runs the blocks of a text one after the other; returns how many there are."""
    blocks = list(BLOCK.finditer(text))
    for block in blocks:
        code = dedent(block["code"])
        if code.startswith(">>>"):
            session = doctest.DocTestParser().get_doctest(code, names, "page", None, 0)
            assert doctest.DocTestRunner().run(session, clear_globs=False).failed == 0
            names.update(session.globs)
            continue
        printed.readouterr()
        exec(code, names)
        if block["output"] is not None:
            assert printed.readouterr().out == dedent(block["output"])
    return len(blocks)


@pytest.mark.usefixtures("default_precision")
@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_code_of_a_page_runs(
    page: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    if page not in RUN_LONG:
        request.getfixturevalue("compile_quickly")
    run(page.read_text(), {}, capsys)


@pytest.mark.usefixtures("compile_quickly")
@pytest.mark.parametrize("function", WITH_EXAMPLE, ids=lambda f: f.__name__)
def test_example_of_a_docstring_runs(function: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(inspect.getdoc(function) or "", {}, capsys)
    assert len(WITH_EXAMPLE) >= 17


def test_links_lead_somewhere() -> None:
    """The anchors are looked at where the site is built. The README is short."""
    drawn = importlib.import_module("pictures").drawn()  # when the site is built
    for page in PAGES:
        for target in re.findall(r"\]\(([^):#]+)[^):]*\)", page.read_text()):
            is_there = (page.parent / target).exists() or Path(target).name in drawn
            assert is_there, (page.name, target)
    lines = README.read_text().splitlines()
    of_site = re.findall(rf"{re.escape(SITE)}([\w/-]+)\.html", README.read_text())
    assert len(of_site) >= 10
    assert all((ROOT / "docs" / f"{page}.md").exists() for page in of_site)
    assert len(lines) <= 130
    assert lines.index("```python") < 30


def of_benchmarks(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module(f"benchmarks.{name}")


def test_tables_and_figures_are_from_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is on a page, and each file of results is in a table."""
    report = of_benchmarks("report.pages", monkeypatch)
    tables, figures = set(), set()
    for page in PAGES:
        text = page.read_text()
        assert report.with_tables(text) == text, page.name
        tables |= {name for _, name, _ in report.BLOCK.findall(text)}
        figures |= {name for _, name, _ in report.FIGURE.findall(text)}
        assert len(report.BLOCK.findall(text)) == text.count("<!-- table") == text.count("<!-- end")
        assert len(report.FIGURE.findall(text)) == text.count("<!-- figure") == text.count("<!-- /")
        assert "\n<!-- figure" not in text, f"{page.name}: a comment there ends the paragraph"
    assert tables | figures == set(report.declared())
    shown = {results for results, _ in report.declared().values()}
    results = {path.stem for path in (ROOT / "benchmarks" / "results").glob("*.json")}
    assert shown == {name for name in results if not name.startswith("accelerator-")}


def test_every_benchmark_runs_with_the_others_or_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    command = of_benchmarks("__main__", monkeypatch)
    names = [*command.BENCHMARKS, *command.BY_NAME, "accelerator"]
    programs = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    assert programs == {"__init__", "__main__", *names}
    for name in names:
        assert f"- `{name}`: " in (command.__doc__ or "")


def test_what_makes_results_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another line of code does, also in a string that is not a docstring; prose does not."""
    code = of_benchmarks("runner.machine", monkeypatch).code
    bare = 'def f():\n    return "x"'
    prose = [
        *("'''Of a module.", "# One line more.'''", "", "def f():", "    '''Of a function.'''"),
        *("    # A reason.", "", '    return "x"', ""),
    ]
    assert code(bare) == code("\n".join(prose)) == bare
    assert code(bare) != code(bare.replace("x", "y"))
    for kept in (
        '"Doc."; x = 1',
        "def f(): 'Doc.'",
        'x = """\n# a\n\n"""',
        'x = (  # why\n    """\n\n""")',
    ):
        assert code(kept) == kept


@pytest.mark.parametrize("part", [1, 2])
def test_every_piece_of_the_accelerator_command(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs, at tiny sizes."""
    pieces = of_benchmarks("accelerator", monkeypatch).of_part(part).pieces(True)
    command = [sys.executable, "-m", "benchmarks", "accelerator", "--quick", "--part", str(part)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    path = Path(done.stdout.rpartition("Written: ")[2].strip())
    assert ROOT not in path.parents
    written = json.loads(path.read_text())
    assert list(written["pieces"]) == [piece.name for piece in pieces]
    assert not [record for record in written["measurements"] if "error" in record]


def test_a_benchmark_that_was_stopped_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is measured is kept in a part, and not measured again; other sources are."""
    benchmark = of_benchmarks("runner.benchmark", monkeypatch)
    machine = {"tree": "1", "date": "", "command": "", "commit": ""}
    monkeypatch.setattr(benchmark, "describe_machine", lambda: dict(machine))
    ran: list[str] = []

    def pieces(stops: bool) -> Iterator[Any]:
        for name in ("first", "second"):
            if stops and name == "second":
                raise KeyboardInterrupt
            measured = lambda _, name=name: ran.append(name) or [{"contender": name}]  # noqa: E731
            yield benchmark.Measurement(name, measured)

    def run(stops: bool) -> None:
        of_pieces = lambda _: pieces(stops)  # noqa: E731
        benchmark.Benchmark("made-up", of_pieces).run(False, tmp_path)

    with pytest.raises(KeyboardInterrupt):
        run(stops=True)
    assert [path.name for path in tmp_path.iterdir()] == ["made-up-cpu.part"]
    run(stops=False)
    run(stops=False)
    assert ran == ["first", "second"]
    written = json.loads((tmp_path / "made-up-cpu.json").read_text())
    assert [record["contender"] for record in written["measurements"]] == ran
    assert {"date", "seconds", "load"} == set(written["pieces"]["second"])
    machine["tree"] = "2"
    run(stops=False)
    assert ran == ["first", "second"] * 2
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.usefixtures("compile_quickly")
def test_steps_of_higher_derivatives() -> None:
    """Those in the table of docs/transformations.md that `test_any_order` does not count."""
    executed = lambda transform: len(steps_executed(37, 3, transform))  # noqa: E731
    planned = plan(37, 3).evaluations
    along = lambda loss: jax.grad(lambda x: jax.jvp(loss, (x,), (x,))[1])  # noqa: E731
    thrice = lambda loss: jax.grad(jax.grad(jax.grad(loss)))  # noqa: E731
    assert executed(along) == planned
    assert executed(thrice) == 3 * planned
    assert executed(lambda loss: jax.grad(jax.checkpoint(loss))) <= planned + 37


def test_figures_in_the_text() -> None:
    """What pages say without a block of code beside it."""
    assert len(ALL) == 40  # "under 40 transformations"
    assert inspect.signature(checkpoint_loops).parameters["min_length"].default is None
    assert (Choice().shortest, Choice(memory="1MB").shortest) == (16, 2)
    for steps, checkpoints in {4096: 28, 10**6: 180}.items():
        report = explained_while(lambda x: x > 0, jnp.sin, 1.0, max_steps=steps, block_size=1)
        assert report.plan.checkpoints == checkpoints
        assert abs((6 * steps) ** (1 / 3) - checkpoints) < 2
    for n in (50, 1000, 10**6):
        assert abs(plan(n).checkpoints - (2 * n) ** 0.5) < 2
        assert plan(n).evaluations < 3 * n
        assert plan(n, "all").evaluations == 2 * n
        assert plan(n, block_size=n).evaluations == n
    assert (LONGEST, LARGEST_BOUND) == (2**31 - 2, 2**31 - 1)


def test_what_the_page_of_benchmarks_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another loop is quicker with the least budget, and in how much more memory."""
    results = of_benchmarks("report.results", monkeypatch)
    runs = [run for run in results.load("fronts-cpu").runs if run["budget"] is not None]
    slower: dict[str, float] = {}
    workloads = {run["workload"] for run in runs}
    for workload in workloads:
        budget = min(run["budget"] for run in runs if run["workload"] == workload)
        ours, *others = (
            results.quickest(runs, contender=name, workload=workload, budget=budget)
            for name in ("jax_revolve", "nested remat scan", "equinox checkpointed")
        )
        other = min(others, key=lambda run: run["median_ms"])
        if ours["median_ms"] > other["median_ms"]:
            slower[workload.split(",")[0]] = other["temp_bytes"] / ours["temp_bytes"]
    assert len(workloads) == 8
    assert slower.keys() == {"transformer block"}
    assert slower["transformer block"] > 1.5


def test_every_public_name_and_action_has_a_place_among_the_pages() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    described = set(re.findall(r"^::: jax_revolve\.((?:typing\.)?\w+)$", pages, re.MULTILINE))
    types = {f"typing.{name}" for name in vars(typing) if not name.startswith("_")}
    assert described == {*dir(jax_revolve)} | types
    table = dict(re.findall(r"^\| `([A-Z]\w+)\(([\w, ]+)\)` \|", pages, re.MULTILINE))
    fields = {name: ", ".join(getattr(actions, name)._fields) for name in actions.__all__}
    assert table == fields


def test_pictures_are_drawn_when_the_site_is_built() -> None:
    pictures = importlib.import_module("pictures")  # in docs, which pytest has on its path
    drawn = {name for name in pictures.drawn() if name.endswith(".svg")}
    pages = "".join(page.read_text() for page in PAGES)
    assert drawn == set(re.findall(r"pictures/([\w-]+\.svg)#only-", pages))
    assert not any((pictures.FOLDER / name).exists() for name in pictures.drawn())
    for name in drawn:
        colors = set(re.findall("#[0-9a-f]{6}", pictures.drawn()[name]))
        known = pictures.DARK if "-light" in name else pictures.DARK.values()
        assert colors <= set(known), name


def test_pictures_of_results_are_of_their_date(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = of_benchmarks("report.pictures", monkeypatch)
    stored = sorted(pictures.PAGES.glob("*-cpu-*.png"))
    assert {path.name.rpartition("-")[2] for path in stored} == {"light.png", "dark.png"}
    for path in stored:
        machine = pictures.load(path.stem.rpartition("-")[0]).machine
        with Image.open(path) as image:
            assert image.info[pictures.DATE] == machine["date"], path.name


def test_site_is_built_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    link = r"<link(?![^>]*rel=.?canonical)[^>]*href=.?https?:"
    loads = re.compile(rf"<(?:script|img|iframe)[^>]*src=.?https?:|{link}|component=.?source")
    for page in tmp_path.rglob("*.html"):
        assert not loads.search(page.read_text()), page
    for sheet in tmp_path.rglob("*.css"):
        assert not re.search(r"url\(.?https?:|@import", sheet.read_text()), sheet


@pytest.mark.parametrize("page", ["README.md", "docs/while.md"])
def test_the_square_root_has_a_derivative_at_one(page: str) -> None:
    """It once started from the root there, took no step, and had the derivative of its start."""
    blocks = [b["code"] for b in BLOCK.finditer((ROOT / page).read_text())]
    names: dict[str, Any] = {}
    imports = "import jax\nimport jax.numpy as jnp\nfrom jax_revolve import bounded_while_loop\n"
    exec(imports + next(code for code in blocks if "def square_root" in code), names)
    assert abs(jax.grad(names["square_root"])(1.0) - 0.5) < 1e-4


def test_memory_that_the_first_page_states() -> None:
    """A budget of 4 MB, where `lax.scan` takes 80 MB."""
    code = next(BLOCK.finditer((ROOT / "docs" / "index.md").read_text()))["code"]
    assert 'memory="4MB",  # lax.scan takes 80 MB' in code
    for text, stated in ((code, 4), (code.replace('memory="4MB",', ""), 80)):
        names: dict[str, Any] = {}
        exec(text, names)
        if stated == 80:
            names["checkpointed_scan"] = jax.lax.scan
        program = jax.jit(jax.grad(names["heat"])).lower(jnp.ones(20000, "float32")).compile()
        memory: Any = program.memory_analysis()
        assert round(memory.temp_size_in_bytes / 1e6) == stated
