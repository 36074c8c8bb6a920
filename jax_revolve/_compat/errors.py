"""Errors at run time."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def one_unless(wrong: jax.Array, message: str) -> Any:
    """Ones, as many as there are examples, or an error at run time: `equinox.error_if`.

    Under `jax.checking_leaks` that function is an error itself up to jax 0.10: it keeps a tracer of
    the program that it is called in. There a plain callback takes its place.
    """
    ones = jnp.ones(jnp.shape(wrong))
    type_ = jax.ShapeDtypeStruct(ones.shape, ones.dtype)
    if not jax.config.jax_check_tracer_leaks:  # pyright: ignore[reportAttributeAccessIssue]
        import equinox

        return equinox.error_if(ones, wrong, message)

    def check(wrong: Any) -> Any:
        if np.any(wrong):
            raise RuntimeError(message)
        return np.ones(np.shape(wrong), type_.dtype)

    return jax.pure_callback(check, type_, wrong, vmap_method="expand_dims")
