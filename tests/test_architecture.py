"""Rooms, and arrows that point one way: see the docstring of each room."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from faults import faults

import jax_revolve

PACKAGE = Path(jax_revolve.__path__[0])
FILES = sorted(p for p in PACKAGE.rglob("*.py") if "examples" not in p.parts)

BELOW = {"schedule", "profiles", "_compat"}
STEP = BELOW | {"progress", "storage", "jaxprs"}
ENGINE = STEP | {"step"}
AUTODIFF = ENGINE | {"engine"}
LOOPS = AUTODIFF | {"autodiff"}
ROOMS: dict[str, set[str]] = {
    "_compat": set(),
    "jaxprs": {"_compat"},
    "profiles": {"_compat"},
    "schedule": {"profiles"},
    "progress": set(),
    "storage": BELOW,
    "step": STEP,
    "engine": ENGINE,
    "autodiff": AUTODIFF,
    "loops": LOOPS,
    "host": LOOPS | {"loops"},
    "layers": LOOPS | {"loops"},
    "programs": LOOPS | {"loops"},
    "integrations": LOOPS | {"loops"},
}
"""Which rooms each room may import."""

TESTS = Path(__file__).parent
BESIDE_ROOMS = {"parity", "jax_suite", "slow", "support"}
"""Folders of tests that are not of one room."""


def imports(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def within(names: set[str], *packages: str) -> set[str]:
    return {n for n in names if any(n == p or n.startswith(p + ".") for p in packages)}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0]


def test_arrows() -> None:
    wrong: list[str] = []
    for path in FILES:
        names, room = imports(ast.parse(path.read_text())), room_of(path)
        has_private = path == PACKAGE / "_compat" / "interpreters.py"
        forbidden = set() if has_private else within(names, "jax._src")
        if room != "_compat":
            forbidden |= within(names, "jax.core", "jax.extend", "jax.interpreters")
        if room in ("schedule", "progress"):
            forbidden |= within(names, "jax", "equinox")
        if room in ROOMS:
            allowed = {f"jax_revolve.{r}" for r in ROOMS[room] | {room}}
            forbidden |= within(names, "jax_revolve") - within(names, *allowed)
        wrong += [f"{path.relative_to(PACKAGE)} imports {name}" for name in sorted(forbidden)]
    assert not wrong


PRIVATE = {"_eqns", "_lowering", "ctx", "debug_info", "map_jaxpr"}
"""Attributes of JAX's objects that no release promises to keep."""


def test_private_attributes_are_in_one_room() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}: {node.attr}"
        for path in FILES
        if room_of(path) != "_compat"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE
    ]
    assert not found


def test_no_circle_of_imports() -> None:
    """Of modules, by what they import when they are imported."""
    modules = {".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts): p for p in FILES}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        found = imports_at_once(ast.parse(path.read_text()))
        graph[name] = {m if m in modules else m.rpartition(".")[0] for m in found} - {name}
    TopologicalSorter(graph).prepare()


def imports_at_once(tree: ast.AST) -> set[str]:
    """Those outside functions, which are not for type checkers alone."""
    if isinstance(tree, ast.Import | ast.ImportFrom):
        return imports(tree)
    late = isinstance(tree, ast.FunctionDef | ast.Lambda)
    if late or (isinstance(tree, ast.If) and "TYPE_CHECKING" in ast.unparse(tree.test)):
        return set()
    return {name for node in ast.iter_child_nodes(tree) for name in imports_at_once(node)}


def test_rooms_say_what_is_in_them() -> None:
    assert {room_of(p) for p in FILES} == {*ROOMS, "__init__.py", "__main__.py", "typing.py"}
    for folder in {p.parent for p in FILES} - {PACKAGE, PACKAGE / "_compat"}:
        says = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        files = {p.stem for p in folder.glob("*.py") if not p.stem.startswith("_")}
        assert not {name for name in files if f"`{name}`" not in says}, folder


def test_rooms_have_tests() -> None:
    """In the folder of their name."""
    folders = {path.parent.relative_to(TESTS).parts[:1] for path in TESTS.rglob("test_*.py")}
    of_rooms = {room.removeprefix("_") for room in ROOMS}
    assert of_rooms <= {folder[0] for folder in folders if folder}
    every = {path.name for path in TESTS.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert every - of_rooms == BESIDE_ROOMS


def test_public_names_are_imported_when_they_are_used() -> None:
    source = (PACKAGE / "__init__.py").read_text()
    assert len(jax_revolve._MODULES) <= 19
    names = within(imports(ast.parse(source)), "jax_revolve")
    assert names == {f"jax_revolve.{m}.{n}" for n, m in jax_revolve._MODULES.items()}
    assert dir(jax_revolve) == sorted(jax_revolve._MODULES) == sorted(jax_revolve.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'checkpointed_map'"):
        _ = jax_revolve.checkpointed_map  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("NoReverseMode", "it is in jax_revolve.typing"),
        ("RevolveAdjoint", "it is in jax_revolve.integrations.diffrax"),
        ("checkpointed_while_loop", "it is bounded_while_loop"),
    ],
)
def test_names_that_are_not_at_the_top_say_where_they_are(name: str, where: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}': {where}"):
        getattr(jax_revolve, name)


@pytest.mark.slow
def test_a_plan_does_without_jax() -> None:
    program = (
        "import sys; from jax_revolve import Disk, HostMemory, Plan, plan\n"
        "assert not {'jax', 'equinox'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_faults_name_what_is_there() -> None:
    """The text that each fault replaces is in the package once."""
    texts = [path.read_text() for path in FILES]
    counts = {f.name: sum(text.count(f.text) for text in texts) for f in faults()}
    assert [name for name, count in counts.items() if count != 1] == []
