"""Whether the examples of a `jax.vmap` see each other, or differ, in a step.

JAX computes most operations for each example by itself. Exceptions are collectives over a named
axis, rules of `jax.custom_batching.custom_vmap` functions, which see all examples, and calls back
into Python. Libraries and new versions of JAX may add others. So we list the operations known to
compute each example by itself, and assume that all others mix examples: every example then computes
them from its own values, as in `jax.lax`.
"""

from typing import Any

from jax_revolve._compat.jaxprs import name_of
from jax_revolve.jaxprs.walk import inner_jaxprs
from jax_revolve.step.work import CUBIC, ELEMENTWISE, KERNELS, MOVING, SLOW, TRANSCENDENTAL

INDEPENDENT = {
    *(*ELEMENTWISE, *MOVING, *TRANSCENDENTAL, *SLOW, *CUBIC, *KERNELS),
    *("approx_top_k", "axis_index", "bessel_i0e", "bessel_i1e", "bitcast_convert_type"),
    *("broadcast_to", "cholesky_update", "clz", "conv_general_dilated", "cumlogsumexp", "cummax"),
    *("cummin", "cumprod", "cumsum", "device_put", "dot_general", "empty", "empty2", "fft"),
    *("geqp3", "geqrf", "hessenberg", "householder_product", "igamma", "igamma_grad_a"),
    *("igammac", "iota_2x32_shape", "layout_constraint", "log2", "lu_pivots_to_permutation"),
    *("mulhi", "name", "optimization_barrier", "ormqr", "philox2x32", "philox4x32"),
    *("platform_index", "polygamma", "polynomial", "pvary", "ragged_dot_general", "random_bits"),
    *("random_clone", "random_fold_in", "random_gamma", "random_seed", "random_split"),
    *("random_unwrap", "random_wrap", "reduce", "reduce_precision", "reduce_window"),
    *("reduce_window_max", "reduce_window_min", "reduce_window_sum", "reduce_xor"),
    *("regularized_incomplete_beta", "reshard", "rng_bit_generator", "scaled_dot", "scatter-max"),
    *("scatter-min", "scatter-mul", "scatter-sub", "schur", "select_and_gather_add"),
    *("select_and_scatter", "select_and_scatter_add", "sharding_constraint", "stack"),
    *("symmetric_product", "threefry2x32", "threefry4x32", "tie", "tile", "tridiagonal"),
    *("tridiagonal_solve", "unstack", "zeros_like", "zeta"),
}
"""Primitives that compute each example by itself, whatever `jax.vmap` maps over."""

ENTERED = {
    *("closed_call", "cond", "custom_jvp_call", "custom_linear_solve", "custom_vjp_call"),
    *("eval_jaxpr", "jit", "remat2", "scan", "while"),
}
"""Primitives that only compute their jaxpr parameters, or derivatives of these. So do our own."""

OWN = "checkpointed_"
"""The prefix of the names of our primitives."""

DIFFERENT = {"axis_index"}
"""Independent primitives whose results differ between examples, even for equal operands."""


def mixes_examples(eqn: Any) -> bool:
    """Whether an example's results of an equation may depend on other examples."""
    name = name_of(eqn)
    if name in ENTERED or name.startswith(OWN):
        return any(mixes_examples(inner) for jaxpr in inner_jaxprs(eqn) for inner in jaxpr.eqns)
    return name not in INDEPENDENT or (name not in DIFFERENT and bool(eqn.effects))
