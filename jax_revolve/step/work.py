"""An estimate of a step's time, from its jaxpr, for choosing between plans.

Only ratios matter: between recomputing a step and keeping its residuals. The constants are
nanoseconds on a CPU with two cores, as in `schedule.cost`. Matrix products count by their
operations, everything else by the bytes of its results.
"""

from collections.abc import Iterable
from math import prod
from typing import Any

from jax_revolve._compat import (
    ClosedJaxpr,
    bytes_of,
    function_of,
    inner_jaxprs,
    shape_on_a_device,
)
from jax_revolve.step.loop import Loop

PRODUCT_OPERATION = 0.015
BYTE = 0.01
TRANSCENDENTAL_BYTE = 0.25
SLOW_BYTE = 1.0

TRANSCENDENTAL = {
    *("acosh", "asinh", "atanh", "cbrt", "cosh", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1"),
    *("log", "log1p", "logistic", "rsqrt", "sinh", "sqrt", "tanh"),
}
SLOW = {
    *("acos", "asin", "atan", "atan2", "cos", "digamma", "lgamma", "pow", "sin", "tan"),
}
"""Of these XLA makes no vector instructions for a CPU."""
PER_BYTE = dict.fromkeys(TRANSCENDENTAL, TRANSCENDENTAL_BYTE) | dict.fromkeys(SLOW, SLOW_BYTE)
CUBIC = {"cholesky", "eig", "eigh", "lu", "qr", "svd", "triangular_solve"}
FOREIGN = ("callback", "custom_call", "ffi", "pallas")
FREE = {"broadcast_in_dim", "copy", "reshape", "squeeze", "stop_gradient"}


def work_of(jaxpr: ClosedJaxpr) -> float:
    """The time of evaluating a jaxpr once, on a device, in nanoseconds."""
    return work_of_equations(jaxpr.eqns)


def work_of_equations(eqns: Iterable[Any]) -> float:
    """The time of evaluating these equations of a jaxpr once."""
    return sum(map(_work, eqns))


def is_estimated(jaxpr: ClosedJaxpr) -> bool:
    """Whether `work_of` can estimate the jaxpr: it has no loop of unknown length, and no program
    that is not JAX's own."""
    return all(
        eqn.primitive.name != "while"
        and not any(word in eqn.primitive.name for word in FOREIGN)
        and _length(eqn) is not None
        and all(map(is_estimated, [*inner_jaxprs(eqn), *eqn.params.get("branches", ())]))
        for eqn in jaxpr.eqns
    )


def _length(eqn: Any) -> int | None:
    """The number of iterations of a loop, `None` if it is unknown; 1 for other equations."""
    function = function_of(eqn)
    return function.length if isinstance(function, Loop) else eqn.params.get("length", 1)


def _work(eqn: Any) -> float:
    name, params = eqn.primitive.name, eqn.params
    if name == "cond":
        return max(map(work_of, params["branches"]))
    if inner := inner_jaxprs(eqn):
        return (_length(eqn) or 1) * sum(map(work_of, inner))
    inputs, outputs = ([v.aval for v in vs] for vs in (eqn.invars, eqn.outvars))
    shapes = list(map(shape_on_a_device, inputs))
    size = sum(prod(shape_on_a_device(aval)) for aval in outputs)
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        summed = prod(shapes[0][axis] for axis in contracted)
        return 2 * size * summed * PRODUCT_OPERATION
    if name == "conv_general_dilated":
        kernel = shapes[1]
        features = kernel[params["dimension_numbers"].rhs_spec[0]]
        return 2 * size * prod(kernel) / max(features, 1) * PRODUCT_OPERATION
    if name in CUBIC:
        return 2 * size * max(shapes[0][-1:], default=1) * PRODUCT_OPERATION
    if name in FREE:
        return 0.0
    if name.startswith("reduce_"):
        return bytes_of(inputs) * BYTE
    return bytes_of(outputs) * PER_BYTE.get(name, BYTE)
