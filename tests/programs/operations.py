"""What the step of a random program may do: every primitive of `jax.lax` that has a derivative.

An operation takes and returns vectors of `SIZE` numbers ("v") and square matrices ("m"); its
parameter, an int from 0, picks one of its variants. Arguments are kept to where derivatives are
moderate and unique, so that programs differ by rounding alone.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

SIZE = 3


class Kind(NamedTuple):
    """An operation: the types of what it takes, that of what it returns, and the function."""

    takes: str
    returns: str
    run: Callable[..., Any]


OPERATIONS: dict[str, Kind] = {}


def operation(signature: str) -> Callable[[Callable[..., Any]], None]:
    """Registers a function of a parameter and arrays: "vm->v" takes a vector and a matrix."""

    def register(run: Callable[..., Any]) -> None:
        takes, _, returns = signature.partition("->")
        OPERATIONS[run.__name__.strip("_")] = Kind(takes, returns, run)

    return register


def variants(name: str, *choices: Callable[..., Any]) -> None:
    """Registers functions of arrays, "name: vm->v", of which the parameter picks one."""
    name, _, signature = name.partition(": ")
    takes, _, returns = signature.partition("->")
    OPERATIONS[name] = Kind(takes, returns, lambda p, *arrays: pick(p, *choices)(*arrays))


def pick(parameter: int, *choices: Any) -> Any:
    return choices[parameter % len(choices)]


def positive(x: Any) -> Any:
    return 1.2 + x * x


def small(x: Any) -> Any:
    return 0.7 * jnp.tanh(x)


def number(x: Any) -> Any:
    """An index that depends on the values, as loops that look things up have it."""
    return (jnp.abs(x.reshape(-1)[0]) * 7).astype(jnp.int32) % SIZE


def places(x: Any) -> Any:
    """All indices, in an order that depends on the values."""
    return (2 * jnp.arange(SIZE, dtype=jnp.int32) + number(x)) % SIZE


def symmetric(m: Any) -> Any:
    """With eigenvalues that are far apart."""
    return 0.3 * (small(m) + small(m).T) + jnp.diag(jnp.array([1.0, 3.0, 6.0], m.dtype))


# One by one


def of(domain: Callable[[Any], Any], *functions: Callable[[Any], Any]) -> Any:
    """The functions of values that are in their domain."""
    return [lambda x, f=f: f(domain(x)) for f in functions]


UNARY = (
    *(lax.neg, lax.sin, lax.cos),
    *of(small, lax.tan, lax.asin, lax.acos),
    lax.atan,
    *of(small, lax.sinh, lax.cosh),
    *(lax.tanh, lax.asinh),
    *of(positive, lax.acosh),
    *of(small, lax.atanh, lax.exp, lax.exp2, lax.expm1),
    *of(positive, lax.log, lax.log1p, lax.sqrt, lax.rsqrt, lax.cbrt),
    *(lax.logistic, lax.erf, lax.erfc),
    *of(small, lax.erf_inv),
    *of(positive, lax.lgamma, lax.digamma),
    *(lax.bessel_i0e, lax.bessel_i1e, lax.abs),
    lambda x: lax.sign(x) * x,
    lambda x: lax.floor(x) + lax.ceil(2 * x) + x,
    lambda x: lax.round(x) * x,
    lambda x: lax.integer_pow(small(x), 3),
    *of(positive, lax.reciprocal),
    *(lax.square, lax.stop_gradient),
    lambda x: x + lax.stop_gradient(jnp.cos(x)),
    lambda x: jnp.where(lax.is_finite(x), x, jnp.ones_like(x)),
    lambda x: lax.reduce_precision(x, 11, 52) if x.dtype == jnp.float64 else x,
    lax.optimization_barrier,
    *(jax.nn.relu, jax.nn.softmax, jax.nn.gelu),
    lambda x: jax.named_call(jnp.sin, name="named")(x),
    lambda x: lax.real(lax.complex(x, lax.full_like(x, 0.5)) ** 2),
)

variants("unary: v->v", *UNARY)
variants("unary_of_matrix: m->m", *UNARY)

BINARY = (
    *(lax.add, lax.sub, lax.mul),
    lambda x, y: lax.div(x, positive(y)),
    *(lax.max, lax.min),
    lambda x, y: lax.atan2(x, positive(y)),
    lambda x, y: lax.rem(x, positive(y)),
    lambda x, y: lax.pow(positive(x), small(y)),
    lambda x, y: lax.igamma(positive(x), positive(lax.stop_gradient(y))),
    jnp.logaddexp,
    lambda x, y: lax.select(x > y, x, y),
    lambda x, y: lax.select_n(x > 0, x, y),
    lambda x, y: lax.clamp(-lax.full_like(x, 0.5), x, positive(y)),
    lambda x, y: jnp.hypot(positive(x), y),
)

variants("binary: vv->v", *BINARY)
variants("binary_of_matrices: mm->m", *BINARY)


# Products


variants(
    "product: mv->v",
    lambda m, x: m @ x,
    lambda m, x: x @ m,
    lambda m, x: lax.dot(m.T, x),
    lambda m, x: jnp.vecdot(m, x[None]),
)


@operation("mm->m")
def product_of_matrices(p: int, a: Any, b: Any) -> Any:
    """One contracted axis, in each position, and then the result transposed or not."""
    contracted = (((p // 2 % 2,), (p % 2,)), ((), ()))
    result = lax.dot_general(a, b, contracted)
    return result.T if p // 4 % 2 else result


@operation("mv->v")
def batched_product(p: int, m: Any, x: Any) -> Any:
    """A batch axis in each position of a matrix, and of one made of the vector."""
    y = jnp.outer(x, jnp.cos(x))
    a, b, c, d = p % 2, p // 2 % 2, 1 - p % 2, 1 - p // 2 % 2
    return lax.dot_general(m, y, (((c,), (d,)), ((a,), (b,))))


@operation("mm->m")
def batched_product_of_three(p: int, a: Any, b: Any) -> Any:
    """Operands with three axes: a batch axis, a contracted one and one of each operand's own."""
    axes = pick(p, "bij,bjk", "ibj,jbk", "ijb,kjb", "jbi,bkj", "bji,jkb")
    left, right = axes.split(",")
    # Each gets a third axis, that of the batch, where the pattern has it.
    lift = lambda m, at: jnp.stack([m, 0.5 * m.T, jnp.sin(m)], at)  # noqa: E731
    a, b = lift(a, left.index("b")), lift(b, right.index("b"))
    return jnp.einsum(f"{axes}->bik", a, b)[p % SIZE]


