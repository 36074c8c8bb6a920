"""One of two processes that run the same program on the devices of both; see `test_two_processes`.

Takes the coordinator's address, the number of the process, and names of derivatives. Prints a line
for each that is the one of the plain scan on this process alone, and fails at the first that is
not.
"""

import os
import sys
from functools import partial
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jax_revolve import bounded_while_loop, checkpointed_scan

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_cpu_collectives_implementation", "gloo")

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


def put(mesh: Mesh, arrays: tuple[np.ndarray, ...]) -> tuple[jax.Array, ...]:
    """Every process has the whole arrays, and gives its devices their parts."""
    specs = (P(), P("data"), P(None, "data"))
    return tuple(
        jax.make_array_from_callback(x.shape, NamedSharding(mesh, spec), x.__getitem__)
        for x, spec in zip(arrays, specs, strict=True)
    )


def main(address: str, process: int, names: list[str]) -> None:
    jax.distributed.initialize(address, num_processes=2, process_id=process)
    assert jax.process_count() == 2
    assert len(jax.devices()) == 2 * len(jax.local_devices()) == 4
    draw = np.random.default_rng(0).normal
    shapes = [(WIDTH, WIDTH), (BATCH, WIDTH), (STEPS, BATCH, WIDTH)]
    arrays = tuple(draw(size=shape) / 2 for shape in shapes)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    divided = put(mesh, arrays)
    for name in names:
        theirs = jax.tree.leaves(jax.jit(derivatives(lax.scan)[name])(*arrays))
        for loop, scan in LOOPS.items():
            ours = jax.tree.leaves(jax.jit(derivatives(scan)[name])(*divided))
            for a, b in zip(ours, theirs, strict=True):
                for part in a.addressable_shards:
                    np.testing.assert_allclose(part.data, np.asarray(b)[part.index], rtol=1e-9)
            print(name, loop, "same", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
