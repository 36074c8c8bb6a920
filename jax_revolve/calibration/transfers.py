"""What writing and reading checkpoints takes, in the host's memory and on a disk."""

import time
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve.schedule.storage import Disk, HostMemory, Storage
from jax_revolve.storage.stores import get, in_storage, put

FEW, MANY = 2**12, 2**24
"""The bytes of two checkpoints, from which what a transfer and a byte take follow."""

CHECKPOINTS = 8
REPETITIONS = 5


def constants(directory: str, *, has_host_memory: bool) -> dict[str, float]:
    """The constants of a profile that tell about transfers, in nanoseconds. Files are written to a
    directory, and removed."""
    found = _line("disk", Disk(directory))
    return found | (_line("host", HostMemory()) if has_host_memory else {})


def _line(name: str, storage: Storage) -> dict[str, float]:
    few, many = (_transfer(storage, size) for size in (FEW, MANY))
    byte = max(many - few, 0.0) / (MANY - FEW)
    return {
        f"{name}_transfer": _rounded(max(few - FEW * byte, 0.0)),
        f"{name}_byte": _rounded(byte),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _transfer(storage: Storage, size: int) -> float:
    """The nanoseconds of writing or reading a checkpoint of so many bytes: the mean of the two."""
    carry = jnp.arange(size // 4, dtype=jnp.float32)

    def write_and_read(carry: jax.Array) -> jax.Array:
        def write(i: jax.Array, stores: list[Any]) -> list[Any]:
            return put(storage, stores, [carry + i], i)

        def read(i: jax.Array, total: jax.Array) -> jax.Array:
            (value,) = get(storage, stores, [jax.typeof(carry)], i, jnp.bool_(True))
            return total + value

        stores = lax.fori_loop(0, CHECKPOINTS, write, in_storage(storage, [carry], CHECKPOINTS))
        return lax.fori_loop(0, CHECKPOINTS, read, carry)

    program = jax.jit(write_and_read).lower(carry).compile()
    jax.block_until_ready(program(carry))
    taken: list[float] = []
    for _ in range(REPETITIONS):
        start = time.perf_counter_ns()
        jax.block_until_ready(program(carry))
        taken.append(float(time.perf_counter_ns() - start))
    return median(taken) / (2 * CHECKPOINTS)
