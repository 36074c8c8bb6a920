"""Programs to compare: each case covers several kinds of carries, closures and bodies at once."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from support.oracles import Loops, with_reverse_rule


@dataclass(frozen=True)
class Case:
    """`run(loops, *arguments)` returns a tree; the arguments are NumPy's.

    `forward_mode` is false where `lax.scan` itself has no forward mode. `rtol` is for the least
    precise dtype in the result. `options` are for the loop that the case is about.
    """

    run: Callable[..., Any]
    arguments: tuple[Any, ...]
    forward_mode: bool = True
    rtol: float = 1e-12
    options: dict[str, Any] = field(default_factory=lambda: {"checkpoints": 2})

    @property
    def name(self) -> str:
        return self.run.__name__.strip("_")

    def program(self, loops: Loops) -> Callable[..., Any]:
        return partial(self.run, loops)


def _array(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape) / 2


def _recurrent(loops: Loops, weights: Any, initial: Any, xs: Any) -> Any:
    """Weights closed over, xs and ys, all of them differentiated."""

    def step(h: Any, x: Any) -> Any:
        h = jnp.tanh(weights @ h + x)
        return h, h * x[0]

    return loops.scan(step, initial, xs)


def _tree(loops: Loops, a: Any, xs: Any) -> Any:
    """A nested carry with None, int, bool and undifferentiated leaves; xs of two kinds."""

    def step(carry: Any, x: Any) -> Any:
        state = carry["state"]
        u, v = jnp.where(carry["flag"], state[0] * x["x"], jnp.sin(state[0])), state[1]
        carry = {
            "state": (u + 0.1 * x["i"], v * 1.01),
            "none": None,
            "count": carry["count"] + x["i"],
            "flag": ~carry["flag"],
            "fixed": carry["fixed"],
        }
        return carry, {"u": u, "none": None, "count": carry["count"]}

    init = {
        "state": (a, jnp.ones(2)),
        "none": None,
        "count": jnp.int8(0),
        "flag": jnp.bool_(True),
        "fixed": a * 2,
    }
    inputs = {"x": xs, "i": jnp.arange(xs.shape[0], dtype=jnp.int8), "none": None}
    return loops.scan(step, init, inputs)


def _random(loops: Loops, a: Any, scale: Any) -> Any:
    """Dropout: a key in the carry and in the ys, another one and an int closed over; no xs."""
    offset = (scale[0] > -100).astype(jnp.int32)
    other = jax.random.wrap_key_data(jnp.array([1, 2], jnp.uint32) * offset.astype(jnp.uint32))

    def step(carry: Any, _: Any) -> Any:
        key, h = carry
        key, sub = jax.random.split(key)
        mask = jax.random.bits(sub, h.shape, jnp.uint32) % 3 > 0
        noise = jax.random.key_data(other)[1] * offset
        return (key, jnp.where(mask, jnp.sin(h * scale) + 0.1 * noise * h, h)), sub

    (key, h), ys = loops.scan(step, (jax.random.key(1), a), None, 5)
    return h, jax.random.key_data(key), jax.random.key_data(ys)


def _dtypes(loops: Loops, a: Any, xs: Any) -> Any:
    """Complex, half-precision and single-precision carries beside double precision."""

    def step(carry: Any, x: Any) -> Any:
        z, half, single, u = carry
        z = z * (1 + 0.1j * u) + x
        half = half + (0.5 * u).astype(jnp.bfloat16)
        single = jnp.cos(single) * u.astype(jnp.float32)
        u = u * jnp.cos(jnp.abs(z) + single)
        return (z, half, single, u), z * u

    init = (a.astype(complex), a.astype(jnp.bfloat16), a.astype(jnp.float32), a)
    return loops.scan(step, init, xs)


_clipped = with_reverse_rule(jnp.sin, lambda x, ct: jnp.clip(ct, -0.9, 0.9) * jnp.cos(x) * x)


@jax.custom_jvp
def _doubled(x: Any) -> Any:
    return jnp.exp(-(x**2))


_doubled.defjvps(lambda t, y, x: -4 * x * y * t)


def _custom_vjp(loops: Loops, a: Any, xs: Any) -> Any:
    def step(u: Any, x: Any) -> Any:
        u = _clipped(u * a) + x
        return u, _clipped(u)

    return loops.scan(step, a, xs)


def _rules_and_branches(loops: Loops, a: Any, xs: Any) -> Any:
    """A custom_jvp function, a branch, and a loop inside the body; no ys."""

    def step(carry: Any, x: Any) -> Any:
        u, count = carry
        u = lax.cond(count % 2 == 0, lambda v: _doubled(v * a), lambda v: v * x + a, u)
        u, _ = lax.scan(lambda v, w: (jnp.sin(v + w), None), u, x * jnp.arange(2.0))
        return (u, count + 1), None

    return loops.scan(step, (a, jnp.int32(0)), xs)


def _nested(loops: Loops, a: Any, xs: Any) -> Any:
    """The loop in its own body, with the outer loop's carry, xs and constants closed over."""

    def step(u: Any, x: Any) -> Any:
        u, ys = loops.scan(lambda v, w: (jnp.sin(v * a + x) + w, v * w), u, xs[:3])
        return u, ys.sum()

    return loops.scan(step, a, xs)


