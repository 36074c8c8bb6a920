"""How far a leaf of a carry is from the exact one: walked back by an inverse, or read from a
checkpoint in fewer bits. The largest difference counts, relative to the largest entry."""

from typing import Any

import jax
import jax.numpy as jnp

from jax_revolve.step.cpu import largest_entry
from jax_revolve.step.loop import is_inexact


def scale_of(leaf: Any, examples: int = 0) -> jax.Array:
    """A leaf's largest entry. The first `examples` axes are examples, with a scale each. Leaves
    that may not differ at all have none."""
    if not is_inexact(leaf):
        return jnp.zeros(())
    return largest_entry(leaf, tuple(range(examples, leaf.ndim)))


def drift_of(found: Any, exact: Any, scale: Any, examples: int = 0) -> jax.Array:
    """A leaf's largest difference from the exact one, relative to a scale: in a block that is
    walked back, to the larger of those at both ends."""
    if not is_inexact(exact):
        return jnp.where(jnp.any(found != exact), jnp.float32(jnp.inf), 0)
    off = scale_of(jnp.where(found == exact, 0, found - exact), examples)
    drift = off / jnp.maximum(scale, jnp.finfo(exact.dtype).tiny)
    return jnp.max(drift, initial=0).astype(jnp.float32)


def tolerance_of(leaf: Any, given: float | None) -> float:
    """How far a leaf may drift: by default, the square root of its epsilon."""
    if not is_inexact(leaf):
        return 1.0
    limits = jnp.finfo(leaf.dtype)
    return float(limits.eps) ** 0.5 if given is None else max(given, float(limits.tiny))
