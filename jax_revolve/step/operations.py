"""What we know of JAX's operations: one table, of properties and the operations that have them.

Most properties allow something, so an operation that is not named takes the way that is always
right, if not the quickest: it is never computed again, it mixes the examples of a batch, it reads
and writes whole arrays. `test_operations` lists the primitives of the installed JAX that are not
named, and tries on batches whether those called `independent` are.

| property | of an operation |
|---|---|
| `elementwise` | each entry of the result depends on few operations with few entries |
| `free` | and takes no time: it is another view of its operand |
| `moving` | it moves or reduces entries |
| `transcendental` | each entry from one entry, in many instructions |
| `slow` | the same, without vector instructions on a CPU |
| `cubic` | a factorization of matrices |
| `product` | a sum of products |
| `kernel` | never merged with its neighbors |
| `independent` | under `jax.vmap`, it computes each example by itself, whatever is mapped |
| `random` | so does it with keys of `threefry2x32`; others draw for all examples at once |
| `different` | independent, but its results differ between examples with equal operands |
| `entered` | it only computes its inner programs, or derivatives of them |
| `with_rules` | it computes its inner program, and is differentiated by a rule |
| `reads`, `writes` | it reads or writes entries of its first operand |
| `sum` | linear in all operands together |
| `linear` | linear in its first operand; a product of two numbers in either |
"""

from collections import defaultdict

_TABLE = """
free elementwise independent linear: copy reshape squeeze
free elementwise independent: broadcast_in_dim optimization_barrier stop_gradient

elementwise independent sum: add add_any
elementwise independent linear: convert_element_type div mul neg
elementwise independent: abs and ceil clamp complex conj copysign eq eq_to floor ge gt imag
elementwise independent: integer_pow iota is_finite le le_to lt lt_to max min ne nextafter not
elementwise independent: one_minus_square or population_count real rem round select_n shift_left
elementwise independent: shift_right_arithmetic shift_right_logical sign square sub xor

transcendental independent: acosh asinh atanh cbrt cosh erf erf_inv erfc exp exp2 expm1 log log1p
transcendental independent: logistic rsqrt sinh sqrt tanh
slow independent: acos asin atan atan2 cos digamma lgamma pow sin tan

moving independent sum: concatenate
moving independent linear: pad reduce_sum slice transpose
moving independent: expand_dims reduce_and reduce_max reduce_min reduce_or reduce_prod rev split
moving independent reads: dynamic_slice
moving independent writes: dynamic_update_slice
moving kernel independent: argmax argmin
moving kernel independent reads: gather
kernel independent writes: scatter scatter-add
kernel independent: scatter_add sort top_k

cubic independent: cholesky eig eigh lu qr svd triangular_solve
product independent: conv_general_dilated dot_general ragged_dot_general
product: ragged_dot

independent: approx_top_k bessel_i0e bessel_i1e bitcast_convert_type broadcast_to cholesky_update
independent: clz cumlogsumexp cummax cummin cumprod cumsum device_put empty empty2 fft geqp3 geqrf
independent: hessenberg householder_product igamma igamma_grad_a igammac iota_2x32_shape
independent: layout_constraint log2 lu_pivots_to_permutation mulhi name ormqr
independent writes: scatter-max scatter-min scatter-mul scatter-sub
independent: philox2x32 philox4x32 platform_index polygamma polynomial pvary random_clone
independent: random_fold_in random_seed random_unwrap random_wrap reduce reduce_precision
independent: reduce_window_max reduce_window_min reduce_window_sum
independent: regularized_incomplete_beta reshard scaled_dot schur select_and_gather_add
independent: select_and_scatter select_and_scatter_add
independent: sharding_constraint stack symmetric_product threefry2x32 threefry4x32 tie tile
independent: tridiagonal tridiagonal_solve unstack zeros_like zeta
independent different: axis_index
random: random_bits random_gamma random_split
with_rules: custom_jvp_call custom_vjp_call

entered: closed_call cond custom_linear_solve eval_jaxpr jit remat2 scan while
"""


def _sets() -> dict[str, frozenset[str]]:
    found = defaultdict[str, set[str]](set)
    for row in filter(None, _TABLE.splitlines()):
        properties, _, names = row.partition(": ")
        for each in properties.split():
            found[each].update(names.split())
    return {each: frozenset(names) for each, names in found.items()}


_OPERATIONS = _sets()


NAMED = frozenset[str]().union(*_OPERATIONS.values())


def having(*properties: str) -> frozenset[str]:
    """The names of the operations that have any of these properties."""
    return frozenset[str]().union(*(_OPERATIONS[each] for each in properties))
