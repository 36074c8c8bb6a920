"""Every notebook runs from its first cell to its last, in a kernel of its own, and draws."""

import os
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

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
        assert not cell.metadata, cell.id
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
    outputs = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]
    assert not [o.text for o in outputs if o.output_type == "stream" and o.name == "stderr"]
    assert any("image/png" in o.get("data", {}) for o in outputs)
