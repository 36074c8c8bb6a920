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
from jax import lax
from jax.custom_derivatives import SymbolicZero

SIZE = 3


class Kind(NamedTuple):
    """An operation: the types of what it takes, that of what it returns, and the function."""

    takes: str
    returns: str
    run: Callable[..., Any]


OPERATIONS: dict[str, Kind] = {}


def operation(signature: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function of a parameter and arrays: "vm->v" takes a vector and a matrix."""

    def register(run: Callable[..., Any]) -> Callable[..., Any]:
        takes, _, returns = signature.partition("->")
        OPERATIONS[run.__name__.strip("_")] = Kind(takes, returns, run)
        return run

    return register


def pick(parameter: int, *choices: Any) -> Any:
    return choices[parameter % len(choices)]


def positive(x: Any) -> Any:
    return 1.2 + x * x


def small(x: Any) -> Any:
    return 0.7 * jnp.tanh(x)


def number(x: Any) -> Any:
    """An index that depends on the values, as loops that look things up have it."""
    return (jnp.abs(x.reshape(-1)[0]) * 7).astype(jnp.int32) % SIZE


def symmetric(m: Any) -> Any:
    """With eigenvalues that are far apart."""
    return 0.3 * (small(m) + small(m).T) + jnp.diag(jnp.array([1.0, 3.0, 6.0], m.dtype))


# One by one

UNARY: tuple[Callable[[Any], Any], ...] = (
    lax.neg,
    lax.sin,
    lax.cos,
    lambda x: lax.tan(small(x)),
    lambda x: lax.asin(small(x)),
    lambda x: lax.acos(small(x)),
    lax.atan,
    lambda x: lax.sinh(small(x)),
    lambda x: lax.cosh(small(x)),
    lax.tanh,
    lax.asinh,
    lambda x: lax.acosh(positive(x)),
    lambda x: lax.atanh(small(x)),
    lambda x: lax.exp(small(x)),
    lambda x: lax.exp2(small(x)),
    lambda x: lax.expm1(small(x)),
    lambda x: lax.log(positive(x)),
    lambda x: lax.log1p(positive(x)),
    lambda x: lax.sqrt(positive(x)),
    lambda x: lax.rsqrt(positive(x)),
    lambda x: lax.cbrt(positive(x)),
    lax.logistic,
    lax.erf,
    lax.erfc,
    lambda x: lax.erf_inv(small(x)),
    lambda x: lax.lgamma(positive(x)),
    lambda x: lax.digamma(positive(x)),
    lax.bessel_i0e,
    lax.bessel_i1e,
    lax.abs,
    lambda x: lax.sign(x) * x,
    lambda x: lax.floor(x) + lax.ceil(2 * x) + x,
    lambda x: lax.round(x) * x,
    lambda x: lax.integer_pow(small(x), 3),
    lambda x: lax.reciprocal(positive(x)),
    lax.square,
    lax.stop_gradient,
    lambda x: x + lax.stop_gradient(jnp.cos(x)),
    lambda x: jnp.where(lax.is_finite(x), x, jnp.ones_like(x)),
    lambda x: lax.reduce_precision(x, 11, 52) if x.dtype == jnp.float64 else x,
    lambda x: lax.optimization_barrier(x),
    jax.nn.relu,
    jax.nn.softmax,
    jax.nn.gelu,
    lambda x: jax.named_call(jnp.sin, name="named")(x),
    lambda x: lax.real(lax.complex(x, lax.full_like(x, 0.5)) ** 2),
)


@operation("v->v")
def unary(p: int, x: Any) -> Any:
    return pick(p, *UNARY)(x)


@operation("m->m")
def unary_of_matrix(p: int, x: Any) -> Any:
    return pick(p, *UNARY)(x)


BINARY: tuple[Callable[[Any, Any], Any], ...] = (
    lax.add,
    lax.sub,
    lax.mul,
    lambda x, y: lax.div(x, positive(y)),
    lax.max,
    lax.min,
    lambda x, y: lax.atan2(x, positive(y)),
    lambda x, y: lax.rem(x, positive(y)),
    lambda x, y: lax.pow(positive(x), small(y)),
    lambda x, y: lax.igamma(positive(x), positive(lax.stop_gradient(y))),
    lambda x, y: jnp.logaddexp(x, y),
    lambda x, y: lax.select(x > y, x, y),
    lambda x, y: lax.select_n(x > 0, x, y, *()),
    lambda x, y: lax.clamp(-lax.full_like(x, 0.5), x, positive(y)),
    lambda x, y: jnp.hypot(positive(x), y),
)


@operation("vv->v")
def binary(p: int, x: Any, y: Any) -> Any:
    return pick(p, *BINARY)(x, y)


@operation("mm->m")
def binary_of_matrices(p: int, x: Any, y: Any) -> Any:
    return pick(p, *BINARY)(x, y)


# Products


@operation("mv->v")
def product(p: int, m: Any, x: Any) -> Any:
    return pick(
        p, lambda: m @ x, lambda: x @ m, lambda: lax.dot(m.T, x), lambda: jnp.vecdot(m, x[None])
    )()


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


@operation("vm->m")
def outer_products(p: int, x: Any, m: Any) -> Any:
    return pick(
        p,
        lambda: jnp.outer(x, x) * m,
        lambda: jnp.kron(m, m)[:SIZE, 2 : 2 + SIZE],
        lambda: x[:, None] * m,
    )()


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


@operation("vv->v")
def pieces(p: int, x: Any, y: Any) -> Any:
    zero = jnp.zeros((), x.dtype)
    return pick(
        p,
        lambda: lax.concatenate([x[1:], y[:1]], 0),
        lambda: lax.pad(x, zero, [(-1, 1, 0)]) + y,
        lambda: lax.pad(x, zero, [(0, 0, 1)])[1 : 1 + SIZE] * y,
        lambda: lax.slice(jnp.concatenate([x, y]), (0,), (2 * SIZE,), (2,)),
        lambda: lax.rev(x, (0,)) * y,
        lambda: jnp.stack([x, y])[:, 1].repeat(2)[:SIZE],
        lambda: lax.squeeze(lax.expand_dims(x, (0,)), (0,)) - y,
        lambda: lax.split(jnp.concatenate([x, y]), (SIZE, SIZE))[1] * x,
        lambda: jnp.roll(x, 1) + jnp.tile(y, 2)[2 : 2 + SIZE],
        lambda: lax.broadcast_in_dim(x[0], (SIZE,), ()) * y,
        lambda: jnp.meshgrid(x, y)[0][1] + jnp.flip(y),
    )()


@operation("m->m")
def turned(p: int, m: Any) -> Any:
    return pick(
        p,
        lambda: m.T,
        lambda: m.reshape(SIZE * SIZE)[::-1].reshape(SIZE, SIZE),
        lambda: jnp.tril(m),
        lambda: jnp.diag(jnp.diagonal(m)) + m,
        lambda: jnp.broadcast_to(m[1], m.shape),
        lambda: lax.concatenate([m[:, 1:], m[:, :1]], 1),
        lambda: jnp.rot90(m),
    )()


@operation("vv->v")
def looked_up(p: int, x: Any, y: Any) -> Any:
    """Gathers and scatters at places that depend on the values."""
    i = number(y)
    places = jnp.arange(SIZE, dtype=jnp.int32)
    at = (places * 2 + i) % SIZE
    ones = jnp.ones_like(x)
    return pick(
        p,
        lambda: x[at],
        lambda: lax.dynamic_slice(jnp.concatenate([x, y]), (i,), (SIZE,)),
        lambda: lax.dynamic_update_slice(x, y[:1] * 2, (i,)),
        lambda: x.at[i].set(y[1]),
        lambda: x.at[at].add(y),
        lambda: x.at[at].multiply(positive(y) / 2, unique_indices=True),
        lambda: x.at[at].min(y),
        lambda: x.at[at].max(y),
        lambda: jnp.take(x, at, mode="fill", fill_value=0) * y,
        lambda: x.at[at + 1].set(y, mode="drop"),
        lambda: jnp.take_along_axis(x, at, 0) * y,
        lambda: lax.dynamic_index_in_dim(jnp.outer(x, y), i, keepdims=False),
        lambda: jnp.zeros_like(x).at[at].add(x * y, unique_indices=True) + ones,
        lambda: jax.ops.segment_sum(x * y, at % 2, num_segments=SIZE),
        lambda: jnp.where(places == i, x, y),
    )()


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


@operation("vv->v")
def sorted_(p: int, x: Any, y: Any) -> Any:
    return pick(
        p,
        lambda: lax.sort(x),
        lambda: lax.sort((x, y), num_keys=1)[1],
        lambda: lax.top_k(x, 2)[0].sum() * y,
        lambda: y[jnp.argsort(x)],
        lambda: jnp.median(x) + y,
    )()


# Linear algebra, Fourier transforms, complex numbers


@operation("mv->v")
def linear_algebra(p: int, m: Any, x: Any) -> Any:
    s = symmetric(m)
    return pick(
        p,
        lambda: jnp.linalg.cholesky(s) @ x,
        lambda: jnp.linalg.solve(s, x),
        lambda: lax.linalg.triangular_solve(s, x[:, None], left_side=True, lower=True)[:, 0],
        lambda: jnp.abs(jnp.linalg.qr(s)[1]) @ x,
        lambda: jnp.linalg.eigh(s)[0] * x,
        lambda: jnp.linalg.svd(s, compute_uv=False) * x,
        lambda: jnp.linalg.inv(s) @ x,
        lambda: jnp.linalg.slogdet(s)[1] * x,
        lambda: jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(s), True), x),
        lambda: jax.scipy.linalg.expm(0.1 * small(m)) @ x,
        lambda: jax.scipy.sparse.linalg.cg(lambda v: s @ v, x, maxiter=5, tol=0)[0],
    )()


@operation("vv->v")
def fourier(p: int, x: Any, y: Any) -> Any:
    z = lax.complex(x, y)
    return pick(
        p,
        lambda: jnp.fft.fft(z).real,
        lambda: jnp.fft.ifft(z).imag,
        lambda: jnp.fft.irfft(jnp.fft.rfft(x) * (1 + 0.5j), SIZE) * y,
        lambda: jnp.abs(z * z + 2),
        lambda: jnp.real(jnp.exp(0.3j * z) * jnp.conj(z)),
        lambda: jnp.angle(z + 3),
    )()


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


@operation("mv->v")
def inner_loops(p: int, m: Any, x: Any) -> Any:
    advance = lambda x, y: (jnp.tanh(m @ x + y), jnp.sin(x))  # noqa: E731
    return pick(
        p,
        lambda: lax.scan(advance, x, m)[0],
        lambda: lax.scan(advance, x, m, reverse=True)[1][0],
        lambda: lax.fori_loop(0, 3, lambda i, x: x * 0.5 + m[i], x),
        lambda: lax.map(lambda row: row * x, m)[1],
        lambda: x * lax.while_loop(lambda i: i < 3, lambda i: i + 1, number(x)),
        lambda: x + lax.stop_gradient(lax.while_loop(lambda x: x[0] < 1, lambda x: x + 0.3, x)),
        lambda: lax.scan(lambda x, _: (advance(x, x)[0], None), x, length=2, unroll=2)[0],
        lambda: lax.scan(lambda c, r: (c + 1, r * c), 0, m)[1][2],
    )()


@jax.custom_jvp
def steeper(x: Any) -> Any:
    return jnp.sin(x)


@steeper.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return steeper(*primals), 1.5 * jnp.cos(primals[0]) * tangents[0]


@jax.custom_vjp
def flatter(x: Any, y: Any) -> Any:
    return jnp.sin(x) * y


def _forward(x: Any, y: Any) -> Any:
    return jnp.sin(x) * y, (jnp.cos(x), y, x)


def _backward(residuals: Any, ct: Any) -> Any:
    cosine, y, x = residuals
    return 0.5 * ct * cosine * y, ct * jnp.sin(x)


flatter.defvjp(_forward, _backward)


@operation("vv->v")
def custom_jvp(p: int, x: Any, y: Any) -> Any:
    return pick(p, lambda: steeper(x), lambda: steeper(x) * y, lambda: jax.jit(steeper)(x))()


@operation("vv->v")
def custom_vjp(p: int, x: Any, y: Any) -> Any:
    return pick(p, lambda: flatter(x, y), lambda: flatter(x, x), lambda: jax.jit(flatter)(y, x))()


@operation("vv->v")
def unused_custom_vjp(p: int, x: Any, y: Any) -> Any:
    flatter(x, y)
    return x - y


@jax.custom_jvp
def rounded(x: Any) -> Any:
    return jnp.round(4 * x) / 4


@rounded.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return rounded(*primals), tangents[0]


@operation("vv->v")
def straight_through(p: int, x: Any, y: Any) -> Any:
    """Estimators: the derivative is another function's."""
    return pick(
        p,
        lambda: rounded(x) * y,
        lambda: rounded(jnp.sin(x)) + y,
        lambda: jax.jit(rounded)(x * y),
        lambda: jax.vmap(rounded)(x) - y,
    )()


@jax.custom_vjp
def clipped(x: Any) -> Any:
    return x


clipped.defvjp(lambda x: (x, ()), lambda _, ct: (jnp.clip(ct, -0.3, 0.3),))


@jax.custom_vjp
def reversed_gradient(x: Any) -> Any:
    return x


reversed_gradient.defvjp(lambda x: (x, x), lambda x, ct: (-0.5 * ct * (1 + x),))


@operation("vv->v")
def clipped_custom_vjp(p: int, x: Any, y: Any) -> Any:
    """Identities that change the gradient."""
    return pick(
        p,
        lambda: clipped(jnp.sin(x) * y),
        lambda: reversed_gradient(x * y),
        lambda: clipped(x) + reversed_gradient(y),
        lambda: jax.jit(clipped)(jnp.cos(x)) * y,
    )()


@jax.custom_jvp
def refusing(x: Any, y: Any) -> Any:
    return jnp.sin(x) * y


@partial(refusing.defjvp, symbolic_zeros=True)
def _(primals: Any, tangents: Any) -> Any:
    if type(tangents[1]) is not SymbolicZero:
        raise TypeError("The second operand must not be differentiated.")
    x, y = primals
    return refusing(x, y), jnp.cos(x) * y * tangents[0]


@jax.custom_vjp
def refusing_in_reverse(x: Any, y: Any) -> Any:
    return jnp.sin(x) * y


def _refusing_forward(x: Any, y: Any) -> Any:
    if y.perturbed:
        raise TypeError("The second operand must not be differentiated.")
    return jnp.sin(x.value) * y.value, (x.value, y.value)


def _refusing_backward(residuals: Any, ct: Any) -> Any:
    x, y = residuals
    if type(ct) is SymbolicZero:
        return jnp.zeros_like(x), jnp.zeros_like(y)
    return jnp.cos(x) * y * ct, jnp.zeros_like(y)


refusing_in_reverse.defvjp(_refusing_forward, _refusing_backward, symbolic_zeros=True)


@operation("vv->v")
def refused(p: int, x: Any, y: Any) -> Any:
    """Functions that refuse a tangent, of operands that have none."""
    fixed = lax.stop_gradient(y)
    return pick(
        p,
        lambda: refusing(x, fixed),
        lambda: refusing(x, jnp.floor(fixed)) + y,
        lambda: jax.jit(refusing)(x * y, fixed),
        lambda: y + refusing(fixed, lax.stop_gradient(x)),
        lambda: refusing(x, jnp.arange(SIZE, dtype=x.dtype)),
    )()


@operation("vv->v")
def refused_custom_vjp(p: int, x: Any, y: Any) -> Any:
    fixed = lax.stop_gradient(y)
    return pick(
        p,
        lambda: refusing_in_reverse(x, fixed),
        lambda: refusing_in_reverse(x * y, jnp.ones_like(y)),
        lambda: y + refusing_in_reverse(lax.stop_gradient(x), fixed),
    )()


@jax.custom_jvp
def solved(x: Any) -> Any:
    """The root y of y + sin(y) / 3 = x, by a loop that has no reverse mode."""
    newton = lambda y: y - (y + jnp.sin(y) / 3 - x) / (1 + jnp.cos(y) / 3)  # noqa: E731
    return lax.while_loop(lambda s: s[0] < 8, lambda s: (s[0] + 1, newton(s[1])), (0, x))[1]


@solved.defjvp
def _(primals: Any, tangents: Any) -> Any:
    y = solved(*primals)
    return y, tangents[0] / (1 + jnp.cos(y) / 3)


@operation("vv->v")
def implicit(p: int, x: Any, y: Any) -> Any:
    """Functions whose rule is all that differentiates their loop."""
    return pick(p, lambda: solved(x) * y, lambda: solved(x * y), lambda: jax.jit(solved)(x) + y)()


FORGOTTEN = {"custom_jvp", "straight_through", "refused", "implicit"}
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
