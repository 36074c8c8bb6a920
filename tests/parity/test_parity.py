"""Same values, derivatives and types as loops of lax's own, under every transformation."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from parity.cases import SCAN_CASES, WHILE_CASES, Case
from parity.transformations import ALL, COMPOUND, FORWARD_MODE
from support.oracles import Loops, assert_same, ours, reference, scan_as_while

from jax_revolve import Disk, HostMemory, explain

pytestmark = pytest.mark.usefixtures("compile_quickly")

CORE = {
    *("grad", "jvp", "forward_over_reverse", "reverse_over_reverse", "vmap_of_grad"),
    *("grad_inside_checkpoint", "shard_map"),
}
"""The transformations with rules of their own."""

DISTINCT = {
    *CORE,
    *("evaluate", "grad_of_first", "linearize", "reverse_over_forward", "vmap_of_first"),
    *("vmap_of_last_axis", "grad_of_vmap", "grad_inside_scan", "inside_cond"),
}
"""Those that the others are made of."""

QUICK: dict[str, dict[str, set[str]]] = {
    "plain": {
        "recurrent": DISTINCT,
        "examples": {*CORE, "reverse_over_forward", "inside_batched_cond"},
        "tree": {"vmap_of_grad"},
        "random": {"reverse_over_reverse"},
        "dtypes": {"forward_over_reverse"},
        "custom_vjp": {"shard_map"},
        "rules_and_branches": {"grad_inside_checkpoint"},
        "nested": {"vmap_of_grad"},
        "weak": {"reverse_over_reverse"},
        "lengths": {"forward_over_reverse"},
    },
    "as_while": {"tree": {"jvp", "reverse_over_reverse"}, "dtypes": {"forward_over_reverse"}},
    "blocks": {"recurrent": {"vmap_of_grad", "reverse_over_reverse"}},
    "host": {"examples": {"shard_map"}},
    "two levels": {"recurrent": {"vmap_of_grad"}},
    "disk": {"random": {"vmap_of_grad"}},
}
"""What is tested in every run, beside the gradient of every case without a storage."""

CASES = {case.name: case for case in (*SCAN_CASES, *WHILE_CASES)}
IN_DEFAULT_PRECISION = {"recurrent", "random", "custom_vjp", "nested", "weak"}
SINGLE_RTOL = 1e-4
STORED_CASES = {("examples", "host"), ("recurrent", "two levels"), ("random", "disk")}
STORED = ["shard_map", "vmap_of_grad", "grad", "grad_of_vmap", "grad_inside_checkpoint"]
PLACES = ["host", "two levels", "disk"]

KINDS: dict[str, Callable[..., Loops]] = {
    "plain": partial(ours, {}),
    "as_while": scan_as_while,
    "blocks": partial(ours, {"block_size": 2}),
    "host": partial(ours, {"storage": HostMemory(checkpoints=5), "checkpoints": 0}),
    "two levels": partial(ours, {"storage": HostMemory(transfer=0), "checkpoints": 2}),
    "disk": ours,
}
"""Loops of ours: as they are, a scan as a while loop that indexes xs and writes ys, in blocks of
two steps, the last of which may be shorter, and with checkpoints beside the device."""


def _outcome(case: Case, transformation: str, loops: Callable[..., Loops]) -> Any:
    arguments = tuple(map(jnp.asarray, case.arguments))
    scan, while_loop = loops(**case.options)
    if transformation == "exported":  # JAX cannot export a program that calls Python
        while_loop = partial(while_loop, throw=False)
    return ALL[transformation](case.program(Loops(scan, while_loop)), arguments)


@cache
def _expected(case: str, transformation: str) -> Any:
    """One oracle for several kinds of loops, which are tested one after the other."""
    return _outcome(CASES[case], transformation, reference)


def _run_of(case: str, name: str, kind: str) -> str:
    """Slow are the gradients with a storage, what has rules of its own for the cases with the most
    kinds of leaves, and a share of the rest."""
    if name in QUICK[kind].get(case, ()) or (name == "grad" and kind not in PLACES):
        return "quick"
    if kind in PLACES:
        is_slow = name in STORED and (case, kind) in STORED_CASES
    elif name in CORE or kind != "plain":
        is_slow = name in CORE and (kind == "plain" or case in ("recurrent", "examples", "tree"))
    else:
        turn = case == "examples" or ([*CASES].index(case) + [*ALL].index(name)) % 6 == 0
        is_slow = case == "recurrent" or (turn and name not in COMPOUND)
    return "slow" if is_slow else "exhaustive"


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
        for run in [_run_of(case.name, name, kind)]
        if exhaustive or run != "exhaustive"
        for marks in [[] if run == "quick" else [getattr(pytest.mark, run)]]
    ]


def test_same_as_lax(
    case: Case, transformation: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """`lax.scan` is the oracle, and a masked one that of while loops."""
    if case.name in IN_DEFAULT_PRECISION:
        request.getfixturevalue("default_precision")
    loops = KINDS[kind]
    if kind == "disk":
        loops = partial(ours, {"storage": Disk(tmp_path, transfer=0), "checkpoints": 2})
    theirs = _expected(case.name, transformation)
    found = _outcome(case, transformation, loops)
    rtol = SINGLE_RTOL if case.name in IN_DEFAULT_PRECISION else case.rtol
    assert_same(found, theirs, rtol, weak_types=kind != "as_while")
    assert not list(tmp_path.glob("*/*.*"))


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_loops_of_lax_are_found(case: Case) -> None:
    report = explain(jax.checkpoint(case.program(reference())))(*map(jnp.asarray, case.arguments))
    assert report.loops or report.left_alone
    assert not report.not_entered
