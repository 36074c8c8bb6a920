"""One of two processes that run the same loops on the devices of both; see `test_two_processes`.

Takes the coordinator's address, the number of the process, and what to do. `derivatives NAME...`
and `host_scan FOLDER` compare results with `lax.scan` on this process alone, and print a
line for each that is the same. `run FOLDER COUNT` saves a run of `host_scan`, and ends this process
when it is about to write that many states; 0 is never.
"""

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
PROCESS = int(sys.argv[2])
jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=PROCESS)
assert jax.process_count() == 2
assert len(jax.devices()) == 2 * len(jax.local_devices()) == 8

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from support import sharded_programs  # noqa: E402

from jax_revolve import Disk, HostMemory, checkpointed_scan, host_scan  # noqa: E402
from jax_revolve.host.states import States  # noqa: E402

EVERY = ("data", "model")


def spread(x: Any, *axes: Any) -> jax.Array:
    """Every process has the whole array, and gives its devices their parts."""
    sharding = NamedSharding(sharded_programs.AUTO, P(*axes))
    return jax.make_array_from_callback(x.shape, sharding, np.asarray(x).__getitem__)


def compare(name: str, ours: Any, theirs: Any) -> None:
    """The parts on this process's devices are those of arrays that are computed alone."""
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        for part in a.addressable_shards:
            np.testing.assert_allclose(part.data, np.asarray(b)[part.index], rtol=1e-9)
    print(name, "same", flush=True)


def compare_derivatives(names: list[str]) -> None:
    loops = {name: sharded_programs.LOOPS[name] for name in ("scan", "while")}
    loops["budget"] = partial(checkpointed_scan, memory="2kB")
    values = w, h, xs = sharded_programs.arrays()
    divided = spread(w), spread(h, "data"), spread(xs, None, "data")

    def derivative(name: str, scan: Any) -> Any:
        return jax.jit(sharded_programs.derivatives(sharded_programs.program(scan))[name])

    for name in names:
        theirs = derivative(name, lax.scan)(*values)
        for loop, scan in loops.items():
            compare(f"{name} {loop}", derivative(name, scan)(*divided), theirs)


def gradient(scan: Any, keys: Any, *arrays: Any) -> Any:
    """The batch is sharded. Weights, a key and a counter are on one device of each process."""

    def loss(w: Any, h: Any, xs: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            h, keys, count = carry
            h = jnp.tanh(h @ w + x) * (1 + 0.1 * jnp.sin(jnp.sum(h)))
            h = h + 0.01 * jax.vmap(lambda key: jax.random.normal(key, h.shape[1:]))(keys)
            keys = jax.vmap(jax.random.fold_in, (0, None))(keys, count)
            return (h, keys, count + 1), {"sharded": h * x, "sum": jnp.sum(h * x)}

        (h, _, _), ys = scan(step, (h, keys, 0), xs)
        return jnp.sum(h**2) + jnp.sum(jnp.sin(ys["sharded"])) + jnp.sum(ys["sum"] ** 2)

    return jax.value_and_grad(loss, (0, 1, 2))(*arrays)


def run_on_host(folder: Path, count: int | None = None) -> None:
    values = w, h, xs = sharded_programs.arrays(steps=9)
    keys = jax.random.split(jax.random.key(0), len(h))
    many_keys = jax.jit(lambda: keys, out_shardings=NamedSharding(sharded_programs.AUTO, P(EVERY)))
    arguments = many_keys(), jnp.asarray(w), spread(h, EVERY), spread(xs, None, EVERY)
    options: dict[str, dict[str, Any]] = {
        "device": {"checkpoints": 2},
        "one": {"checkpoints": 1},
        "host": {"checkpoints": 0, "storage": HostMemory(checkpoints=3)},
        "disk": {"checkpoints": 1, "storage": Disk(folder, checkpoints=2, transfer=0.1)},
    }
    if count is None:
        alone = gradient(lax.scan, keys, *values)
        for name, how in options.items():
            compare(name, gradient(partial(host_scan, **how), *arguments), alone)
        return
    saved, save = [], States.save

    def save_or_die(self: States, state: Any) -> None:
        saved.append(state)
        if len(saved) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        save(self, state)

    States.save = save_or_die
    run = folder / "run"
    how = {"checkpoints": 1, "storage": Disk(run, checkpoints=2, transfer=0.1)}
    found = gradient(partial(host_scan, **how, directory=run, save_every=0), *arguments)
    shards = [shard.data for leaf in jax.tree.leaves(found) for shard in leaf.addressable_shards]
    np.savez(folder / f"process-{PROCESS}.npz", *map(np.asarray, shards))
    print(len(saved), "saved", flush=True)


match sys.argv[3:]:
    case "derivatives", *names:
        compare_derivatives(names)
    case "host_scan", folder:
        run_on_host(Path(folder))
    case "run", folder, count:
        run_on_host(Path(folder), int(count))
