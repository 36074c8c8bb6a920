"""What the outside sees: one place for the addresses, and the first page of the site."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from PIL import Image

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


def test_addresses_are_those_of_pyproject() -> None:
    own = re.compile(r"https://[\w./-]*jax[_-]revolve[\w./-]*")
    found = {url for page in PAGES if page.is_file() for url in own.findall(page.read_text())}
    assert found
    for url in found | {URLS["Issues"], URLS["Changelog"]}:
        assert f"{url}/".startswith((f"{URLS['Repository']}/", URLS["Documentation"])), url


def test_citation_and_changelog_are_of_the_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
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


@pytest.mark.parametrize("path", [*(ROOT / ".github").rglob("*.yml")], ids=lambda p: p.name)
def test_forms_and_workflows_are_yaml(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text()), dict)


def test_workflow_tests_the_versions_of_python_that_are_supported() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    tested = workflow["jobs"]["tests"]["strategy"]["matrix"]["python"]
    name = "Programming Language :: Python :: "
    named = [c.removeprefix(name) for c in PROJECT["classifiers"] if c.startswith(f"{name}3.")]
    assert tested == named
    assert "id-token" not in workflow["permissions"]


def test_card_has_the_size_that_the_pages_say() -> None:
    with Image.open(ROOT / "docs" / "pictures" / "card.png") as card:
        size = card.size
    head = (ROOT / "docs" / "theme" / "main.html").read_text()
    for side, pixels in zip(("width", "height"), size, strict=True):
        assert f'"og:image:{side}" content="{pixels}"' in head
    assert size == (1200, 630)
