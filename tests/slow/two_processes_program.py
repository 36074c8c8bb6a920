"""One of two processes that run the same program on the devices of both; see `test_two_processes`.

Takes the coordinator's address, the number of the process, and names of derivatives. Prints a line
for each that is the one of the plain scan on this process alone, and fails at the first that is
not.
"""

import sys
from functools import partial
from typing import Any

from two_processes import assert_parts_of, join, spread  # isort: skip

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from jax_revolve import bounded_while_loop, checkpointed_scan

STEPS, BATCH, WIDTH = 7, 8, 3


def loss(scan: Any, w: Any, h: Any, xs: Any) -> Any:
    """The step looks at the whole batch, which is divided among the processes."""

    def step(h: Any, x: Any) -> Any:
        h = jnp.tanh(h @ w + x)
        return h * (1 + 0.1 * jnp.sin(jnp.sum(h))), jnp.sum(h * x)

    h, ys = scan(step, h, xs)
    return jnp.sum(h**2) + jnp.sum(jnp.sin(ys))


def as_while(step: Any, init: Any, xs: Any) -> Any:
    def body(state: Any) -> Any:
        i, h, ys = state
        h, y = step(h, lax.dynamic_index_in_dim(xs, i, keepdims=False))
        return i + 1, h, ys.at[i].set(y)

    state = (jnp.int32(0), init, jnp.zeros(STEPS))
    loop = partial(bounded_while_loop, max_steps=STEPS + 2, checkpoints=2)
    return loop(lambda state: state[0] < STEPS, body, state)[1:]


LOOPS = {
    "scan": partial(checkpointed_scan, checkpoints=2),
    "budget": partial(checkpointed_scan, memory="2kB"),
    "while": as_while,
}


def derivatives(scan: Any) -> dict[str, Any]:
    value = partial(loss, scan)
    gradient = jax.grad(value, (0, 1, 2))

    def along(fun: Any, *arrays: Any) -> Any:
        return jax.jvp(fun, arrays, tuple(map(jnp.cos, arrays)))[1]

    def of_gradient(*arrays: Any) -> Any:
        return sum(jnp.sum(jnp.sin(part)) for part in gradient(*arrays))

    return {
        "grad": gradient,
        "jvp": partial(along, value),
        "forward_over_reverse": partial(along, gradient),
        "reverse_over_reverse": jax.grad(of_gradient, (0, 1, 2)),
    }


def main(address: str, process: int, names: list[str]) -> None:
    mesh = join(address, process)
    draw = np.random.default_rng(0).normal
    shapes = [(WIDTH, WIDTH), (BATCH, WIDTH), (STEPS, BATCH, WIDTH)]
    arrays = tuple(draw(size=shape) / 2 for shape in shapes)
    specs = (P(), P("data"), P(None, "data"))
    divided = [spread(mesh, x, spec) for x, spec in zip(arrays, specs, strict=True)]
    for name in names:
        theirs = jax.tree.leaves(jax.jit(derivatives(lax.scan)[name])(*arrays))
        for loop, scan in LOOPS.items():
            ours = jax.tree.leaves(jax.jit(derivatives(scan)[name])(*divided))
            assert_parts_of(theirs, ours)
            print(name, loop, "same", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
