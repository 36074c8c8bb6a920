"""What gradients compiled for a TPU hold, without a TPU; it needs `libtpu`.

Nothing runs: XLA compiles for a topology that is described to it, and says how much memory a
program takes on the device and on its host. On a TPU those are two memories; on a CPU they are one,
so that this is where checkpoints in the host's memory are seen to leave the device. The text of the
program tells which loops have a static length, and what is copied or moved to the host.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.report.table import Table
from benchmarks.runner.benchmark import Benchmark, Measurement
from benchmarks.runner.hlo import ProgramText, on_described
from benchmarks.runner.programs import Record, sum_of_squares
from benchmarks.workloads.recurrences import reaction_diffusion
from jax_revolve import HostMemory, bounded_while_loop, checkpointed_scan

TOPOLOGY = "v5e:2x2"
LENGTH = 1000
SHAPE = (4096, 1024)
"""16 MiB a state: more than a few of them do not fit into what the compiler keeps on the chip."""

OPTIONS: dict[str, dict[str, Any]] = {
    "checkpoints=30": {"checkpoints": 30},
    "checkpoints=30, block_size=4": {"checkpoints": 30, "block_size": 4},
    "checkpoints=32, block_size=32": {"checkpoints": 32, "block_size": 32},
    'checkpoints="all"': {"checkpoints": "all"},
    "checkpoints=0, storage=HostMemory(30)": {
        "checkpoints": 0,
        "storage": HostMemory(checkpoints=30),
    },
    "checkpoints=10": {"checkpoints": 10},
    "checkpoints=10, storage=HostMemory()": {"checkpoints": 10, "storage": HostMemory()},
}


def scan(u: jax.Array, loop: Any = checkpointed_scan, **options: Any) -> jax.Array:
    final, _ = loop(lambda u, _: (reaction_diffusion(u), None), u, None, LENGTH, **options)
    return sum_of_squares(final)


def while_loop(u: jax.Array, **options: Any) -> jax.Array:
    """Stops where it is small enough."""
    going = lambda u: jnp.max(jnp.abs(u)) > 1e-3  # noqa: E731
    loop = partial(bounded_while_loop, going, reaction_diffusion, throw=False)
    return sum_of_squares(loop(u, max_steps=LENGTH, **options))


def measurements(_: bool) -> Iterator[Measurement]:
    """As quick as it is, since nothing runs."""
    # Read when the TPU's library is loaded: there is no machine whose metadata it could ask for.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    programs = [("lax.scan", "", partial(scan, loop=lax.scan))]
    for options, arguments in OPTIONS.items():
        programs += [
            ("checkpointed_scan", options, partial(scan, **arguments)),
            ("bounded_while_loop", options, partial(while_loop, **arguments)),
        ]
    for name, options, function in programs:
        yield Measurement(f"{name}, {options}", partial(held, name, options, function))


def held(name: str, options: str, function: Callable[..., jax.Array], _: bool) -> list[Record]:
    """What the program holds, in states, and what its text tells."""
    state = on_described(jax.ShapeDtypeStruct(SHAPE, jnp.float32), TOPOLOGY, "tpu")
    program: Any = jax.jit(jax.grad(function)).lower(state).compile()
    memory, size = program.memory_analysis(), 4 * prod(SHAPE)
    record = {
        "loop": name,
        "options": options,
        "device_states": memory.temp_size_in_bytes / size,
        "host_states": memory.host_temp_size_in_bytes / size,
    }
    return [record | ProgramText(program.as_text()).facts([SHAPE])]


TABLES = {
    "tpu-programs": Table(
        f"Gradients of 1000 steps of a stencil, compiled for a TPU ({TOPOLOGY}) with"
        " jax {machine[versions][jax]}; temporaries in states of 16 MiB"
        " (`benchmarks/tpu_programs.py`):",
        lambda results: results.runs,
        [
            ("loop", "`{loop}`"),
            ("options", lambda run: run["options"] and f"`{run['options']}`"),
            ("on the device", "{device_states:.1f}"),
            ("on the host", "{host_states:.0f}"),
            ("loops", "{loops}"),
            ("of dynamic length", "{dynamic_loops}"),
            ("copies of slots", "{copies_of_buffers}"),
            ("transfers", "{transfers}"),
        ],
    ),
}
BENCHMARK = Benchmark("programs", measurements, TABLES, described="tpu")
