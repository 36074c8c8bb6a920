"""Whether the examples of a `jax.vmap` see each other, or differ, in a step.

JAX computes most operations for each example by itself. Not so collectives over a named axis, the
rules of `jax.custom_batching.custom_vmap` functions, which see all examples, and calls back into
Python. There may be others: libraries define primitives of their own, and JAX adds some with every
version. So this is a list of what is known to compute every example by itself, and an operation
that is not on it is taken to mix examples: then every example computes it from its own values, as
in `jax.lax`.
"""

from typing import Any

from jax_revolve._compat.jaxprs import name_of
from jax_revolve.jaxprs.walk import any_equation, inner_jaxprs

INDEPENDENT = {
    *("abs", "acos", "acosh", "add", "add_any", "and", "approx_top_k", "argmax", "argmin", "asin"),
    *("asinh", "atan", "atan2", "atanh", "axis_index", "bessel_i0e", "bessel_i1e"),
    *("bitcast_convert_type", "broadcast_in_dim", "broadcast_to", "cbrt", "ceil", "cholesky"),
    *("cholesky_update", "clamp", "clz", "complex", "concatenate", "conj", "conv_general_dilated"),
    *("convert_element_type", "copy", "cos", "cosh", "cumlogsumexp", "cummax", "cummin", "cumprod"),
    *("cumsum", "device_put", "digamma", "div", "dot_general", "dynamic_slice"),
    *("dynamic_update_slice", "eig", "eigh", "empty", "empty2", "eq", "eq_to", "erf", "erf_inv"),
    *("erfc", "exp", "exp2", "expm1", "fft", "floor", "gather", "ge", "geqp3", "geqrf", "gt"),
    *("hessenberg", "householder_product", "igamma", "igamma_grad_a", "igammac", "imag"),
    *("integer_pow", "iota", "iota_2x32_shape", "is_finite", "layout_constraint", "le", "le_to"),
    *("lgamma", "log", "log1p", "log2", "logistic", "lt", "lt_to", "lu"),
    *("lu_pivots_to_permutation", "max", "min", "mul", "mulhi", "name", "ne", "neg", "nextafter"),
    *("not", "one_minus_square", "optimization_barrier", "or", "ormqr", "pad", "philox2x32"),
    *("philox4x32", "platform_index", "polygamma", "polynomial", "population_count", "pow"),
    *("pvary", "qr", "ragged_dot_general", "random_bits", "random_clone", "random_fold_in"),
    *("random_gamma", "random_seed", "random_split", "random_unwrap", "random_wrap", "real"),
    *("reduce", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_precision"),
    *("reduce_prod", "reduce_sum", "reduce_window", "reduce_window_max", "reduce_window_min"),
    *("reduce_window_sum", "reduce_xor", "regularized_incomplete_beta", "rem", "reshape"),
    *("reshard", "rev", "rng_bit_generator", "round", "rsqrt", "scaled_dot", "scatter"),
    *("scatter-add", "scatter-max", "scatter-min", "scatter-mul", "scatter-sub", "schur"),
    *("select_and_gather_add", "select_and_scatter", "select_and_scatter_add", "select_n"),
    *("sharding_constraint", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign"),
    *("sin", "sinh", "slice", "sort", "split", "sqrt", "square", "squeeze", "stack"),
    *("stop_gradient", "sub", "svd", "symmetric_product", "tan", "tanh", "threefry2x32"),
    *("threefry4x32", "tie", "tile", "top_k", "transpose", "triangular_solve", "tridiagonal"),
    *("tridiagonal_solve", "unstack", "xor", "zeros_like", "zeta"),
}
"""Primitives that compute each example by itself, whatever `jax.vmap` maps over."""

ENTERED = {
    *("closed_call", "cond", "custom_jvp_call", "custom_linear_solve", "custom_vjp_call"),
    *("eval_jaxpr", "jit", "remat2", "scan", "while"),
}
"""Primitives that compute what the jaxprs among their parameters compute, or derivatives of it, and
nothing else. So do this library's own."""

OWN = "checkpointed_"
"""How the names of this library's primitives begin."""

DIFFERENT = {"axis_index"}
"""Independent primitives whose result is another one for each example, even of equal operands."""


def mixes_examples(eqn: Any) -> bool:
    """Whether an equation's results may depend on other examples than their own."""
    name = name_of(eqn)
    if name in ENTERED or name.startswith(OWN):
        return any(mixes_examples(inner) for jaxpr in inner_jaxprs(eqn) for inner in jaxpr.eqns)
    return name not in INDEPENDENT or (name not in DIFFERENT and bool(eqn.effects))


def tells_examples_apart(jaxpr: Any) -> bool:
    """Whether the results of a jaxpr may be different for examples of equal inputs."""
    return any_equation(jaxpr, lambda eqn: mixes_examples(eqn) or eqn.primitive.name in DIFFERENT)
