"""Same values, derivatives and types as loops of lax's own, under every transformation."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from parity.cases import SCAN_CASES, WHILE_CASES, Case
from parity.loops import Loops, ours, ours_in_blocks, ours_stored, reference, scan_as_while
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
"""The transformations that every case goes through, with either loop."""

EVERY_VERSION = {"grad", "jvp", "forward_over_reverse", "vmap_of_grad"}
"""Those that a while loop goes through on the oldest and the newest JAX, too."""

BOTH_MODES = {"grad", "forward_over_reverse"}
"""Those of them that it goes through whatever the case."""

SEVERAL = {"examples", "recurrent", "tree"}
"""The cases that while loops go through all of `CORE` with, in every run."""

IN_BLOCKS = {"grad", "vmap_of_grad", "reverse_over_reverse", "shard_map"}
"""Those that loops go through in blocks, in every run. Their rules are those of single steps but
for the two sweeps."""

QUICK = "recurrent"
"""The case of a scan that goes through all transformations in every run. Of the others every sixth
pair does, and every third of `CORE`, so that each case and each transformation has its turn."""

STORED = ["shard_map", "vmap_of_grad", "grad", "grad_of_vmap", "grad_inside_checkpoint"]
"""Those that loops go through with checkpoints beside the device, the first two in every run."""

STORED_CASES = ["examples", "recurrent", "random"]
PLACES = ["host", "two levels", "disk"]

CASES = {case.name: case for case in (*SCAN_CASES, *WHILE_CASES)}


def _outcome(case: Case, transformation: str, loops: Callable[..., Loops]) -> Any:
    return ALL[transformation](case.program(loops(**case.options)), case.arguments)


@cache
def _expected(case: str, transformation: str) -> Any:
    """One oracle for several loops."""
    return _outcome(CASES[case], transformation, reference)


def assert_same(ours: Any, theirs: Any, rtol: float, *, weak_types: bool = True) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(ours), jax.tree.leaves(theirs), strict=True
    ):
        where = jax.tree_util.keystr(path)
        if a.dtype == jax.dtypes.float0:
            assert b.dtype == jax.dtypes.float0, where
            continue
        assert (a.shape, a.dtype) == (b.shape, b.dtype), where
        assert not weak_types or jax.typeof(a) == jax.typeof(b), where
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        wide = complex if jnp.issubdtype(a.dtype, jnp.complexfloating) else float
        a, b = np.asarray(a).astype(wide), np.asarray(b).astype(wide)
        scale = np.max(np.abs(b), initial=1e-300)
        np.testing.assert_allclose(a / scale, b / scale, rtol=0, atol=rtol, err_msg=where)


def _pairs(
    cases: list[Case], marks: Callable[[Case, str], list[pytest.MarkDecorator]]
) -> list[Any]:
    return [
        pytest.param(case, name, id=f"{case.name}-{name}", marks=marks(case, name))
        for case in cases
        for name in ALL
        if case.forward_mode or name not in FORWARD_MODE
        # As lax.scan: a Python loop cannot find the result types of no step at all.
        if not (name == "disable_jit" and case.name.startswith("lengths"))
    ]


def _has_its_turn(case: Case, transformation: str, *, of: int) -> bool:
    names = CORE if transformation in CORE else [*ALL]
    return ([*CASES].index(case.name) + names.index(transformation)) % of == 0


def _scan_marks(case: Case, transformation: str) -> list[pytest.MarkDecorator]:
    if transformation in CORE:
        is_quick = transformation == "grad" or case.name == QUICK
        is_quick = is_quick or _has_its_turn(case, transformation, of=3)
        return [pytest.mark.core, *([] if is_quick else [pytest.mark.slow])]
    if case.name == QUICK:
        return [pytest.mark.slow] if transformation in COMPOUND else []
    is_quick = _has_its_turn(case, transformation, of=6) and transformation not in COMPOUND
    return [] if is_quick else [pytest.mark.exhaustive]


def _while_marks(case: Case, transformation: str) -> list[pytest.MarkDecorator]:
    """A while loop goes through the same rules as a scan; the rest of its pairs is for changes."""
    if case.name in ("both_loops", "trip_counts") and transformation in CORE:
        is_quick = transformation in ("grad", "jvp")
        return [pytest.mark.core if is_quick else pytest.mark.slow]
    if transformation in EVERY_VERSION and case.name in SEVERAL:
        return [pytest.mark.core]
    if transformation in BOTH_MODES:
        is_quick = transformation == "grad" or _has_its_turn(case, transformation, of=3)
        return [pytest.mark.core, *([] if is_quick else [pytest.mark.slow])]
    if transformation in CORE and case.name in SEVERAL:
        return []
    if case.name == "examples" and transformation not in COMPOUND:
        return [] if _has_its_turn(case, transformation, of=3) else [pytest.mark.slow]
    return [pytest.mark.exhaustive]


def _block_marks(case: Case, transformation: str) -> list[pytest.MarkDecorator]:
    if transformation == "grad":
        return [pytest.mark.core]
    if transformation in IN_BLOCKS and case.name in SEVERAL:
        return [] if case.name == "recurrent" else [pytest.mark.slow]
    return [pytest.mark.exhaustive]


def _stored_triples() -> Any:
    """Each two of case, transformation and place meet in the slow run, and the first and the last
    in every run."""

    def marks(case: Case, transformation: str, place: str) -> list[pytest.MarkDecorator]:
        if transformation not in STORED or case.name not in STORED_CASES:
            return [pytest.mark.exhaustive]
        i, j = STORED_CASES.index(case.name), PLACES.index(place)
        if (i + j) % 2 == STORED.index(transformation):
            return []
        is_slow = (i + j + STORED.index(transformation)) % 3 == 0
        return [pytest.mark.slow if is_slow else pytest.mark.exhaustive]

    triples = [
        pytest.param(case, name, place, id=f"{pair.id}-{place}", marks=marks(case, name, place))
        for pair in _pairs([*SCAN_CASES, *WHILE_CASES], lambda *_: [])
        for case, name in [pair.values]
        for place in PLACES
    ]
    return pytest.mark.parametrize(("case", "transformation", "place"), triples)


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


def _check(case: Case, transformation: str, loops: Callable[..., Loops], **options: bool) -> None:
    in_cond = transformation in ("inside_cond", "inside_batched_cond")
    if case.name in ("random", "examples") and in_cond and not _cond_keeps_keys():
        pytest.skip("this JAX cannot keep a PRNG key for the derivative of a cond")
    theirs = _expected(case.name, transformation)
    assert_same(_outcome(case, transformation, loops), theirs, case.rtol, **options)


@pytest.mark.parametrize(("case", "transformation"), _pairs(SCAN_CASES, _scan_marks))
def test_scan(case: Case, transformation: str) -> None:
    """`lax.scan` is the oracle."""
    _check(case, transformation, ours)


@pytest.mark.parametrize(("case", "transformation"), _pairs(WHILE_CASES, _while_marks))
def test_while_loop(case: Case, transformation: str) -> None:
    """A masked `lax.scan` is the oracle."""
    _check(case, transformation, ours)


@pytest.mark.parametrize(("case", "transformation"), _pairs(SCAN_CASES, _while_marks))
def test_scan_as_while_loop(case: Case, transformation: str) -> None:
    """`lax.scan` is the oracle of a while loop that indexes xs and writes ys."""
    _check(case, transformation, scan_as_while, weak_types=False)


@pytest.mark.parametrize(
    ("case", "transformation"), _pairs([*SCAN_CASES, *WHILE_CASES], _block_marks)
)
def test_blocks(case: Case, transformation: str) -> None:
    """The oracles of either loop."""
    _check(case, transformation, ours_in_blocks)


@_stored_triples()
def test_stored(case: Case, transformation: str, place: str, tmp_path: Path) -> None:
    """The oracles of either loop, for one whose checkpoints are beside the device."""
    if place == "disk" and transformation in ("exported",):
        pytest.skip("JAX cannot export a program that calls Python")
    storage, checkpoints = {
        "host": (HostMemory(checkpoints=5), 0),
        "two levels": (HostMemory(transfer=0), 2),
        "disk": (Disk(tmp_path, transfer=0), 2),
    }[place]
    _check(case, transformation, partial(ours_stored, storage, checkpoints))
    assert not list(tmp_path.glob("*/*"))