@operation("vmv->v")
def per_example_weights(p: int, x: Any, m: Any, y: Any) -> Any:
    weights = jnp.stack([m, jnp.tanh(m), m.T])
    return jnp.einsum("hi,hij->hj", jnp.stack([x, y, x * y]), weights)[p % SIZE]


variants(
    "outer_products: vm->m",
    lambda x, m: jnp.outer(x, x) * m,
    lambda x, m: jnp.kron(m, m)[:SIZE, 2 : 2 + SIZE],
    lambda x, m: x[:, None] * m,
)


@operation("vv->v")
def convolution(p: int, x: Any, y: Any) -> Any:
    if p % 3 == 0:
        return jnp.convolve(x, y, mode="same")
    image = jnp.outer(x, y).reshape(1, 1, SIZE, SIZE)
    kernel = jnp.stack([x, y, x * y]).reshape(1, 1, SIZE, SIZE)
    if p % 3 == 1:
        return lax.conv_general_dilated(image, kernel, (1, 1), "SAME")[0, 0, p // 3 % SIZE]
    return lax.conv_general_dilated(image, kernel, (2, 1), [(1, 2), (1, 1)], rhs_dilation=(1, 1))[
        0, 0, 0
    ]


# Where values are


variants(
    "pieces: vv->v",
    lambda x, y: lax.concatenate([x[1:], y[:1]], 0),
    lambda x, y: lax.pad(x, jnp.zeros((), x.dtype), [(-1, 1, 0)]) + y,
    lambda x, y: lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 1)])[1 : 1 + SIZE] * y,
    lambda x, y: lax.slice(jnp.concatenate([x, y]), (0,), (2 * SIZE,), (2,)),
    lambda x, y: lax.rev(x, (0,)) * y,
    lambda x, y: jnp.stack([x, y])[:, 1].repeat(2)[:SIZE],
    lambda x, y: lax.squeeze(lax.expand_dims(x, (0,)), (0,)) - y,
    lambda x, y: lax.split(jnp.concatenate([x, y]), (SIZE, SIZE))[1] * x,
    lambda x, y: jnp.roll(x, 1) + jnp.tile(y, 2)[2 : 2 + SIZE],
    lambda x, y: lax.broadcast_in_dim(x[0], (SIZE,), ()) * y,
    lambda x, y: jnp.meshgrid(x, y)[0][1] + jnp.flip(y),
)

