"""Values without reverse mode, and an error that says why."""

from typing import Any

from jax_revolve._compat.functions import Flat
from jax_revolve._compat.primitives import new_primitive
from jax_revolve.step.loop import NoReverseMode


def without_reverse_mode(values: Flat, message: str) -> Flat:
    """The values, which raise an error with this message in reverse mode. The while loop that made
    them stays lax's, so evaluation and forward mode cost the same as with lax. JAX transposes the
    tangents of these values before the loop's."""
    return [x for value in values for x in refusal_p.bind(value, message=message)]


def _jvp(primals: Flat, tangents: Flat, message: str) -> tuple[Flat, Flat]:
    return refusal_p.bind(*primals, message=message), refusal_p.bind(*tangents, message=message)


def _transpose(cotangents: Flat, *values: Any, message: str) -> Flat:
    del cotangents, values
    raise NoReverseMode(message)


refusal_p = new_primitive(
    "no_reverse_mode",
    implementation=lambda value, message: [value],
    output_types=lambda aval, message: ([aval], frozenset()),
    batch=lambda axis, values, dims, message: (refusal_p.bind(*values, message=message), dims),
    jvp=_jvp,
    transpose=_transpose,
)
