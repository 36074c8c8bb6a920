"""The names of JAX that the library stands on, and that no release promises to keep."""

import ast
import re
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from support.calls import CALLS, equations, option, ruled
from support.jax_names import NAMES, Names
from support.oracles import with_reverse_rule

from jax_revolve import _compat
from jax_revolve._compat.jaxprs import parameters_of

X = jnp.ones(3)
COMPAT = Path(_compat.__path__[0])


def scanned(x: Any) -> Any:
    return lax.scan(lambda c, _: (jnp.sin(c), None), x, length=3)[0]


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    **CALLS,
    "jit": jax.jit(scanned),
    "while": lambda x: lax.while_loop(lambda x: x[0] < 3, lambda x: x + 1, x),
    "cond": lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x),
    "vmap": jax.custom_batching.sequential_vmap(jnp.sin),
    "shard_map": jax.shard_map(
        jnp.sin, mesh=jax.make_mesh((1,), ("i",)), in_specs=jax.P(), out_specs=jax.P()
    ),
    "vjp": with_reverse_rule(scanned, lambda x, ct: ct),
    "jvp": ruled("custom_jvp"),
}
OPTIONS = {
    "RematTraced": ("jax_remat3", jax.checkpoint(scanned)),
    "CustomVJPTraced": ("jax_custom_vjp3", PROGRAMS["vjp"]),
    "CustomJVPTraced": ("jax_custom_jvp3", PROGRAMS["jvp"]),
    "Scan3": ("jax_scan3", scanned),
}


def kind(eqn: Any) -> str:
    prim = eqn.params.get("_prim")
    return eqn.primitive.name if prim is None else type(prim).__name__


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """An equation of each kind."""
    return {kind(eqn): eqn for f in PROGRAMS.values() for eqn in equations(jax.make_jaxpr(f)(X))}


@pytest.mark.parametrize("entry", NAMES, ids=lambda entry: entry.names.partition(":")[0])
def test_a_name_is_there(entry: Names, found: dict[str, Any]) -> None:
    where, _, what = entry.names.partition(": ")
    if not where.startswith("equation "):
        module, _, rest = where.rpartition(".")
        if where == "jax.config":
            holder = jax.config
        elif rest == "ShapedArray":
            holder = jax.typeof(X)
        else:
            holder = (
                import_module(where) if is_module(where) else getattr(import_module(module), rest)
            )
        for name in what.split():
            assert hasattr(holder, name), entry
        return
    if jax.__version_info__ < tuple(map(int, entry.since.split("."))):
        pytest.skip(f"a name of JAX {entry.since}")
    equation = where.removeprefix("equation ")
    if equation in OPTIONS:
        name, program = OPTIONS[equation]
        with option(name):
            found = {kind(eqn): eqn for eqn in equations(jax.make_jaxpr(program)(X))}
    assert {*what.split()} <= {*parameters_of(found[equation])}, entry


def test_the_tangent_of_a_custom_vjp_function_has_a_name() -> None:
    """By which `step.linearized` knows that a step has no forward mode."""
    f = jax.custom_vjp(jnp.sin)
    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * jnp.cos(x),))
    traced = jax.make_jaxpr(lambda x: jax.jvp(f, (x,), (x,)))(X)
    assert "custom_lin" in {eqn.primitive.name for eqn in traced.eqns}


def is_module(name: str) -> bool:
    if not name.startswith(("jax.interpreters.", "jax._src.", "jax.experimental.")):
        return False
    with suppress(ModuleNotFoundError):  # the name is a class's, in a module
        return find_spec(name) is not None
    return False


def test_the_table_names_what_is_imported() -> None:
    listed = {
        f"{where}.{name}"
        for entry in NAMES
        for where, _, what in [entry.names.partition(": ")]
        for name in what.split()
    }
    used = set[str]()
    for path in COMPAT.glob("*.py"):
        source = path.read_text()
        modules = {}
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.ImportFrom) or not str(node.module).startswith("jax."):
                continue
            for alias in node.names:
                if is_module(f"{node.module}.{alias.name}"):
                    modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                elif str(node.module).startswith(("jax.extend", "jax.core", "jax._src")):
                    used.add(f"{node.module}.{alias.name}")
        for short, module in modules.items():
            found = re.findall(rf"\b{short}\.(\w+)", source)
            used |= {f"{module}.{name}" for name in found}
    assert used <= listed
    assert len(used) > 10