variants(
    "turned: m->m",
    lambda m: m.T,
    lambda m: m.reshape(SIZE * SIZE)[::-1].reshape(SIZE, SIZE),
    lambda m: jnp.tril(m),
    lambda m: jnp.diag(jnp.diagonal(m)) + m,
    lambda m: jnp.broadcast_to(m[1], m.shape),
    lambda m: lax.concatenate([m[:, 1:], m[:, :1]], 1),
    lambda m: jnp.rot90(m),
)

# Gathers and scatters at places that depend on the values.
variants(
    "looked_up: vv->v",
    lambda x, y: x[places(y)],
    lambda x, y: lax.dynamic_slice(jnp.concatenate([x, y]), (number(y),), (SIZE,)),
    lambda x, y: lax.dynamic_update_slice(x, y[:1] * 2, (number(y),)),
    lambda x, y: x.at[number(y)].set(y[1]),
    lambda x, y: x.at[places(y)].add(y),
    lambda x, y: x.at[places(y)].multiply(positive(y) / 2, unique_indices=True),
    lambda x, y: x.at[places(y)].min(y),
    lambda x, y: x.at[places(y)].max(y),
    lambda x, y: jnp.take(x, places(y), mode="fill", fill_value=0) * y,
    lambda x, y: x.at[places(y) + 1].set(y, mode="drop"),
    lambda x, y: jnp.take_along_axis(x, places(y), 0) * y,
    lambda x, y: lax.dynamic_index_in_dim(jnp.outer(x, y), number(y), keepdims=False),
    lambda x, y: 1 + jnp.zeros_like(x).at[places(y)].add(x * y, unique_indices=True),
    lambda x, y: jax.ops.segment_sum(x * y, places(y) % 2, num_segments=SIZE),
    lambda x, y: jnp.where(jnp.arange(SIZE, dtype=jnp.int32) == number(y), x, y),
)


@operation("mv->m")
def rows(p: int, m: Any, x: Any) -> Any:
    i = number(x)
    return pick(
        p,
        lambda: m.at[i].set(x),
        lambda: m.at[:, i].add(x),
        lambda: lax.dynamic_update_index_in_dim(m, x, i, p // 4 % 2),
        lambda: m[jnp.array([2, 0, 1], jnp.int32) - 0 * i] * x,
    )()


# Over axes


@operation("m->v")
def reduced(p: int, m: Any) -> Any:
    axis = p // 16 % 2
    return pick(
        p,
        lambda: jnp.sum(m, axis),
        lambda: jnp.prod(m, axis),
        lambda: jnp.max(m, axis),
        lambda: jnp.min(m, axis),
        lambda: jax.nn.logsumexp(m, axis),
        lambda: jnp.mean(m, axis) + jnp.var(m, axis),
        lambda: jnp.diagonal(m),
        lambda: m[jnp.argmax(m, axis)[0]],
        lambda: jnp.linalg.norm(positive(m), axis=axis),
        lambda: jnp.trace(m) * m[0],
        lambda: lax.reduce_window(m, 0.0, lax.add, (2, 1), (1, 1), "SAME")[1],
        lambda: lax.reduce_window(m, -jnp.inf, lax.max, (1, 2), (1, 1), "SAME")[:, 0],
        lambda: lax.reduce_window(m, jnp.inf, lax.min, (2, 2), (1, 1), "SAME")[0],
        lambda: lax.reduce(m, jnp.zeros((), m.dtype), lax.add, (axis,)),
    )()


@operation("v->v")
def cumulative(p: int, x: Any) -> Any:
    return pick(
        p,
        lambda: lax.cumsum(x, reverse=bool(p // 8 % 2)),
        lambda: lax.cumprod(x),
        lambda: lax.cummax(x),
        lambda: lax.cummin(x),
        lambda: lax.cumlogsumexp(x),
        lambda: lax.associative_scan(lambda a, b: a * 0.5 + b, x),
    )()


variants(
    "sorted: vv->v",
    lambda x, y: lax.sort(x),
    lambda x, y: lax.sort((x, y), num_keys=1)[1],
    lambda x, y: lax.top_k(x, 2)[0].sum() * y,
    lambda x, y: y[jnp.argsort(x)],
    lambda x, y: jnp.median(x) + y,
)


# Linear algebra, Fourier transforms, complex numbers


variants(
    "linear_algebra: mv->v",
    lambda m, x: jnp.linalg.cholesky(symmetric(m)) @ x,
    lambda m, x: jnp.linalg.solve(symmetric(m), x),
    lambda m, x: jax.scipy.linalg.solve_triangular(symmetric(m), x, lower=True),
    lambda m, x: jnp.abs(jnp.linalg.qr(symmetric(m))[1]) @ x,
    lambda m, x: jnp.linalg.eigh(symmetric(m))[0] * x,
    lambda m, x: jnp.linalg.svd(symmetric(m), compute_uv=False) * x,
    lambda m, x: jnp.linalg.inv(symmetric(m)) @ x,
    lambda m, x: jnp.linalg.slogdet(symmetric(m))[1] * x,
    lambda m, x: jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(symmetric(m)), True), x),
    lambda m, x: jax.scipy.linalg.expm(0.1 * small(m)) @ x,
    lambda m, x: jax.scipy.sparse.linalg.cg(lambda v: symmetric(m) @ v, x, maxiter=5, tol=0)[0],
)

variants(
    "fourier: vv->v",
    lambda x, y: jnp.fft.fft(lax.complex(x, y)).real,
    lambda x, y: jnp.fft.ifft(lax.complex(x, y)).imag,
    lambda x, y: jnp.fft.irfft(jnp.fft.rfft(x) * (1 + 0.5j), SIZE) * y,
    lambda x, y: jnp.abs(lax.complex(x, y) * lax.complex(x, y) + 2),
    lambda x, y: jnp.real(jnp.exp(0.3j * lax.complex(x, y)) * jnp.conj(lax.complex(x, y))),
    lambda x, y: jnp.angle(lax.complex(x, y) + 3),
)


# Control flow, and functions of JAX's


@operation("vv->v")
def branches(p: int, x: Any, y: Any) -> Any:
    which = number(x)
    return pick(
        p,
        lambda: lax.cond(x[0] > 0, jnp.sin, lambda x: x * y, x),
        lambda: lax.switch(which, [jnp.cos, lambda x: x * y, lambda x: jnp.tanh(x) - y], x),
        lambda: lax.cond(x[1] > y[0], lambda: x, lambda: y),
        lambda: lax.cond(p % 2 == 0, lambda x: x * 2, jnp.sin, y) * x,
        lambda: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.sin) * y,
    )()


