"""Random reversible steps, under random transformations and settings, against `lax.scan`.

`python tests/support/reversible_programs.py 500` runs so many, and prints what is wrong with each.
"""

import sys
import traceback
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve import HostMemory, Inverse, checkpointed_scan

Function = Callable[[Any, Any, Any], Any]
"""Of the parameters, another part of the state, and x."""

SHAPES = [(), (3,), (2, 3)]

FUNCTIONS: list[Function] = [
    lambda p, s, x: jnp.sin(p * s + x),
    lambda p, s, x: jnp.tanh(s) * p - 0.1 * x * s,
    lambda p, s, x: p * jnp.roll(s, 1) if s.ndim else p * s * s / (1 + s * s),
    lambda p, s, x: jnp.cumsum(jnp.cos(s + p)) / 5 if s.ndim == 1 else jnp.cos(s * p),
    lambda p, s, x: lax.scan(lambda c, w: (jnp.sin(c + w * s), None), s, p * jnp.ones(2))[0],
    lambda p, s, x: jax.nn.softplus(s - x) * p,
    lambda p, s, x: lax.stop_gradient(s) * p,
]


class Coupling:
    """A part of the state changes by a function of another one."""

    def __init__(self, random: Random) -> None:
        self.to, self.of = random.sample(range(3), 2)
        self.function, self.scales = random.choice(FUNCTIONS), random.random() < 0.3

    def _change(self, p: Any, state: list[Any], x: Any) -> Any:
        new = 0.3 * self.function(p, state[self.of], x)
        return jnp.mean(new) + 0.1 * state[self.to].shape.__len__()

    def run(self, p: Any, state: list[Any], x: Any) -> Any:
        change, new = self._change(p, state, x), list(state)
        new[self.to] = (
            new[self.to] * jnp.exp(0.1 * change) if self.scales else new[self.to] + change
        )
        return new, None

    def back(self, p: Any, state: list[Any], x: Any, y: Any) -> list[Any]:
        change, new = self._change(p, state, x), list(state)
        new[self.to] = (
            new[self.to] * jnp.exp(-0.1 * change) if self.scales else new[self.to] - change
        )
        return new


class Absorption:
    """A part of the state is lost, except for what is returned."""

    def __init__(self, random: Random) -> None:
        self.of = random.randrange(3)

    def run(self, p: Any, state: list[Any], x: Any) -> Any:
        new, lost = list(state), state[self.of] * state[self.of] * 0.1
        new[self.of] = jnp.tanh(new[self.of] * p) * 0.5
        return new, (state[self.of], lost)

    def back(self, p: Any, state: list[Any], x: Any, y: Any) -> list[Any]:
        new = list(state)
        new[self.of] = y[0]
        return new


class Swap:
    """Parts of the same shape change places, and one of another changes its order."""

    def __init__(self, random: Random) -> None:
        self.axis = random.randrange(2)

    def run(self, p: Any, state: list[Any], x: Any) -> Any:
        return [-state[1], state[0], jnp.flip(state[2])], None

    def back(self, p: Any, state: list[Any], x: Any, y: Any) -> list[Any]:
        return [state[1], -state[0], jnp.flip(state[2])]


