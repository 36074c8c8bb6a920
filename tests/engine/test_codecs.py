"""Codecs: what they keep, what they round, and what they refuse."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_revolve import Compressed, Disk, HostMemory, plan
from jax_revolve.engine.codecs import decode, encode, encoded_types, rounded

pytestmark = pytest.mark.usefixtures("default_precision")

RANDOM = np.random.default_rng(0).standard_normal((3, 150))
LEAF = jnp.array(RANDOM * [[1e-3], [1.0], [1e3]], jnp.float32)
FORMATS: list[Any] = ["bfloat16", "float16", "int8"]
UNITS: dict[Any, float] = {"bfloat16": 2**-8, "float16": 2**-11, "int8": 1 / 254}


@pytest.mark.parametrize("name", UNITS)
def test_leaves_are_rounded_to_nearest(name: Any) -> None:
    codec = Compressed(name)
    wave = LEAF[1] + 1j * LEAF[0]
    for leaf in (LEAF, wave):
        found = rounded(codec, leaf)
        assert found.dtype == leaf.dtype
        for part, exact in ((found.real, leaf.real), (found.imag, leaf.imag)):
            blocks = jnp.abs(jnp.pad(exact, [(0, 0)] * (exact.ndim - 1) + [(0, 42)]))
            scale = jnp.max(blocks.reshape(*exact.shape[:-1], 3, 64), -1)
            most = jnp.repeat(scale, 64, -1)[..., : exact.shape[-1]] if name == "int8" else exact
            assert jnp.all(jnp.abs(part - exact) <= 1.001 * UNITS[name] * jnp.abs(most) + 1e-7)
        assert not jnp.array_equal(found, leaf)


def test_what_stays_as_it_is() -> None:
    small: dict[Any, Any] = {"bfloat16": jnp.arange(5, dtype=jnp.float16), "int8": jnp.float32(1)}
    for name, leaf in small.items():
        carry = [3, True, jax.random.key(1), leaf, jnp.arange(300)]
        found = rounded(Compressed(name), carry)
        for a, b in zip(jax.tree.leaves(found), carry, strict=True):
            if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
                a, b = map(jax.random.key_data, (a, b))
            np.testing.assert_array_equal(a, b)


def test_bytes() -> None:
    leaf = jax.ShapeDtypeStruct((32, 128), jnp.float32)
    sizes = {
        name: sum(t.size * t.dtype.itemsize for t in encoded_types(Compressed(name), [leaf]))
        for name in FORMATS
    }
    exact = 4 * leaf.size
    flag = 4
    half = exact // 2 + flag
    quarter = exact // 4
    assert sizes == {"bfloat16": half, "float16": half, "int8": quarter + quarter // 16 + flag}


def test_numbers_that_are_not_finite() -> None:
    leaf = LEAF.at[1, 3].set(jnp.nan).at[1, 4].set(jnp.inf).at[2].set(0.0)
    found = rounded(Compressed("int8"), leaf)
    assert jnp.isnan(found[1, 3:5]).all()
    assert jnp.isnan(found).sum() == 2
    assert not found[2].any()


@pytest.mark.parametrize(
    ("leaf", "is_kept"), [(LEAF, True), (1e5 * LEAF, False), (1e-12 * LEAF, False)]
)
def test_a_leaf_that_drifts_is_nan(leaf: Any, is_kept: bool) -> None:
    def read_back(codec: Compressed) -> Any:
        return jax.jit(lambda x: decode(codec, encode(codec, [x, x[0]]), [x, x[0]]))(leaf)

    for part in read_back(Compressed("float16")):
        assert jnp.isnan(part).all() != is_kept
    loose = read_back(Compressed("float16", drift_tol=float("inf")))[0]
    assert not jnp.isnan(loose).any()
    loud = Compressed("float16", throw=True)
    if is_kept:
        read_back(loud)
    else:
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"Checkpoints in float16 .* leaf 0"):
            jax.block_until_ready(read_back(loud))


def test_a_pair_of_functions() -> None:
    every_other = (lambda x: x[..., ::2], lambda code: jnp.repeat(code, 2, -1))
    leaf = jnp.repeat(LEAF[:, :75], 2, -1)
    np.testing.assert_array_equal(rounded(Compressed(every_other), leaf), leaf)
    off = Compressed(every_other, drift_tol=0.1)
    assert jnp.isnan(decode(off, encode(off, [LEAF]), [LEAF])[0]).all()


def test_plans() -> None:
    alone = plan(100, 7, storage=Compressed("int8"))
    assert (alone.codec, alone.storage) == (Compressed("int8"), None)
    assert alone.checkpoints_on_device == 7
    assert alone.evaluations == plan(100, 7).evaluations
    assert "in int8" in str(alone)
    far = plan(100, 7, storage=Compressed("int8", HostMemory(transfer=2)))
    assert far.writes == plan(100, 7, storage=HostMemory(transfer=2)).writes > 0
    assert plan(100, levels=(10, 10), storage=Compressed("int8")).levels == (10, 10)
    assert hash(far) == hash(plan(100, 7, storage=Compressed("int8", HostMemory(transfer=2))))


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        (("int4",), TypeError, "format must be one of 'bfloat16', 'float16', 'int8' or a pair"),
        (((jnp.sin,),), TypeError, "or a pair"),
        (("int8", "host"), TypeError, "storage must be None, a HostMemory or a Disk"),
        (("int8", Disk("/tmp"), -1), ValueError, "drift_tol must be a number >= 0"),
    ],
)
def test_errors(given: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Compressed(*given)


def test_a_pair_that_returns_another_type() -> None:
    with pytest.raises(TypeError, match=r"decode\(encode\(leaf\)\) must be .* float32\[2, 150"):
        rounded(Compressed((lambda x: x, lambda code: code[1:])), LEAF)
