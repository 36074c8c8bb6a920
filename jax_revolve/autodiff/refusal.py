"""Values that have no derivatives in reverse mode, and an error that says why."""

from typing import Any

from jax_revolve._compat.primitives import new_primitive
from jax_revolve._compat.values import is_zero
from jax_revolve.autodiff.derivatives import Flat
from jax_revolve.step.loop import NoReverseMode


def without_reverse_mode(values: Flat, message: str) -> Flat:
    """The values themselves. In reverse mode they raise an error with this message.

    They are as in lax's while loop, which is left as it is: evaluation and forward mode cost
    what they cost with lax. JAX transposes these values' tangents before the loop's.
    """
    return refusal_p.bind(*values, message=message)


def _types(*avals: Any, message: str) -> Any:
    del message
    return avals, frozenset()


def _jvp(primals: Flat, tangents: Flat, message: str) -> Any:
    nonzero = [t for t in tangents if not is_zero(t)]
    active = iter(refusal_p.bind(*nonzero, message=message) if nonzero else [])
    dots = [t if is_zero(t) else next(active) for t in tangents]
    return refusal_p.bind(*primals, message=message), dots


def _batch(axis: Any, values: Flat, dims: Flat, message: str) -> Any:
    del axis
    return refusal_p.bind(*values, message=message), dims


def _transpose(cotangents: Flat, *values: Any, message: str) -> Flat:
    del cotangents, values
    raise NoReverseMode(message)


refusal_p = new_primitive(
    "no_reverse_mode",
    implementation=lambda *values, message: values,
    output_types=_types,
    batch=_batch,
    jvp=_jvp,
    transpose=_transpose,
)
