"""An estimate of a step's time, from its jaxpr, for choosing between plans.

Only the ratio between recomputing a step and keeping its residuals matters. The constants come from
a profile, as in `schedule.cost`. Matrix products count by their operations, other operations by the
bytes of their results, and kernels of their own also by their launch.
"""

from collections.abc import Iterable
from math import prod
from typing import Any

from jax_revolve._compat.jaxprs import ClosedJaxpr
from jax_revolve._compat.values import bytes_of, shape_on_a_device
from jax_revolve.jaxprs.walk import function_of, inner_jaxprs
from jax_revolve.profiles.profile import Profile
from jax_revolve.step.loop import Loop

# All of these except the foreign ones compute each example of a `jax.vmap` by itself, as `mixing`
# assumes.
TRANSCENDENTAL = {
    *("acosh", "asinh", "atanh", "cbrt", "cosh", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1"),
    *("log", "log1p", "logistic", "rsqrt", "sinh", "sqrt", "tanh"),
}
SLOW = {
    *("acos", "asin", "atan", "atan2", "cos", "digamma", "lgamma", "pow", "sin", "tan"),
}
"""XLA has no vector instructions for these on a CPU."""
CUBIC = {"cholesky", "eig", "eigh", "lu", "qr", "svd", "triangular_solve"}
FOREIGN = ("callback", "custom_call", "ffi", "pallas")
KERNELS = {"argmax", "argmin", "gather", "scatter", "scatter-add", "scatter_add", "sort", "top_k"}
"""These, and products, are not merged with their neighbors."""
FREE = {"broadcast_in_dim", "copy", "reshape", "squeeze", "stop_gradient"}
ELEMENTWISE = FREE | {
    *("abs", "add", "add_any", "and", "ceil", "clamp", "complex", "conj", "convert_element_type"),
    *("copysign", "div", "eq", "eq_to", "floor", "ge", "gt", "imag", "integer_pow", "iota"),
    *("is_finite", "le", "le_to", "lt", "lt_to", "max", "min", "mul", "ne", "neg", "nextafter"),
    *("not", "one_minus_square", "or", "population_count", "real", "rem", "round", "select_n"),
    *("shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "square", "sub"),
    "xor",
}
MOVING = {
    *("argmax", "argmin", "concatenate", "dynamic_slice", "dynamic_update_slice", "expand_dims"),
    *("gather", "pad", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod"),
    *("reduce_sum", "rev", "slice", "split", "transpose"),
}
"""They move or reduce elements."""


def work_of(jaxpr: ClosedJaxpr, profile: Profile) -> float:
    """The time of evaluating a jaxpr once, on a device, in nanoseconds."""
    return work_of_equations(jaxpr.eqns, profile)


def work_of_equations(eqns: Iterable[Any], profile: Profile) -> float:
    return sum(_work(eqn, profile) for eqn in eqns)


def is_estimated(jaxpr: ClosedJaxpr) -> bool:
    """Whether `work_of` can estimate the jaxpr: it has no loop of unknown length and no foreign
    program."""
    return all(
        eqn.primitive.name != "while"
        and not any(word in eqn.primitive.name for word in FOREIGN)
        and _length(eqn) is not None
        and all(map(is_estimated, inner_jaxprs(eqn)))
        for eqn in jaxpr.eqns
    )


def _length(eqn: Any) -> int | None:
    """The number of iterations of a loop, `None` if it is unknown; 1 for other equations."""
    function = function_of(eqn)
    return function.length if isinstance(function, Loop) else eqn.params.get("length", 1)


def _work(eqn: Any, profile: Profile) -> float:
    name, params = eqn.primitive.name, eqn.params
    if name == "cond":
        return max(work_of(branch, profile) for branch in params["branches"])
    if inner := inner_jaxprs(eqn):
        return (_length(eqn) or 1) * sum(work_of(jaxpr, profile) for jaxpr in inner)
    inputs, outputs = ([v.aval for v in vs] for vs in (eqn.invars, eqn.outvars))
    operations = _product_operations(eqn, sum(prod(shape_on_a_device(t)) for t in outputs))
    if operations is not None:
        return profile.kernel + operations * profile.product_operation
    if name in FREE:
        return 0.0
    if name.startswith("reduce_"):
        return bytes_of(inputs) * profile.byte
    if name in TRANSCENDENTAL:
        return bytes_of(outputs) * profile.transcendental_byte
    if name in SLOW:
        return bytes_of(outputs) * profile.slow_byte
    return profile.kernel * (name in KERNELS) + bytes_of(outputs) * profile.byte


def _product_operations(eqn: Any, size: int) -> float | None:
    """The additions and multiplications of a product with a result of this size; `None` for any
    other operation."""
    name, params = eqn.primitive.name, eqn.params
    shapes = [shape_on_a_device(v.aval) for v in eqn.invars]
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        return 2 * size * prod(shapes[0][axis] for axis in contracted)
    if name == "conv_general_dilated":
        kernel = shapes[1]
        features = kernel[params["dimension_numbers"].rhs_spec[0]]
        return 2 * size * prod(kernel) / max(features, 1)
    if name in CUBIC:
        return 2 * size * max(shapes[0][-1:], default=1)
    return None
