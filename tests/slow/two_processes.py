"""What the programs of two processes share: see `test_two_processes`. To be imported before JAX."""

import os
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_cpu_collectives_implementation", "gloo")


def join(address: str, process: int) -> Mesh:
    """The devices of both processes, from now on."""
    jax.distributed.initialize(address, num_processes=2, process_id=process)
    assert jax.process_count() == 2
    assert len(jax.devices()) == 2 * len(jax.local_devices()) == 4
    return Mesh(np.array(jax.devices()), ("data",))


def spread(mesh: Mesh, x: np.ndarray, spec: P) -> jax.Array:
    """Every process has the whole array, and gives its devices their parts."""
    return jax.make_array_from_callback(x.shape, NamedSharding(mesh, spec), x.__getitem__)


def assert_parts_of(whole: list[Any], ours: list[jax.Array]) -> None:
    """The parts on this process's devices are those of arrays that are computed alone."""
    for a, b in zip(ours, whole, strict=True):
        for part in a.addressable_shards:
            np.testing.assert_allclose(part.data, np.asarray(b)[part.index], rtol=1e-9)
