"""Arrows point one way: schedule <- engine <- the public functions."""

import ast
from pathlib import Path

import pytest

import jax_revolve

PACKAGE = Path(jax_revolve.__path__[0])
FILES = sorted(p for p in PACKAGE.rglob("*.py") if "examples" not in p.parts)
ENGINE = "jax_revolve.engine"
SCHEDULE = "jax_revolve.schedule"


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def within(names: set[str], *packages: str) -> set[str]:
    return {n for n in names if any(n == p or n.startswith(p + ".") for p in packages)}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports(path: Path) -> None:
    names = imports(path)
    assert not within(names, "jax._src")
    folder = path.relative_to(PACKAGE).parts[0]
    if folder != "_compat":
        assert not within(names, "jax.core", "jax.extend", "jax.interpreters")
    if folder == "schedule":
        assert not within(names, "jax", "equinox", "numpy")
        assert within(names, "jax_revolve") == within(names, SCHEDULE)
    elif folder == "engine":
        allowed = within(names, ENGINE, SCHEDULE, "jax_revolve._compat")
        assert within(names, "jax_revolve") <= allowed | {"jax_revolve._compat"}
    elif folder == "_compat":
        assert within(names, "jax_revolve") == within(names, "jax_revolve._compat")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_stay_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400
