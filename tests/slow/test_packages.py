"""What is published: the names, the packages that they come in, and the addresses."""

import inspect
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import get_args

import pytest
import yaml

import jax_revolve
from jax_revolve import typing
from jax_revolve.integrations import diffrax, equinox

ROOT = Path(__file__).parents[2]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
URLS = PROJECT["urls"]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff")),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "docs" / "theme").rglob("*.html"),
    *(ROOT / "jax_revolve").rglob("*.py"),
    *(ROOT / ".github").rglob("*.*"),
]


NAMES = {
    **{name: getattr(jax_revolve, name) for name in dir(jax_revolve)},
    **{name: value for name, value in vars(typing).items() if not name.startswith("_")},
    **{name: getattr(equinox, name) for name in dir(equinox) if name.startswith("filter_")},
    "RevolveAdjoint": diffrax.RevolveAdjoint,
}


@pytest.mark.parametrize("name", NAMES)
def test_public_names_are_documented_and_typed(name: str) -> None:
    value = NAMES[name]
    if get_args(value):  # an alias of types, which the documentation explains
        return
    assert (text := inspect.getdoc(value))
    if inspect.isfunction(value):
        assert {"**Arguments:**", "**Returns:**", "**Raises:**"} <= set(text.splitlines())
        signature = inspect.signature(value)
        assert signature.return_annotation is not inspect.Signature.empty
        for parameter in signature.parameters.values():
            assert parameter.annotation is not inspect.Parameter.empty, parameter.name
    elif inspect.ismodule(value):
        assert all(inspect.getdoc(getattr(value, name)) for name in value.__all__)
    else:  # `getdoc` of a method finds what a class above says
        for name, method in inspect.getmembers(value, inspect.isfunction):
            if name in vars(value) and name[0] != "_":
                assert inspect.getdoc(method), name
                assert inspect.signature(method).return_annotation is not inspect.Signature.empty


def test_importing_imports_little() -> None:
    """Nothing beyond what `import jax, equinox` does, but for ours, two small modules of JAX, and
    the standard library."""
    program = """
import sys
import jax, equinox
before = set(sys.modules)
import jax_revolve
for name in dir(jax_revolve):
    getattr(jax_revolve, name)
print(*set(sys.modules) - before)
"""
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    imported = set(done.stdout.split())
    of_jax = {name for name in imported if name.startswith("jax.")}
    small = ("jax.ad_checkpoint", "jax.experimental.key_reuse")
    assert all(name.startswith(small) for name in of_jax)
    others = {name.partition(".")[0] for name in imported} - {"jax_revolve", "jax"}
    assert others <= sys.stdlib_module_names
    assert "jax_revolve.loops.scan" in imported
    assert not done.stderr


def test_wheel_and_sdist(tmp_path: Path) -> None:
    """Every module is in both, with the mark that types are there, and nothing of the tests is in
    the wheel, which is made from the sdist."""
    command = [sys.executable, "-m", "build", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    package = ROOT / "jax_revolve"
    modules = {str(p.relative_to(ROOT)) for p in package.rglob("*.py")} | {"jax_revolve/py.typed"}
    in_wheel = set(zipfile.ZipFile(wheel).namelist())
    assert modules <= in_wheel
    assert not [name for name in in_wheel if name.startswith(("tests", "benchmarks"))]
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    assert modules | {"README.md", "LICENSE", "CITATION.cff"} <= in_sdist
    with zipfile.ZipFile(wheel) as archive:
        [name] = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        readme = archive.read(name).decode().partition("\n\n")[2]
    assert readme.startswith("# jax_revolve\n")
    text = re.sub(r"```.*?```", "", readme, flags=re.DOTALL)
    links = re.findall(r'\]\(([^)]+)\)|(?:href|src|srcset)="([^"]+)"', text)
    assert links
    for link in links:
        assert "".join(link).startswith(("https://", "#")), link


def test_addresses_are_those_of_pyproject() -> None:
    own = re.compile(r"https://[\w./-]*jax[_-]revolve[\w./-]*")
    found = {url for page in PAGES if page.is_file() for url in own.findall(page.read_text())}
    assert found
    for url in found | {URLS["Issues"], URLS["Changelog"]}:
        assert f"{url}/".startswith((f"{URLS['Repository']}/", URLS["Documentation"])), url


def test_citation_and_changelog_are_of_the_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"] == jax_revolve.__version__
    assert citation["license"] == PROJECT["license"]
    assert citation["repository-code"] == URLS["Repository"]
    assert citation["url"] == URLS["Documentation"]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    release = re.search(r"^## \[(\d[^]]*)\] - (\S+)$", changelog, re.MULTILINE)
    assert release
    assert release[1] == PROJECT["version"]
    assert release[2] == str(citation["date-released"])
    headings = re.findall(r"^## \[(.+?)\]", changelog, re.MULTILINE)
    assert headings == re.findall(r"^\[(.+)\]: https://", changelog, re.MULTILINE)


def test_the_oldest_jax_is_the_same_everywhere() -> None:
    (oldest,) = {d.partition(">=")[2] for d in PROJECT["dependencies"] if d.startswith("jax")}
    for page in ("README.md", "docs/index.md", "docs/faq.md"):
        assert f"JAX {oldest}" in (ROOT / page).read_text(), page


def test_workflow_tests_the_versions_of_python_that_are_supported() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    tested = workflow["jobs"]["tests"]["strategy"]["matrix"]["python"]
    name = "Programming Language :: Python :: "
    named = [c.removeprefix(name) for c in PROJECT["classifiers"] if c.startswith(f"{name}3.")]
    assert tested == named
    assert "id-token" not in workflow["permissions"]
