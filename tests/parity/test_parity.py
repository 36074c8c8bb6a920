"""Same values, derivatives and types as loops of lax's own, under every transformation."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from parity.cases import SCAN_CASES, WHILE_CASES, Case
from parity.loops import (
    Loops,
    assert_same,
    ours,
    ours_in_blocks,
    ours_stored,
    reference,
    scan_as_while,
)
from parity.transformations import ALL, COMPOUND, FORWARD_MODE

from jax_revolve import Disk, HostMemory

pytestmark = pytest.mark.usefixtures("compile_quickly")

CORE = [
    "grad",
    "jvp",
    "forward_over_reverse",
    "reverse_over_reverse",
    "vmap_of_grad",
    "grad_inside_checkpoint",
    "shard_map",
]
"""The transformations with rules of their own, which every case of a scan goes through in the slow
run."""

DISTINCT = {
    *CORE,
    *("evaluate", "grad_of_first", "linearize", "reverse_over_forward", "vmap_of_first"),
    *("vmap_of_last_axis", "grad_of_vmap", "grad_inside_scan", "inside_cond"),
}
"""Those that the others are made of. One case goes through them in every run, the others in the
slow one."""

CASES = {case.name: case for case in (*SCAN_CASES, *WHILE_CASES)}
QUICK_CASE = "recurrent"
IN_DEFAULT_PRECISION = {"recurrent", "random", "custom_vjp", "nested", "weak"}
SINGLE_RTOL = 1e-4
STORED_CASES = ["examples", "recurrent", "random"]
STORED = ["shard_map", "vmap_of_grad", "grad", "grad_of_vmap", "grad_inside_checkpoint"]
PLACES = ["host", "two levels", "disk"]

KINDS: dict[str, Callable[..., Loops]] = {
    "plain": ours,
    "as_while": scan_as_while,
    "blocks": ours_in_blocks,
    **dict.fromkeys(PLACES, ours),
}
"""Loops of ours: as they are, a scan as a while loop that indexes xs and writes ys, in blocks, and
with checkpoints beside the device."""


def _outcome(case: Case, transformation: str, loops: Callable[..., Loops]) -> Any:
    arguments = tuple(map(jnp.asarray, case.arguments))
    return ALL[transformation](case.program(loops(**case.options)), arguments)


@cache
def _expected(case: str, transformation: str) -> Any:
    """One oracle for several kinds of loops, which are tested one after the other."""
    return _outcome(CASES[case], transformation, reference)


def _has_its_turn(case: Case, transformation: str, *, of: int) -> bool:
    """Some pairs, so that each case and each transformation is in one."""
    names = CORE if transformation in CORE else [*ALL]
    return ([*CASES].index(case.name) + names.index(transformation)) % of == 0


def _scan_run(case: Case, name: str) -> str:
    if name in CORE:
        is_quick = name == "grad" or case.name == QUICK_CASE or _has_its_turn(case, name, of=5)
        return "quick" if is_quick else "slow"
    if case.name == QUICK_CASE:
        return "quick" if name in DISTINCT else "slow"
    return "slow" if _has_its_turn(case, name, of=6) and name not in COMPOUND else "exhaustive"


def _while_run(case: Case, name: str) -> str:
    """A while loop goes through the same rules as a scan."""
    of_its_own = case in WHILE_CASES
    if name == "grad":
        return "quick"
    if name in CORE and case.name in ("examples", "tree"):
        is_quick = case.name == "examples" or name in ("jvp", "reverse_over_reverse")
        return "quick" if is_quick else "slow"
    if name in CORE and (of_its_own or case.name == QUICK_CASE):
        return "slow"
    if name == "forward_over_reverse":
        return "quick" if _has_its_turn(case, name, of=5) else "slow"
    if case.name == "examples" and name not in COMPOUND:
        return "quick" if name in ("reverse_over_forward", "inside_batched_cond") else "slow"
    return "exhaustive"


def _block_run(case: Case, name: str) -> str:
    """Their rules are those of single steps but for the two sweeps."""
    if name == "grad":
        return "quick"
    if name in CORE and case.name in ("examples", "recurrent", "tree"):
        is_quick = case.name == "recurrent" and name in ("vmap_of_grad", "reverse_over_reverse")
        return "quick" if is_quick else "slow"
    return "exhaustive"


def _stored_run(case: Case, name: str, place: str) -> str:
    """Each two of case, transformation and place meet in the slow run."""
    if name not in STORED or case.name not in STORED_CASES:
        return "exhaustive"
    i, j, k = STORED_CASES.index(case.name), PLACES.index(place), STORED.index(name)
    if i == j and k == (1 if place != "host" else 0):
        return "quick"
    return "slow" if (i + j + k) % 3 == 0 or (i + j) % 2 == k else "exhaustive"


def _run_of(case: Case, name: str, kind: str) -> str:
    if kind == "plain":
        return (_while_run if case in WHILE_CASES else _scan_run)(case, name)
    if kind == "as_while":
        return _while_run(case, name)
    return _block_run(case, name) if kind == "blocks" else _stored_run(case, name, kind)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """To make thousands of tests takes seconds, even of those that are not selected."""
    if "transformation" in metafunc.fixturenames:
        is_asked = "not exhaustive" not in str(metafunc.config.getoption("markexpr"))
        metafunc.parametrize(("case", "transformation", "kind"), _triples(exhaustive=is_asked))


def _triples(*, exhaustive: bool) -> list[Any]:
    return [
        pytest.param(case, name, kind, id=f"{case.name}-{name}-{kind}", marks=marks)
        for case in CASES.values()
        for name in ALL
        if case.forward_mode or name not in FORWARD_MODE
        # As lax.scan: a Python loop cannot find the result types of no step at all.
        if not (name == "disable_jit" and case.name.startswith("lengths"))
        for kind in KINDS
        if not (kind == "as_while" and case in WHILE_CASES)
        # JAX cannot export a program that calls Python.
        if not (kind == "disk" and name == "exported")
        for run in [_run_of(case, name, kind)]
        if exhaustive or run != "exhaustive"
        for marks in [[] if run == "quick" else [getattr(pytest.mark, run)]]
    ]


@cache
def _cond_keeps_keys() -> bool:
    """Whether this JAX can differentiate a cond that keeps a PRNG key for it: 0.7.2 cannot."""

    def branch(a: Any) -> Any:
        draw = jax.checkpoint(lambda key, a: a * jax.random.uniform(key))
        return draw(jax.random.split(jax.random.key(0))[0], a)

    try:
        jax.jit(jax.grad(lambda a: lax.cond(a < 3, branch, lambda a: a, a)))(1.0)
    except ValueError:
        return False
    return True


def test_same_as_lax(
    case: Case, transformation: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """`lax.scan` is the oracle, and a masked one that of while loops."""
    if case.name in IN_DEFAULT_PRECISION:
        request.getfixturevalue("default_precision")
    in_cond = transformation in ("inside_cond", "inside_batched_cond")
    if case.name in ("random", "examples") and in_cond and not _cond_keeps_keys():
        pytest.skip("this JAX cannot keep a PRNG key for the derivative of a cond")
    loops = KINDS[kind]
    if kind in PLACES:
        storage, checkpoints = {
            "host": (HostMemory(checkpoints=5), 0),
            "two levels": (HostMemory(transfer=0), 2),
            "disk": (Disk(tmp_path, transfer=0), 2),
        }[kind]
        loops = partial(ours_stored, storage, checkpoints)
    theirs = _expected(case.name, transformation)
    found = _outcome(case, transformation, loops)
    rtol = SINGLE_RTOL if case.name in IN_DEFAULT_PRECISION else case.rtol
    assert_same(found, theirs, rtol, weak_types=kind != "as_while")
    assert not list(tmp_path.glob("*/*"))
