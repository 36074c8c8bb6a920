"""The README and the documentation say what the code does, and their code runs."""

import doctest
import importlib.util
import inspect
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

import jax_revolve
from jax_revolve.integrations import diffrax, equinox

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
PUBLIC = [
    jax_revolve.bounded_while_loop,
    jax_revolve.Checkpointed,
    jax_revolve.checkpoint_layers,
    jax_revolve.checkpoint_loops,
    jax_revolve.checkpointed_chain,
    jax_revolve.checkpointed_fori_loop,
    jax_revolve.checkpointed_scan,
    jax_revolve.explain,
    jax_revolve.explain_loops,
    jax_revolve.longest_plan,
    jax_revolve.ProgressMeter,
    jax_revolve.plan,
    equinox.filter_bounded_while_loop,
    equinox.filter_checkpointed_scan,
    diffrax.RevolveAdjoint,
]


pytestmark = pytest.mark.usefixtures("compile_quickly")


def code(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", inspect.cleandoc(text), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_code_of_a_page_runs(page: Path) -> None:
    names: dict[str, object] = {}
    for block in code(page.read_text()):
        if block.startswith(">>>"):
            examples = doctest.DocTestParser().get_doctest(block, {}, page.name, None, 0)
            assert doctest.DocTestRunner().run(examples).failed == 0
        else:
            exec(block, names)


@pytest.mark.parametrize("function", PUBLIC, ids=lambda f: f.__name__)
def test_example_of_a_docstring_runs(function: object) -> None:
    text = inspect.getdoc(function) or ""
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(inspect.cleandoc(block), {})


def test_readme_is_short_and_starts_with_code() -> None:
    lines = README.read_text().splitlines()
    assert len(lines) <= 150
    assert lines.index("```python") < 30


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), (page.name, target)


@pytest.mark.parametrize(
    ("results", "table"),
    [
        ("scan-cpu", "with_table"),
        ("while-cpu", "with_while_table"),
        ("budget-cpu", "with_budget_table"),
    ],
)
def test_numbers_of_the_readme_are_those_of_the_benchmark(results: str, table: str) -> None:
    readme = _module(ROOT / "benchmarks" / "readme.py")
    record = json.loads((ROOT / "benchmarks" / "results" / f"{results}.json").read_text())
    text = README.read_text()
    assert getattr(readme, table)(text, record) == text


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
