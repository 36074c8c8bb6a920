"""Every notebook is stored with the outputs that it has when it runs in a new kernel."""

import base64
import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
from mkdocs.config import load_config
from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def pictures(cell: Any) -> list[str]:
    data = [output.get("data", {}) for output in cell.outputs]
    return [one["image/png"] for one in data if "image/png" in one]


def printed(cell: Any) -> str:
    """What the cell prints; without its numbers if it is tagged as one whose numbers vary."""
    text = "".join(output.text for output in cell.outputs if output.output_type == "stream")
    if "varies" in cell.metadata.get("tags", ()):
        text = re.sub(r"\s+", "", re.sub(r"[-+]?\d[\d.]*(e[-+]\d+)?", "#", text))
    return text


@pytest.fixture
def outputs() -> ModuleType:
    return importlib.import_module("notebook_outputs")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_is_stored_with_its_outputs(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert path.stat().st_size < 500_000
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert set(notebook.metadata.language_info) == {"name"}
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        assert set(cell.metadata) <= {"alt", "tags"}, cell.id
        # One cell has one alternative text, and so one picture.
        assert len(pictures(cell)) == bool(cell.metadata.get("alt")), cell.id
        if "varies" in cell.metadata.get("tags", ()):
            assert "#" in printed(cell), cell.id
        assert not re.search(r"(?<!\w)/\w+/|\w:\\|[Ww]arning", printed(cell)), cell.id
        for picture in pictures(cell):
            png = base64.b64decode(picture)
            assert png.startswith(b"\x89PNG")
            assert b"tEXt" not in png, cell.id
    assert any(pictures(cell) for cell in cells)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_runs_and_prints_what_it_stores(path: Path, outputs: ModuleType) -> None:
    stored, new = read(path), outputs.executed(path)
    assert new.metadata == stored.metadata
    for before, after in zip(code_cells(stored), code_cells(new), strict=True):
        assert printed(after) == printed(before), before.id
        assert len(pictures(after)) == len(pictures(before)), before.id


DRAWING = """\
import matplotlib.pyplot as plt
print("draws", flush=True)
print("a line")
plt.plot([1, 2])
plt.show()
"""


@pytest.mark.filterwarnings("ignore")
def test_page_of_a_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outputs: ModuleType
) -> None:
    path = tmp_path / "small.ipynb"
    alone = nbformat.v4.new_code_cell(DRAWING, metadata={"alt": "A line"}, id="small")
    nbformat.write(nbformat.v4.new_notebook(cells=[alone]), path)
    monkeypatch.setattr(outputs, "FOLDER", tmp_path)
    monkeypatch.setattr("sys.argv", ["notebook_outputs.py"])
    outputs.main()
    [cell] = read(path).cells
    assert cell.execution_count == 1
    assert [set(output.get("data", {})) for output in cell.outputs] == [set(), {"image/png"}]
    config: Any = load_config(str(ROOT / "mkdocs.yml"))
    hook = config.hooks["docs/notebook_pages.py"]
    monkeypatch.setattr(hook, "FOLDER", tmp_path)
    files = config.plugins.on_files(Files([]), config=config)
    page = files.src_uris["notebooks/small.ipynb"]
    assert page.dest_uri == "notebooks/small.html"
    assert DRAWING in page.content_string
    assert "\n````text\ndraws\na line\n````\n" in page.content_string
    source = f"{hook.SOURCES}/small.ipynb"
    assert f"]({source})" in page.content_string
    assert files.src_uris[f"notebooks/{source}"].content_bytes == path.read_bytes()
    made = {uri for uri in files.src_uris if uri.startswith("notebooks/")}
    [picture] = made - {page.src_uri, f"notebooks/{source}"}
    assert f"![A line]({Path(picture).name})" in page.content_string
    assert files.src_uris[picture].content_bytes.startswith(b"\x89PNG")
