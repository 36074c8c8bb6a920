"""Every notebook runs from its first cell to its last, in a kernel of its own, and draws."""

import os
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from mkdocs.config import load_config
from mkdocs.structure.files import Files
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_is_kept_without_outputs(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    for cell in notebook.cells:
        assert set(cell.metadata) <= {"alt"}, cell.id
        if cell.cell_type == "code":
            assert not cell.outputs, cell.id
            assert cell.execution_count is None, cell.id


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_runs(path: Path) -> None:
    notebook = read(path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    environment.pop("XLA_FLAGS", None)  # of these tests; a notebook sets its own
    kernel = nbclient.NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
    )
    kernel.execute(env=environment)
    drawn = 0
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        assert not [o.text for o in outputs if o.output_type == "stream" and o.name == "stderr"]
        pictures = sum("image/png" in o.get("data", {}) for o in outputs)
        # One cell has one alternative text, and so one picture.
        assert pictures == bool(cell.metadata.get("alt")), cell.id
        drawn += pictures
    assert drawn


DRAWING = """\
import matplotlib.pyplot as plt
print("draws", flush=True)
print("a line")
plt.plot([1, 2])
plt.show()
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("execute", ["false", pytest.param("true", marks=pytest.mark.slow)])
def test_page_of_a_notebook(execute: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXECUTE_NOTEBOOKS", execute)
    files = pages_of(DRAWING, tmp_path, monkeypatch)
    page = files.src_uris["notebooks/small.ipynb"]
    assert page.dest_uri == "notebooks/small.html"
    assert DRAWING in page.content_string
    pictures = set(files.src_uris) - {page.src_uri}
    if execute == "false":
        assert "````text" not in page.content_string
        assert not pictures
    else:
        assert "\n````text\ndraws\na line\n````\n" in page.content_string
        [picture] = pictures
        assert f"![A line]({Path(picture).name})" in page.content_string
        assert files.src_uris[picture].content_bytes.startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_notebook_that_raises_ends_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXECUTE_NOTEBOOKS", "true")
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        pages_of("1 / 0", tmp_path, monkeypatch)


def pages_of(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    """What the site makes of a notebook with one cell."""
    config: Any = load_config(str(ROOT / "mkdocs.yml"))
    monkeypatch.setattr(config.hooks["docs/notebook_pages.py"], "FOLDER", folder)
    cell = nbformat.v4.new_code_cell(code, metadata={"alt": "A line"})
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), folder / "small.ipynb")
    return config.plugins.on_files(Files([]), config=config)