def advance(m: Any) -> Callable[[Any, Any], Any]:
    return lambda x, y: (jnp.tanh(m @ x + y), jnp.sin(x))


variants(
    "inner_loops: mv->v",
    lambda m, x: lax.scan(advance(m), x, m)[0],
    lambda m, x: lax.scan(advance(m), x, m, reverse=True)[1][0],
    lambda m, x: lax.fori_loop(0, 3, lambda i, x: x * 0.5 + m[i], x),
    lambda m, x: lax.map(lambda row: row * x, m)[1],
    lambda m, x: x * lax.while_loop(lambda i: i < 3, lambda i: i + 1, number(x)),
    lambda m, x: x + lax.stop_gradient(lax.while_loop(lambda x: x[0] < 1, lambda x: x + 0.3, x)),
    lambda m, x: lax.scan(lambda x, _: (jnp.tanh(m @ x + x), None), x, length=2, unroll=2)[0],
    lambda m, x: lax.scan(lambda c, r: (c + 1, r * c), 0, m)[1][2],
)


def with_jvp(f: Any, rule: Callable[..., Any], **options: Any) -> Any:
    """The rule is of the value, the arguments and their tangents."""
    f = jax.custom_jvp(f)

    def forward(primals: Any, tangents: Any) -> Any:
        value = f(*primals)
        return value, rule(value, *primals, *tangents)

    f.defjvp(forward, **options)
    return f


def with_vjp(f: Any, *rules: Callable[..., Any], **options: Any) -> Any:
    f = jax.custom_vjp(f)
    f.defvjp(*rules, **options)
    return f


steeper = with_jvp(lambda x: jnp.sin(x), lambda _, x, t: 1.5 * jnp.cos(x) * t)
flatter = with_vjp(
    lambda x, y: jnp.sin(x) * y,
    lambda x, y: (jnp.sin(x) * y, (jnp.cos(x), y, x)),
    lambda kept, ct: (0.5 * ct * kept[0] * kept[1], ct * jnp.sin(kept[2])),
)
rounded = with_jvp(lambda x: jnp.round(4 * x) / 4, lambda y, x, t: t)
clipped = with_vjp(lambda x: x, lambda x: (x, ()), lambda _, ct: (jnp.clip(ct, -0.3, 0.3),))
reversed_gradient = with_vjp(lambda x: x, lambda x: (x, x), lambda x, ct: (-0.5 * ct * (1 + x),))

