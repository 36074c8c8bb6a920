"""Same values, derivatives and types as loops of lax's own, under every transformation."""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from parity.cases import SCAN_CASES, WHILE_CASES, Case
from parity.loops import Loops, ours, reference, scan_as_while
from parity.transformations import ALL, COMPOUND, FORWARD_MODE

pytestmark = pytest.mark.usefixtures("compile_quickly")

QUICK = {"recurrent", "lengths"}
"""The cases for which compound transformations are not marked as slow."""


def _outcome(case: Case, transformation: str, loops: Callable[..., Loops]) -> Any:
    return ALL[transformation](case.program(loops(**case.options)), case.arguments)


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


def _pairs(cases: list[Case], quick: Callable[[Case, str], bool]) -> list[Any]:
    return [
        pytest.param(
            case,
            name,
            id=f"{case.name}-{name}",
            marks=[] if quick(case, name) else [pytest.mark.slow],
        )
        for case in cases
        for name in ALL
        if case.forward_mode or name not in FORWARD_MODE
        # As lax.scan: a Python loop cannot find the result types of no step at all.
        if not (name == "disable_jit" and case.name.startswith("lengths"))
    ]


def _compound_ones_are_slow(case: Case, transformation: str) -> bool:
    return case.name in QUICK or transformation not in COMPOUND


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
    theirs = _outcome(case, transformation, reference)
    assert_same(_outcome(case, transformation, loops), theirs, case.rtol, **options)


@pytest.mark.parametrize(("case", "transformation"), _pairs(SCAN_CASES, _compound_ones_are_slow))
def test_scan(case: Case, transformation: str) -> None:
    """`lax.scan` is the oracle."""
    _check(case, transformation, ours)


@pytest.mark.parametrize(("case", "transformation"), _pairs(WHILE_CASES, _compound_ones_are_slow))
def test_while_loop(case: Case, transformation: str) -> None:
    """A masked `lax.scan` is the oracle."""
    _check(case, transformation, ours)


@pytest.mark.parametrize(("case", "transformation"), _pairs(SCAN_CASES, _compound_ones_are_slow))
def test_scan_as_while_loop(case: Case, transformation: str) -> None:
    """`lax.scan` is the oracle of a while loop that indexes xs and writes ys."""
    _check(case, transformation, scan_as_while, weak_types=False)
