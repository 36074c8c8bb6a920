"""Runs the notebooks and stores their outputs, the same ones from the same versions.

python docs/notebook_outputs.py               # all of them, in about ten minutes
python docs/notebook_outputs.py 02_tsunami
"""

import base64
import os
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbconvert.preprocessors import CoalesceStreamsPreprocessor
from palette import small

from jax_revolve.profiles.in_force import VARIABLE as PROFILE
from jax_revolve.profiles.profile import FOLDER as PROFILES

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks"
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "",  # a notebook sets its own
    PROFILE: str(PROFILES / "cpu.json"),  # not this machine's own
}


def executed(path: Path) -> Any:
    """The notebook with the outputs of a new kernel; what a cell raises or warns is raised."""
    notebook = nbformat.read(path, as_version=4)
    metadata = notebook.metadata.copy()
    client = NotebookClient(
        notebook,
        timeout=900,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute(env=os.environ | ENVIRONMENT)
    CoalesceStreamsPreprocessor().preprocess(notebook, {})
    notebook.metadata = metadata  # the kernel adds its version
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            _normalize(output, cell.id)
    return notebook


def _normalize(output: Any, cell: str) -> None:
    if output.get("name") == "stderr":
        raise RuntimeError(f"the cell {cell!r} warns: {output.text}")
    if "image/png" in output.get("data", {}):
        png = base64.b64decode(output.data["image/png"])
        output.data = {"image/png": base64.b64encode(small(png)).decode()}


def main() -> None:
    for name in sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.ipynb")):
        path = FOLDER / f"{name}.ipynb"
        nbformat.write(executed(path), path)
        print(f"{path.name}: {path.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