variants(
    "custom_jvp: vv->v",
    lambda x, y: steeper(x),
    lambda x, y: steeper(x) * y,
    lambda x, y: jax.jit(steeper)(x),
)

variants(
    "custom_vjp: vv->v",
    lambda x, y: flatter(x, y),
    lambda x, y: flatter(x, x),
    lambda x, y: jax.jit(flatter)(y, x),
)


@operation("vv->v")
def unused_custom_vjp(_: int, x: Any, y: Any) -> Any:
    flatter(x, y)
    return x - y


# Estimators: the derivative is another function's.
variants(
    "straight_through: vv->v",
    lambda x, y: rounded(x) * y,
    lambda x, y: rounded(jnp.sin(x)) + y,
    lambda x, y: jax.jit(rounded)(x * y),
    lambda x, y: jax.vmap(rounded)(x) - y,
)

# Identities that change the gradient.
variants(
    "clipped_custom_vjp: vv->v",
    lambda x, y: clipped(jnp.sin(x) * y),
    lambda x, y: reversed_gradient(x * y),
    lambda x, y: clipped(x) + reversed_gradient(y),
    lambda x, y: jax.jit(clipped)(jnp.cos(x)) * y,
)


def refuse(differentiated: bool) -> None:
    if differentiated:
        raise TypeError("The second operand must not be differentiated.")


def _refusing_rule(_: Any, x: Any, y: Any, x_tangent: Any, y_tangent: Any) -> Any:
    refuse(type(y_tangent) is not SymbolicZero)
    return jnp.cos(x) * y * x_tangent


def _refusing_forward(x: Any, y: Any) -> Any:
    refuse(y.perturbed)
    return jnp.sin(x.value) * y.value, (x.value, y.value)


def _refusing_backward(residuals: Any, ct: Any) -> Any:
    x, y = residuals
    if type(ct) is SymbolicZero:
        return jnp.zeros_like(x), jnp.zeros_like(y)
    return jnp.cos(x) * y * ct, jnp.zeros_like(y)


refusing = with_jvp(lambda x, y: jnp.sin(x) * y, _refusing_rule, symbolic_zeros=True)
refusing_in_reverse = with_vjp(
    lambda x, y: jnp.sin(x) * y, _refusing_forward, _refusing_backward, symbolic_zeros=True
)

# Functions that refuse a tangent, of operands that have none.
variants(
    "refused: vv->v",
    lambda x, y: refusing(x, lax.stop_gradient(y)),
    lambda x, y: refusing(x, jnp.floor(lax.stop_gradient(y))) + y,
    lambda x, y: jax.jit(refusing)(x * y, lax.stop_gradient(y)),
    lambda x, y: y + refusing(lax.stop_gradient(y), lax.stop_gradient(x)),
    lambda x, y: refusing(x, jnp.arange(SIZE, dtype=x.dtype)),
)

variants(
    "refused_custom_vjp: vv->v",
    lambda x, y: refusing_in_reverse(x, lax.stop_gradient(y)),
    lambda x, y: refusing_in_reverse(x * y, jnp.ones_like(y)),
    lambda x, y: y + refusing_in_reverse(lax.stop_gradient(x), lax.stop_gradient(y)),
)


def _root(x: Any) -> Any:
    """The root y of y + sin(y) / 3 = x, by a loop that has no reverse mode."""
    newton = lambda y: y - (y + jnp.sin(y) / 3 - x) / (1 + jnp.cos(y) / 3)  # noqa: E731
    return lax.while_loop(lambda s: s[0] < 8, lambda s: (s[0] + 1, newton(s[1])), (0, x))[1]


solved = with_jvp(_root, lambda y, _, t: t / (1 + jnp.cos(y) / 3))

# Functions whose rule is all that differentiates their loop.
variants(
    "implicit: vv->v",
    lambda x, y: solved(x) * y,
    lambda x, y: solved(x * y),
    lambda x, y: jax.jit(solved)(x) + y,
)


# Since `NEWER`. Rules that compute the value themselves, and rules that return another value than
# the function: what a loop computes then depends on whether it is differentiated.

recomputed = jax.custom_jvp(lambda x: jnp.sin(x))
recomputed.defjvp(lambda xs, ts: (jnp.sin(xs[0]), 1.1 * jnp.cos(xs[0]) * ts[0]))
recomputed_of_two = jax.custom_jvp(lambda x, y: jnp.tanh(x * y))