def run(seed: int) -> None:
    """Compare one program. An `AssertionError` says what is wrong."""
    random = Random(seed)
    kinds = random.choices([Coupling, Absorption, Swap], [5, 1, 1], k=random.randint(1, 4))
    parts = [kind(random) for kind in kinds]
    length, reverse = random.choice([1, 2, 5, 9, 12]), random.random() < 0.3
    shape = random.choice(SHAPES)
    keys = iter(jax.random.split(jax.random.key(seed), 20))
    normal = lambda shape: jax.random.normal(next(keys), shape)  # noqa: E731
    init = {
        "parts": [normal(shape), normal(shape), normal(random.choice(SHAPES))],
        "count": jnp.int32(3),
        "key": jax.random.key(7),
        "kept": normal(shape),
    }
    has_xs, reads_kept, has_y = (random.random() < 0.6 for _ in range(3))
    xs = {"x": normal((length,)), "number": jnp.arange(length)} if has_xs else None
    params = normal(())

    def step(p: Any, carry: Any, x: Any) -> Any:
        state, ys = carry["parts"], []
        noise = jax.random.normal(jax.random.fold_in(carry["key"], carry["count"]))
        at = (x["x"] if has_xs else 0.2) + 0.1 * noise + (carry["kept"].sum() if reads_kept else 0)
        for part in parts:
            state, y = part.run(p, state, at)
            ys.append(y)
        new = {**carry, "parts": state, "count": carry["count"] + 1}
        return new, (ys, jnp.sum(state[0]) * p if has_y else None, x)

    def back(p: Any, carry: Any, x: Any, y: Any) -> Any:
        state, count = carry["parts"], carry["count"] - 1
        noise = jax.random.normal(jax.random.fold_in(carry["key"], count))
        at = (x["x"] if has_xs else 0.2) + 0.1 * noise + (carry["kept"].sum() if reads_kept else 0)
        for part, own in zip(parts[::-1], y[0][::-1], strict=True):
            state = part.back(p, state, at, own)
        return {**carry, "parts": state, "count": count}

    settings: list[dict[str, Any]] = [
        {},
        {"checkpoints": random.randint(1, 4)},
        {"block_size": random.randint(2, 5)},
        {"block_size": random.randint(2, 4), "checkpoints": random.randint(1, 3)},
        {"memory": 10_000},
        {"memory": 10_000, "block_size": 3},
        {"checkpoints": 0, "block_size": 2, "storage": HostMemory()},
        {"checkpoints": 1, "block_size": 2, "storage": HostMemory(transfer=1.0)},
    ]
    options = random.choice(settings)

    def loss(is_ours: bool, z: Any) -> Any:
        p, state, seen = z
        start, inputs = {**init, "parts": state}, xs and {**xs, "x": seen}
        f = partial(step, p)
        how: dict[str, Any] = {"length": length, "reverse": reverse}
        if is_ours:
            inverse = Inverse(lambda c, x, y: back(p, c, x, y), drift_tol=1e-6)
            how |= {"inverse": inverse, **options}
        end, ys = (checkpointed_scan if is_ours else lax.scan)(f, start, inputs, **how)
        total = sum(jnp.sum(jnp.sin(x)) for x in end["parts"]) + jnp.sum(end["kept"])
        floats = [y for y in jax.tree.leaves(ys) if jnp.issubdtype(y.dtype, jnp.floating)]
        return total + (sum(jnp.sum(y * y) for y in floats) / length if has_y else 0)

    z = (params, init["parts"], xs["x"] if xs else jnp.zeros(1))
    direction = jax.tree.map(lambda x: normal_like(x, seed + 1), z)
    several = jax.tree.map(lambda x: jnp.stack([x, 0.8 * x, 1.1 * x]), z)
    axes = random.choice([(0, None, None), (None, 0, None), (0, 0, 0), (None, None, 0)])
    mixed = tuple(b if axis == 0 else a for a, b, axis in zip(z, several, axes, strict=True))

    def in_loop(f: Any) -> Any:
        def outer(scan: Any, z: Any) -> Any:
            return scan(lambda s, _: (s + 0.1 * f((s, *z[1:])), None), z[0], None, length=3)[0]

        return random.choice([partial(outer, lax.scan), partial(outer, checkpointed_scan)])

    dot = lambda a, b: sum(map(jnp.vdot, jax.tree.leaves(a), jax.tree.leaves(b)))  # noqa: E731
    grad = jax.grad
    along = lambda f: lambda z: jax.jvp(f, (z,), (direction,))[1]  # noqa: E731
    product = lambda f: grad(lambda z: dot(grad(f)(z), direction))  # noqa: E731
    over = lambda f: lambda z: jax.vmap(lambda *z: f(z), axes)(*mixed)  # noqa: E731
    summed = lambda f: lambda z: jnp.sum(jax.vmap(lambda *z: f(z), axes)(*z))  # noqa: E731
    transformations: dict[str, tuple[Any, Any]] = {
        "value": (lambda f: f, z),
        "grad": (grad, z),
        "jvp": (along, z),
        "grad of jvp": (lambda f: grad(along(f)), z),
        "jvp of grad": (lambda f: along(grad(f)), z),
        "grad of grad": (product, z),
        "third order": (lambda f: along(along(grad(f))), z),
        "grad of grad of grad": (lambda f: grad(lambda z: dot(product(f)(z), direction)), z),
        "vmap of grad": (lambda f: over(grad(f)), z),
        "grad of vmap": (lambda f: grad(summed(f)), mixed),
        "vmap of jvp of grad": (lambda f: over(along(grad(f))), z),
        "jvp of grad of vmap": (
            lambda f: lambda m: jax.jvp(grad(summed(f)), (m,), (jax.tree.map(jnp.sin, m),))[1],
            mixed,
        ),
        "linearize": (lambda f: lambda z: jax.linear_transpose(jax.linearize(f, z)[1], z)(1.0), z),
        "checkpoint": (lambda f: grad(jax.checkpoint(f)), z),
        "in a loop": (lambda f: grad(in_loop(f)), z),
        "jvp in a loop": (lambda f: along(grad(in_loop(f))), z),
    }
    name = random.choice(list(transformations))
    make, at = transformations[name]
    state = random.getstate()
    wanted = jax.jit(make(partial(loss, False)))(at)
    random.setstate(state)
    jit = jax.jit if random.random() < 0.8 or "loop" in name else lambda f: f
    found = jit(make(partial(loss, True)))(at)
    where = f"seed {seed}: {name}, {options}, {length} steps, {[type(p).__name__ for p in parts]}"
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), where
        scale = jnp.max(jnp.abs(b), initial=0) + 1e-3
        off = float(jnp.max(jnp.abs(a - b), initial=0) / scale)
        assert off < 1e-8, f"{where}: off by {off}"


def normal_like(x: Any, seed: int) -> Any:
    return jax.random.normal(jax.random.key(seed), x.shape, x.dtype)


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)
    first, count = int(sys.argv[2]) if len(sys.argv) > 2 else 0, int(sys.argv[1])
    wrong = 0
    for seed in range(first, first + count):
        try:
            run(seed)
        except Exception:
            wrong += 1
            print(f"seed {seed}:\n{traceback.format_exc(limit=-6)}", flush=True)
        if (seed + 1) % 25 == 0:
            print(f"{wrong} of {seed + 1 - first} wrong", flush=True)
    print(f"{wrong} of {count} wrong")


if __name__ == "__main__":
    main()
