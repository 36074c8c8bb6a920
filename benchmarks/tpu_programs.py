"""Compiles gradients for a TPU, without one, and writes down what the compiled programs hold.

    pip install libtpu
    python benchmarks/tpu_programs.py

writes `benchmarks/results/programs-tpu.json`. Nothing runs: XLA compiles for a topology that is
described to it, and says how much memory a program takes on the device and on its host. On a TPU
those are two memories; on a CPU they are one, so that this is where checkpoints in the host's
memory are seen to leave the device. Times are for `scan.py` and `storage.py`, on a device.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

# Read when the TPU's library is loaded: there is no machine whose metadata it could ask for.
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from timing import describe_machine
from tqdm import tqdm

from jax_revolve import HostMemory, bounded_while_loop, checkpointed_scan

TOPOLOGY = "v5e:2x2"
LENGTH = 1000
SHAPE = (4096, 1024)
"""16 MiB a state: more than a few of them do not fit into what the compiler keeps on the chip."""

RESULTS = Path(__file__).parent / "results" / "programs-tpu.json"

CONTENDERS: dict[str, dict[str, Any]] = {
    "checkpoints=30": {"checkpoints": 30},
    "checkpoints=30, block_size=4": {"checkpoints": 30, "block_size": 4},
    'checkpoints=30, storage="pinned_host"': {"checkpoints": 30, "storage": "pinned_host"},
    "checkpoints=10": {"checkpoints": 10},
    "checkpoints=10, storage=HostMemory()": {"checkpoints": 10, "storage": HostMemory()},
}


def step(u: jax.Array) -> jax.Array:
    """Reaction and diffusion along the first axis."""
    return u + 0.1 * (jnp.roll(u, 1, 0) - 2 * u + jnp.roll(u, -1, 0)) - 0.01 * u**3


def scan(loop: Any, u: jax.Array, **options: Any) -> jax.Array:
    return jnp.sum(loop(lambda u, _: (step(u), None), u, None, LENGTH, **options)[0] ** 2)


def while_loop(u: jax.Array, **options: Any) -> jax.Array:
    """Stops where it is small enough."""

    def going(u: jax.Array) -> jax.Array:
        return jnp.max(jnp.abs(u)) > 1e-3

    return jnp.sum(bounded_while_loop(going, step, u, max_steps=LENGTH, **options) ** 2)


def compiled(function: Any) -> Any:
    devices = topologies.get_topology_desc(topology_name=TOPOLOGY, platform="tpu").devices
    sharding = NamedSharding(Mesh(np.array(devices[:1]), ("x",)), PartitionSpec())
    state = jax.ShapeDtypeStruct(SHAPE, jnp.float32, sharding=sharding)
    return jax.jit(jax.grad(function)).lower(state).compile()


def describe(name: str, options: str, function: Any) -> dict[str, Any]:
    """What the program holds, in states, and how often a whole buffer of them is copied."""
    program = compiled(function)
    memory, text = program.memory_analysis(), program.as_text()
    state = 4 * np.prod(SHAPE)
    shape = ",".join(map(str, SHAPE))
    return {
        "loop": name,
        "options": options,
        "device_states": memory.temp_size_in_bytes / state,
        "host_states": memory.host_temp_size_in_bytes / state,
        "copies_of_buffers": len(re.findall(rf"= f32\[\d+,{shape}\]\S* copy\(", text)),
    }


def main() -> None:
    programs = [("lax.scan", "", lambda u: scan(lax.scan, u))]
    for options, arguments in CONTENDERS.items():
        programs += [
            ("checkpointed_scan", options, lambda u, a=arguments: scan(checkpointed_scan, u, **a)),
            ("bounded_while_loop", options, lambda u, a=arguments: while_loop(u, **a)),
        ]
    found = [describe(*program) for program in tqdm(programs, desc="Compiling", unit="program")]
    for row in found:
        print(
            f"{row['loop']:18}  {row['options']:38}  {row['device_states']:8.2f} states on the "
            f"device, {row['host_states']:6.2f} on the host, {row['copies_of_buffers']} copies"
        )
    record = {"machine": {**describe_machine(), "compiled_for": TOPOLOGY}, "programs": found}
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