@recomputed_of_two.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x, y), (x_dot, y_dot) = primals, tangents
    value = jnp.tanh(x * y)
    return value, (1 - value**2) * (y * x_dot + 0.5 * x * y_dot)


quantized = jax.custom_jvp(lambda x: x)
quantized.defjvp(lambda xs, ts: (jnp.round(4 * xs[0]) / 4 + jnp.sin(xs[0]), jnp.cos(xs[0]) * ts[0]))
quantized_in_reverse = with_vjp(
    lambda x: x,
    lambda x: (jnp.round(4 * x) / 4 + 0.3 * x * x, jnp.sin(x)),
    lambda residual, ct: (ct * (1 + residual),),
)

variants(
    "recomputed: vv->v",
    lambda x, y: recomputed(x) * y,
    lambda x, y: recomputed_of_two(x, y),
    lambda x, y: recomputed(recomputed(x)) + y,
    lambda x, y: jax.jit(recomputed_of_two)(y, lax.stop_gradient(x)),
    lambda x, y: jax.vmap(recomputed)(x) - y,
)

variants(
    "other_value: vv->v",
    lambda x, y: quantized(x) * y,
    lambda x, y: quantized(jnp.sin(x)) + quantized(lax.stop_gradient(y)),
    lambda x, y: lax.cond(x[0] > 0, quantized, recomputed, x) * y,
    lambda x, y: jax.jit(quantized)(recomputed(x)) * y,
)

variants(
    "other_value_in_reverse: vv->v",
    lambda x, y: quantized_in_reverse(x) * y,
    lambda x, y: quantized_in_reverse(quantized_in_reverse(x) * y),
    lambda x, y: jax.jit(quantized_in_reverse)(jnp.cos(x)) + y,
)

AXIS: list[str] = []
"""The name of the axis that examples are mapped over, if the program gives it one."""


def _over_examples(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of values and the axis's name; without an axis, their product."""
    return lambda x, y: f(x, y, AXIS[0]) if AXIS else x * y


def _exchanged(x: Any, axis: str) -> Any:
    """JAX gives another shape to what is the same for all examples (9001029)."""
    return lax.all_to_all(x + 0 * lax.axis_index(axis).astype(x.dtype), axis, 0, 0)


variants(
    "collective: vv->v",
    *map(
        _over_examples,
        (
            lambda x, y, axis: lax.psum(x, axis) * y,
            lambda x, y, axis: lax.pmean(x * y, axis),
            lambda x, y, axis: x + 0.1 * lax.axis_index(axis).astype(x.dtype) * y,
            lambda x, y, axis: lax.all_gather(x, axis).sum(0) - y,
            lambda x, y, axis: lax.psum_scatter(jnp.stack([x, y]), axis),
            lambda x, y, axis: lax.ppermute(x, axis, [(0, 1), (1, 0)]) * y,
            lambda x, y, axis: _exchanged(jnp.stack([x, y]), axis)[0],
            lambda x, y, axis: x * lax.pmax(lax.stop_gradient(y), axis),
            lambda x, y, axis: jax.jit(lambda z: lax.psum(jnp.sin(z), axis))(x) + y,
        ),
    ),
)

# Since `NEWEST`. Rules that are no derivatives, in every way that JAX has to register one: of the
# values' own primitives, forward and in reverse, and of its functions.


def _primitive(name: str, function: Callable[[Any], Any]) -> Primitive:
    primitive = Primitive(name)
    primitive.def_impl(function)
    primitive.def_abstract_eval(lambda x: x)
    mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=False))
    batching.defvectorized(primitive)
    return primitive


def _turned(x: Any) -> Any:
    """Along the last axis: a rule sees a batch where `jax.vmap` is inside the derivative."""
    return jnp.concatenate([x[..., 1:], x[..., :1]], -1)


by_tangents = _primitive("by_tangents", jnp.sin)
ad.primitive_jvps[by_tangents] = lambda xs, ts: (
    by_tangents.bind(*xs),
    (0.3 + _turned(xs[0]) ** 2 / 2) * ad.instantiate_zeros(ts[0]),
)
by_product = _primitive("by_product", jnp.tanh)
ad.defjvp(by_product, lambda t, x: t * jnp.cos(_turned(x)))
unmatched = _primitive("unmatched", lambda x: 0.9 * x)
ad.deflinear2(unmatched, lambda ct, _: [0.7 * _turned(ct)])
by_rules = jax.custom_jvp(lambda x, y: x * y)
by_rules.defjvps(lambda t, _, x, y: t * _turned(y), lambda t, z, x, y: 0.5 * t * (x + z))
by_gradient = jax.custom_gradient(lambda x: (jnp.sin(x), lambda ct: ct * jnp.cos(_turned(x))))


