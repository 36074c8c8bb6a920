"""`lax.scan` is the oracle: same values, derivatives and types under every transformation."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from parity.cases import CASES, Case
from parity.transformations import ALL, COMPOUND, FORWARD_MODE

from jax_revolve import checkpointed_scan

QUICK = {"recurrent", "lengths"}
"""The cases for which compound transformations are not marked as slow."""


def _outcome(case: Case, transformation: str, *, checkpointed: bool) -> Any:
    options = dict(case.options)
    checkpoints = options.pop("checkpoints", None)
    if checkpointed:
        scan = partial(checkpointed_scan, **options, checkpoints=checkpoints)
    else:
        scan = partial(lax.scan, **options)
    return ALL[transformation](case.program(scan), case.arguments)


def assert_same(ours: Any, theirs: Any, rtol: float) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(ours), jax.tree.leaves(theirs), strict=True
    ):
        where = jax.tree_util.keystr(path)
        if a.dtype == jax.dtypes.float0:
            assert b.dtype == jax.dtypes.float0, where
            continue
        assert jax.typeof(a) == jax.typeof(b), where
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        wide = complex if jnp.issubdtype(a.dtype, jnp.complexfloating) else float
        a, b = np.asarray(a).astype(wide), np.asarray(b).astype(wide)
        scale = np.max(np.abs(b), initial=1e-300)
        np.testing.assert_allclose(a / scale, b / scale, rtol=0, atol=rtol, err_msg=where)


def _pairs() -> list[Any]:
    return [
        pytest.param(
            case,
            name,
            id=f"{case.name}-{name}",
            marks=[pytest.mark.slow] if name in COMPOUND and case.name not in QUICK else [],
        )
        for case in CASES
        for name in ALL
        if case.forward_mode or name not in FORWARD_MODE
        # As lax.scan: a Python loop cannot find the result types of no step at all.
        if not (name == "disable_jit" and case.name.startswith("lengths"))
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


@pytest.mark.parametrize(("case", "transformation"), _pairs())
def test_same_as_lax_scan(case: Case, transformation: str) -> None:
    in_cond = transformation in ("inside_cond", "inside_batched_cond")
    if case.name == "random" and in_cond and not _cond_keeps_keys():
        pytest.skip("this JAX cannot keep a PRNG key for the derivative of a cond")
    ours = _outcome(case, transformation, checkpointed=True)
    theirs = _outcome(case, transformation, checkpointed=False)
    assert_same(ours, theirs, case.rtol)