def _weak(loops: Loops, a: Any) -> Any:
    """Python scalars in carry and ys."""

    def step(carry: Any, x: Any) -> Any:
        u, count, decay, promoted = carry
        carry = (u * jnp.cos(x * decay), count + 1, decay * 0.9, promoted * jnp.float32(0.5))
        return carry, (decay, count, u)

    return loops.scan(step, (a, 0, 1.0, 2.0), jnp.arange(4.0))


def _lengths(loops: Loops, a: Any) -> Any:
    """No step, one, two, and many."""
    lengths = (0, 1, 2, 64)
    return [loops.scan(lambda u, _: (jnp.sin(u * a), u), a + n, None, n) for n in lengths]


def _trip_counts(loops: Loops, a: Any, xs: Any) -> Any:
    """No step, one, two, all that the bound allows, and more than those."""

    def run(most: int) -> Any:
        def body(state: Any) -> Any:
            u, total, i = state
            u = jnp.sin(u * a) + xs[i % 3]
            return u, total + u**2, i + 1

        init = (a + 0.1 * most, jnp.zeros_like(a), jnp.int32(0))
        return loops.while_loop(lambda state: state[2] < most, body, init, max_steps=9, throw=False)

    return [run(most) for most in (0, 1, 2, 9, 10)]


def _examples(loops: Loops, a: Any, weights: Any) -> Any:
    """Each example stops on its own, where its step has no derivative; an example may not start."""

    def body(state: Any) -> Any:
        fuel, u, key = state
        key, other = jax.random.split(key)
        noise = jax.random.bits(other, (), jnp.uint32) % 7
        u = jnp.tanh(weights @ u) * jnp.sqrt(fuel) + 0.1 * noise + jnp.log(fuel)
        return jnp.maximum(fuel - 0.3, 0.0), u, key

    fuel, u, key = loops.while_loop(
        lambda state: state[0] > 0,
        body,
        (jnp.maximum(a - 0.25, 0.0), jnp.ones(2) * a, jax.random.key(3)),
        max_steps=6,
        throw=False,
    )
    return fuel, u, jax.random.key_data(key)


_XS = _array(1, 7)
_A = np.float64(0.4)

SCAN_CASES = [
    Case(_recurrent, (_array(2, 2, 2), _array(3, 2), _array(4, 5, 2)), options={}),
    Case(_tree, (_A, _XS), options={"reverse": True, "unroll": 3, "checkpoints": 3}),
    Case(_random, (_array(5, 3), _array(6, 3))),
    Case(_dtypes, (_A, _XS), rtol=1e-6),
    Case(_custom_vjp, (_A, _XS), forward_mode=False),
    Case(_rules_and_branches, (_A, _XS[:5]), options={"reverse": True, "checkpoints": "all"}),
    Case(_nested, (_A, _XS[:4])),
    Case(_weak, (_A,), options={}),
    Case(_lengths, (_A,)),
]

WHILE_CASES = [
    Case(_trip_counts, (_A, _XS[:3]), options={"checkpoints": 3}),
    Case(_examples, (_A + 0.4, _array(7, 2, 2))),
]