def _nearly_solved(m: Any, x: Any) -> Any:
    """The root of a linear equation, with derivatives by too few iterations."""
    matrix = jnp.eye(SIZE, dtype=m.dtype) + 0.2 * small(m)

    def solve(f: Any, y: Any) -> Any:
        for _ in range(3):
            y = y - 0.4 * f(y)
        return y

    nearly = lambda g, y: solve(lambda z: g(z) - y, y)  # noqa: E731
    return lax.custom_root(lambda y: matrix @ y - x, x, solve, nearly)


variants(
    "no_derivative: mv->v",
    lambda m, x: by_tangents.bind(x) * m[0],
    lambda m, x: by_product.bind(m[1]) + by_tangents.bind(x * m[0]),
    lambda m, x: jnp.sin(2 * unmatched.bind(x)) * m[0],
    lambda m, x: by_rules(x, m[0]) + unmatched.bind(jnp.cos(x)),
    lambda m, x: by_gradient(x) * m[2],
    lambda m, x: jax.jit(by_rules)(by_gradient(m[0]), x),
    lambda m, x: jnp.sin(_nearly_solved(m, x)) if jax.__version_info__ >= (0, 12) else x,
    lambda m, x: positive(m[0]) ** (x[0] * x) * 0.3,
)

AROUND: list[Any] = []
"""A value of the function around the loop, which rules close over."""


def _around(x: Any) -> Any:
    return AROUND[-1] if AROUND else jnp.ones_like(x)


