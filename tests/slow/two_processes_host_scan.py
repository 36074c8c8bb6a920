"""One of two processes that run `host_scan` on the devices of both; see `test_two_processes`.

Takes the coordinator's address, the number of the process, a directory, and what to do: `options`
compares gradients with those of the plain scan on this process alone, for each set of options. A
number saves a run, and ends this process when it is about to write that many states; 0 is never.
"""

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from two_processes import assert_parts_of, join, spread  # isort: skip

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jax_revolve import Disk, HostMemory, host_scan
from jax_revolve.storage.states import States

STEPS, BATCH, WIDTH = 9, 8, 3


def options_in(directory: Path) -> dict[str, dict[str, Any]]:
    return {
        "device": {"checkpoints": 2},
        "one": {"checkpoints": 1},
        "host": {"checkpoints": 0, "storage": HostMemory(checkpoints=3)},
        "disk": {"checkpoints": 1, "storage": Disk(directory, checkpoints=2, transfer=0.1)},
    }


def loss(scan: Any, keys: Any, w: Any, h: Any, xs: Any) -> Any:
    """The batch is sharded. Weights, a key and a counter are on one device of each process."""

    def step(carry: Any, x: Any) -> Any:
        h, keys, count = carry
        h = jnp.tanh(h @ w + x) * (1 + 0.1 * jnp.sin(jnp.sum(h)))
        h = h + 0.01 * jax.vmap(lambda key: jax.random.normal(key, (WIDTH,)))(keys)
        keys = jax.vmap(jax.random.fold_in, (0, None))(keys, count)
        return (h, keys, count + 1), {"sharded": h * x, "sum": jnp.sum(h * x)}

    (h, _, _), ys = scan(step, (h, keys, 0), xs)
    return jnp.sum(h**2) + jnp.sum(jnp.sin(ys["sharded"])) + jnp.sum(ys["sum"] ** 2)


def parts(result: list[jax.Array]) -> list[np.ndarray]:
    shards = [leaf.addressable_shards for leaf in result]
    return [np.asarray(shard.data) for leaf in shards for shard in leaf]


def gradient(scan: Any, keys: Any, *arrays: Any) -> list[Any]:
    found = jax.value_and_grad(partial(loss, scan, keys), (0, 1, 2))
    return jax.tree.leaves(found(*arrays))


def compare(arrays: tuple[Any, ...], expected: list[Any], directory: Path) -> None:
    for name, options in options_in(directory).items():
        found = gradient(partial(host_scan, **options), *arrays)
        assert_parts_of(expected, found)
        print(name, "same", flush=True)


def main(address: str, process: int, folder: str, what: str) -> None:
    mesh = join(address, process)
    directory = Path(folder)
    draw = np.random.default_rng(0).normal
    w, h, xs = (draw(size=s) / 2 for s in ((WIDTH, WIDTH), (BATCH, WIDTH), (STEPS, BATCH, WIDTH)))
    keys = jax.random.split(jax.random.key(0), BATCH)
    arrays = (
        jax.jit(lambda: keys, out_shardings=NamedSharding(mesh, P("data")))(),
        jnp.asarray(w),
        spread(mesh, h, P("data")),
        spread(mesh, xs, P(None, "data")),
    )
    if what == "options":
        alone = gradient(lax.scan, keys, *map(jnp.asarray, (w, h, xs)))
        compare(arrays, alone, directory)
        return
    saved, save = [], States.save

    def save_or_die(self: States, state: Any) -> None:
        saved.append(state)
        if len(saved) == int(what):
            os.kill(os.getpid(), signal.SIGKILL)
        save(self, state)

    States.save = save_or_die
    run = directory / "run"
    options = options_in(run)["disk"] | {"directory": run, "save_every": 0}
    found = gradient(partial(host_scan, **options), *arrays)
    np.savez(directory / f"process-{process}.npz", *parts(found))
    print(len(saved), "saved", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
