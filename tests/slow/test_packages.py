"""What is published: the names, and the packages that they come in."""

import inspect
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any, get_args

import pytest

import jax_revolve
from jax_revolve.integrations import diffrax, equinox

ROOT = Path(__file__).parents[2]


def _public(module: Any) -> dict[str, Any]:
    own = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return {
        name: value
        for name, value in own.items()
        if getattr(value, "__module__", "").startswith("jax_revolve") and name != "check_interface"
    }


NAMES = {
    **{name: getattr(jax_revolve, name) for name in dir(jax_revolve)},
    **{n: v for n, v in _public(equinox).items() if n.startswith("filter_")},
    "RevolveAdjoint": diffrax.RevolveAdjoint,
}


@pytest.mark.parametrize("name", NAMES)
def test_public_names_are_documented_and_typed(name: str) -> None:
    value = NAMES[name]
    if get_args(value):  # an alias of types, which the documentation explains
        return
    assert inspect.getdoc(value)
    if inspect.isfunction(value):
        text = inspect.getdoc(value) or ""
        assert {"**Arguments:**", "**Returns:**", "**Raises:**"} <= set(text.splitlines())
        signature = inspect.signature(value)
        assert signature.return_annotation is not inspect.Signature.empty
        for parameter in signature.parameters.values():
            assert parameter.annotation is not inspect.Parameter.empty, parameter.name
        return
    if inspect.ismodule(value):
        assert all(inspect.getdoc(getattr(value, name)) for name in value.__all__)
        return
    methods = [m for n, m in vars(value).items() if inspect.isfunction(m) and n[0] != "_"]
    for method in methods:
        assert inspect.getdoc(method) or _is_documented_above(value, method.__name__), method
        assert inspect.signature(method).return_annotation is not inspect.Signature.empty, method


def _is_documented_above(value: type, name: str) -> bool:
    return any(inspect.getdoc(getattr(base, name, None)) for base in value.__mro__[1:])


def test_the_version_is_the_same_everywhere() -> None:
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    assert f"version: {version[1]}\n" in (ROOT / "CITATION.cff").read_text()


def test_importing_imports_little() -> None:
    """Nothing beyond what `import jax, equinox` does, but for ours and the standard library."""
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
    others = {name.partition(".")[0] for name in imported} - {"jax_revolve"}
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