def _closing_over(make: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda x, y: make(_around(x))(x) * y


variants(
    "closing_over: vv->v",
    *map(
        _closing_over,
        (
            lambda k: with_jvp(lambda x: jnp.sin(x), lambda _, x, t: k * jnp.cos(x) * t),
            lambda k: with_vjp(
                lambda x: jnp.sin(x), lambda x: (k * jnp.sin(x), x), lambda x, ct: (k * ct * x,)
            ),
            lambda k: jax.custom_gradient(lambda x: (jnp.sin(x), lambda ct: k * ct * jnp.cos(x))),
        ),
    ),
)


def _note() -> None:
    jax.debug.callback(lambda: None)


def _noted_rule(_: Any, x: Any, t: Any) -> Any:
    _note()
    return 1.1 * jnp.cos(x) * t


def _noted_forward(x: Any) -> Any:
    _note()
    return jnp.sin(x), x


def _noted_backward(x: Any, ct: Any) -> Any:
    _note()
    return (1.1 * ct * jnp.cos(x),)


noted = with_jvp(lambda x: jnp.sin(x), _noted_rule)
noted_in_reverse = with_vjp(lambda x: jnp.sin(x), _noted_forward, _noted_backward)


def _of_example(x: Any) -> Any:
    return 1 + 0.2 * lax.axis_index(AXIS[0]).astype(x.dtype) if AXIS else jnp.ones_like(x)


of_example = with_jvp(lambda x: jnp.sin(x), lambda _, x, t: _of_example(x) * jnp.cos(x) * t)
of_example_in_reverse = with_vjp(
    lambda x: jnp.sin(x),
    lambda x: (jnp.sin(x), x),
    lambda x, ct: (ct * jnp.cos(x) * _of_example(x),),
)

# Rules with effects, and rules that know their example.
variants(
    "with_effect: vv->v",
    lambda x, y: noted(x) * y,
    lambda x, y: noted_in_reverse(x) * y,
    lambda x, y: jax.jit(noted)(y) + noted_in_reverse(x),
)
variants(
    "knowing: vv->v",
    lambda x, y: of_example(x) * y,
    lambda x, y: of_example_in_reverse(x) * y,
    lambda x, y: jax.jit(of_example)(x * y),
)

NEWEST_WORDS = ("no_derivative", "closing_over", "with_effect", "knowing")
NEWEST = 8_000_000
"""The seed from which programs have these, constants as results and third derivatives."""

# Examples that see each other where it does not show: in rules, in what solves equations, on the
# host and in random numbers.
with_sum = with_jvp(
    lambda x: jnp.sin(x), lambda _, x, t: jnp.cos(x) * t + 0.1 * _summed(jnp.sin(x)) * t
)
with_sum_in_reverse = with_vjp(
    lambda x: jnp.sin(x), lambda x: (jnp.sin(x), x), lambda x, ct: (_summed(ct * jnp.cos(x)),)
)


def _summed(x: Any) -> Any:
    return lax.psum(x, AXIS[0]) if AXIS else x


def _solved_together(x: Any) -> Any:
    """Of 2 x + 0.1 times the sum of all examples' x."""
    part = 2 * (2 + 0.1 * _summed(jnp.ones(())))
    solve = lambda _, b: b / 2 - 0.1 * _summed(b) / part  # noqa: E731
    return lax.custom_linear_solve(lambda x: 2 * x + 0.1 * _summed(x), x, solve, symmetric=True)


def _less_mean(x: Any) -> Any:
    """Less the mean of a batch, if there is one."""
    return np.asarray(x - 0.1 * x.mean(-2, keepdims=True) if x.ndim > 1 else x)


def _on_host(method: str) -> Callable[[Any], Any]:
    def called(x: Any) -> Any:
        return jax.pure_callback(_less_mean, jax.typeof(x), x, vmap_method=method)

    return with_jvp(called, lambda _, x, t: t * jnp.cos(x))


ways_on_host = [_on_host(method) for method in ("sequential", "expand_dims", "broadcast_all")]


def _noise(x: Any) -> Any:
    """Of a key that the example's own values make, by an algorithm whose batches are not batches of
    its numbers."""
    seed = (jnp.abs(lax.stop_gradient(x[0])) * 50).astype(jnp.uint32)
    return jax.random.uniform(jax.random.key(seed, impl="rbg"), x.shape, x.dtype)


variants(
    "seen: vv->v",
    lambda x, y: with_sum(x) * y,
    lambda x, y: with_sum_in_reverse(x) * y,
    lambda x, y: jax.jit(with_sum_in_reverse)(x * y) + with_sum(y),
    lambda x, y: _solved_together(x) * y,
    lambda x, y: jax.jit(_solved_together)(jnp.sin(x)) - y,
    lambda x, y: ways_on_host[0](x) * y,
    lambda x, y: ways_on_host[1](x) * y,
    lambda x, y: ways_on_host[2](x) * y,
    lambda x, y: x * (1 + 0.1 * _noise(y)),
)

MIXING = 9_000_000
"""The seed from which programs have these, mostly in a batch whose examples are done at different
times, from the start among them."""

NEW = ("recomputed", "other_value", "other_value_in_reverse", "collective")
NEWER = 5_000_000
"""The seed from which programs have the operations above, and name their axes."""

FORGOTTEN = {
    *("custom_jvp", "straight_through", "refused", "implicit"),
    *("recomputed", "other_value", "no_derivative", "closing_over", "with_effect", "knowing"),
}
"""Before jax 0.12, second derivatives of `lax.scan` forget the rules that these need."""


@operation("mv->v")
def transformed(p: int, m: Any, x: Any) -> Any:
    f = lambda row, x: jnp.tanh(row * x)  # noqa: E731
    return pick(
        p,
        lambda: jax.jit(f)(m[0], x),
        lambda: jax.vmap(f, (0, None))(m, x).sum(0),
        lambda: jax.vmap(jnp.dot, (1, None))(m, x),
        lambda: jax.checkpoint(f)(m[1], x),
        lambda: jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable)(m @ x, x),
        lambda: jax.grad(lambda x: jnp.sum(f(m[0], x) ** 2))(x),
        lambda: jax.jvp(partial(f, m[0]), (x,), (x,))[1],
        lambda: jax.vmap(lambda row: row / jnp.sqrt(1 + jnp.sum(row**2)))(m) @ x,
        lambda: lax.custom_root(
            lambda y: y + 0.1 * jnp.sin(y) - x,
            x,
            lambda f, y: lax.fori_loop(0, 12, lambda _, y: y - f(y), y),
            lambda g, y: y / g(jnp.ones_like(y)),
        ),
        lambda: lax.custom_linear_solve(
            lambda v: symmetric(m) @ v,
            x,
            lambda _, b: jnp.linalg.solve(symmetric(m), b),
            symmetric=True,
        ),
        lambda: jnp.vectorize(jnp.dot, signature="(n),(n)->()")(m, x),
    )()


@operation("vv->v")
def narrower(p: int, x: Any, y: Any) -> Any:
    """Through a dtype of less precision and back."""
    dtype = pick(p, jnp.float32, jnp.bfloat16, jnp.float16)
    return (x.astype(dtype) * y.astype(dtype)).astype(x.dtype)


NARROW = {"narrower": (1e-4, 0.1, 0.03)}
"""How exact results are with operations that lose precision, by their parameter."""
