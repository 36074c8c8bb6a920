"""Checkpoints in fewer bits: a codec encodes each leaf where it is stored.

Only floating-point and complex leaves are encoded, and only if that makes them smaller. Where a
stored leaf drifts too far from the exact one, as in an overflow, the whole checkpoint decodes to
NaN: the last array of the codes is 0, or NaN.
"""

from functools import partial
from math import inf
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve.engine.drift import drift_of, scale_of, tolerance_of
from jax_revolve.schedule.storage import Compressed
from jax_revolve.step.loop import is_inexact

BLOCK = 64
"""The numbers of "int8" that share a scale, along the last axis."""


def encode(codec: Compressed, leaves: list[Any], *, is_checked: bool = True) -> list[Any]:
    """The codes of a checkpoint, a flat list of arrays."""
    codes = [_encoded(codec.format, x) for x in leaves]
    flag = jnp.float32(0)
    if is_checked and codec.drift_tol != inf:
        # Without the barrier, XLA would leave out the conversion to fewer bits and back.
        stored = map(partial(_decoded, codec.format), lax.optimization_barrier(codes), leaves)
        both = zip(stored, leaves, strict=True)
        drifts = [drift_of(x, y, scale_of(y)) / tolerance_of(y, codec.tolerance) for x, y in both]
        drift = jnp.stack(drifts) if drifts else jnp.zeros(0)
        if codec.throw:
            check = partial(_raise_beyond, codec)
            drift = jax.pure_callback(check, drift, drift, vmap_method="sequential")
        flag = jnp.where(jnp.all(drift <= 1), flag, jnp.nan)
    return [*jax.tree.leaves(codes), flag]


def decode(codec: Compressed, codes: list[Any], like: list[Any]) -> list[Any]:
    """The checkpoint of these codes, with leaves of these types."""
    tree = jax.tree.structure(jax.eval_shape(lambda: [_encoded(codec.format, x) for x in like]))
    leaves = map(partial(_decoded, codec.format), jax.tree.unflatten(tree, codes[:-1]), like)
    return [x + codes[-1].astype(x.dtype) if is_inexact(x) else x for x in leaves]


def rounded(codec: Compressed, carry: Any) -> Any:
    """A carry as it is read back."""
    leaves, tree = jax.tree.flatten(carry)
    leaves = list(map(jnp.asarray, leaves))
    codes = encode(codec, leaves, is_checked=False)
    return jax.tree.unflatten(tree, decode(codec, codes, leaves))


def encoded_types(codec: Compressed | None, types: list[Any]) -> list[Any]:
    if codec is None:
        return types
    return list(
        jax.make_jaxpr(lambda *x: encode(codec, list(x), is_checked=False))(*types).out_avals
    )


def _is_encoded(format: Any, x: Any) -> bool:
    """Whether a leaf of real numbers is encoded, because that makes it smaller."""
    size, last = x.dtype.itemsize, x.shape[-1] if x.ndim else 1
    scale = 8 if x.dtype == jnp.float64 else 4
    return size > 2 if format != "int8" else last * size > last + scale * -(-last // BLOCK)


def _encoded(format: Any, x: Any) -> Any:
    if not is_inexact(x):
        return x
    if not isinstance(format, str):
        code = format[0](x)
        back = jax.eval_shape(format[1], code)
        if (back.shape, back.dtype) != (x.shape, x.dtype):
            raise TypeError(
                f"decode(encode(leaf)) must be {jax.typeof(x).str_short()} as the leaf, but is "
                f"{back.dtype}{list(back.shape)}."
            )
        return code
    if jnp.iscomplexobj(x):
        return [_encoded(format, part) for part in (x.real, x.imag)]
    if not _is_encoded(format, x):
        return x
    return _blocks(x) if format == "int8" else x.astype(format)


def _decoded(format: Any, code: Any, like: Any) -> Any:
    if not is_inexact(like):
        return code
    if not isinstance(format, str):
        return format[1](code)
    if jnp.iscomplexobj(like):
        part = jax.ShapeDtypeStruct(like.shape, jnp.finfo(like.dtype).dtype)
        return lax.complex(*(_decoded(format, each, part) for each in code))
    if format != "int8" or not _is_encoded(format, like):
        return code.astype(like.dtype)
    numbers, scale = code
    found = numbers * _spread(scale, numbers.shape[-1])
    return jnp.where(numbers == -128, jnp.nan, found).astype(like.dtype)


def _blocks(x: Any) -> tuple[Any, Any]:
    """8-bit integers, -128 for what is not finite, and the scale of each block."""
    count, is_finite = x.shape[-1], jnp.isfinite(x)
    size, dtype = min(BLOCK, count), jnp.promote_types(x.dtype, jnp.float32)
    values = jnp.where(is_finite, x, 0).astype(dtype)
    padded = jnp.pad(jnp.abs(values), [(0, 0)] * (x.ndim - 1) + [(0, -count % size)])
    scale = jnp.max(padded.reshape(*x.shape[:-1], -1, size), -1) / 127
    spread = _spread(scale, count)
    numbers = jnp.round(values / jnp.where(spread == 0, 1, spread))
    return jnp.where(is_finite, jnp.clip(numbers, -127, 127), -128).astype(jnp.int8), scale


def _spread(scale: Any, count: int) -> Any:
    """The scale of each number."""
    return jnp.repeat(scale, min(BLOCK, count), -1)[..., :count]


def _raise_beyond(codec: Compressed, drift: np.ndarray) -> np.ndarray:
    if not np.all(drift <= 1):
        leaf = int(np.argmax(np.where(np.isnan(drift), inf, drift)))
        raise FloatingPointError(
            f"Checkpoints in {codec} must be within drift_tol of the exact ones, but leaf {leaf} "
            f"of one is off by {drift[leaf]:.2g} times as much. Pass another format or a larger "
            "drift_tol: jax_revolve.drift shows which."
        )
    return np.asarray(drift)
