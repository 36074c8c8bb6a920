"""What gradients compiled for a GPU launch and hold, without a GPU.

Nothing runs, and it takes about an hour. XLA compiles for a GPU that is described to it, and the
text of the program tells its kernels, loops, copies and transfers. A launch model predicts the
times (`runner.launches`). Run it in an environment of its own: `pip install -e ".[gpu-programs]"`.
"""

import os
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.contenders import names
from benchmarks.contenders.budgets import explained
from benchmarks.contenders.nested import LEVELS, TOLERANCE, blockings, expected_bytes
from benchmarks.contenders.scans import LAX_SCAN, equinox, nested
from benchmarks.contenders.while_loops import equinox as equinox_while
from benchmarks.contenders.while_loops import jax_revolve as revolve_while
from benchmarks.contenders.while_loops import masked
from benchmarks.fronts import QUICK_SHAPES, SHAPES
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Record
from benchmarks.runner.hlo import ProgramText
from benchmarks.runner.launches import A100, H100, Device, beside_transfers, launches
from benchmarks.runner.programs import Compiler, Contender, Workload, bytes_of
from benchmarks.workloads.recurrences import scanned, stencil, under_vmap
from jax_revolve import HostMemory, checkpointed_scan, plan
from jax_revolve.profiles import in_force
from jax_revolve.schedule import cost
from jax_revolve.schedule.arguments import TooLittleMemory
from jax_revolve.typing import Plan

SHARES = {"H100": ("default", 0.3, 0.1, 0.05, 0.02), "A100": ("default", 0.1)}
"""Of the memory of `lax.scan`."""

TRIED = 6
"""Nested scans for each number of levels. Memory that is expected may be off by a half."""
TRIED_LEANEST = 3

DESCRIBED = {"H100": H100, "A100": A100}


class CompilerFor(Compiler):
    """Compiles for a device that is described."""

    def __init__(self, workload: Workload, device: Device) -> None:
        super().__init__(workload, "gradient")
        self.device = device
        topology = topologies.get_topology_desc(
            topology_name="", platform="cuda", target_config=device.description, topology="1x1x1"
        )
        mesh = Mesh(np.array(topology.devices).reshape(1), ("x",))
        sharding = NamedSharding(mesh, PartitionSpec())
        self.lowered_with = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), self.arguments
        )
        # The planner asks for the kind of device that JAX uses, which would be the CPU.
        described = SimpleNamespace(platform="gpu", device_kind=device.name)
        in_force.default_device = lambda: described

    def record(self, contender: Contender, share: Any, iterations: int = 0, **more: Any) -> Record:
        """What the program takes and launches. `iterations` is how many its loops of unknown
        length run in all."""
        program = self(contender)
        compiled: Any = program.compiled
        text = ProgramText(compiled.as_text())
        found = launches(text, self.device, iterations)
        inputs = self.workload.active | self.workload.passive
        facts = text.facts({x.shape for x in jax.tree.leaves(inputs.get("init"))})
        return {
            "device": self.device.name,
            "workload": self.workload.name,
            "length": self.workload.length,
            "contender": contender.name,
            "share": share,
            "detail": contender.detail,
            "temp_bytes": program.temp_bytes,
            "host_bytes": int(compiled.memory_analysis().host_temp_size_in_bytes),
            "kernels": round(found.kernels),
            "waits": round(found.waits),
            "predicted_ms": 1e3 * found.seconds,
            "beside_transfers": beside_transfers(text, self.device),
            **facts,
            **more,
        }


def of_scan(compiler: CompilerFor, shares: tuple[Any, ...]) -> Iterator[Record]:
    """`lax.scan`, and for each share of its memory ours, the nested scans with the fewest kernels
    that need no more, and Equinox's loop with as many checkpoints."""
    yield compiler.record(LAX_SCAN, None)
    everything = compiler(LAX_SCAN).temp_bytes
    for share in shares:
        options = {"memory": int(share * everything)} if isinstance(share, float) else {}
        try:
            chosen = explained(compiler.workload, options).plan
        except TooLittleMemory:
            continue
        loop = partial(checkpointed_scan, **options)
        ours = Contender(names.JAX_REVOLVE, loop, detail=described(chosen))
        yield compiler.record(ours, share, unknown(chosen), evaluations=chosen.evaluations)
        yield from leanest_nested(compiler, share, compiler(ours).temp_bytes)
        if share == 0.1 and compiler.device is H100:
            # It stores about two states for a checkpoint.
            inputs = compiler.workload.active | compiler.workload.passive
            states = compiler(ours).temp_bytes // max(bytes_of(inputs["init"]), 1)
            checkpoints = min(max(states // 2, 1), compiler.workload.length)
            runs = plan(compiler.workload.length, checkpoints).evaluations
            yield compiler.record(equinox(checkpoints), share, runs)


def unknown(chosen: Any) -> int:
    """The iterations of its loops of unknown length."""
    return 0 if chosen.static_levels else chosen.evaluations


def described(chosen: Any) -> str:
    if chosen.levels:
        slots = f"{' x '.join(map(str, chosen.levels))} checkpoints"
    else:
        slots = f"{chosen.checkpoints} checkpoint{'s' if chosen.checkpoints > 1 else ''}"
    return f"{slots}, blocks of {chosen.block_size}"


def leanest_nested(compiler: CompilerFor, share: Any, limit: int) -> Iterator[Record]:
    """Those of the fewest levels that fit, and of these the one with the fewest kernels.

    The longer the innermost scan, the fewer kernels. If none fits, the leanest is recorded as it
    is, to show how much memory nested scans need at least."""
    length, expected = compiler.workload.length, expected_bytes(compiler)
    for levels in LEVELS:
        fit = []
        for taped in (True, False):
            likely = [b for b in blockings(length, levels) if expected(b, taped) <= 1.5 * limit]
            for blocks in sorted(likely, key=lambda b: -b[-1])[:TRIED]:
                contender = nested(blocks, taped)
                if compiler(contender).temp_bytes <= TOLERANCE * limit:
                    fit.append(compiler.record(contender, share))
                    break
        if fit:
            yield min(fit, key=lambda record: record["kernels"])
            return
    choices = [blocks for levels in LEVELS for blocks in blockings(length, levels)]
    leanest = sorted(choices, key=lambda blocks: expected(blocks, False))[:TRIED_LEANEST]
    records = [compiler.record(nested(blocks, False), share) for blocks in leanest]
    yield min(records, key=lambda record: record["temp_bytes"])


def of_while_loop(compiler: CompilerFor, bound: int) -> Iterator[Record]:
    """A loop whose examples stop at different steps. All loops of unknown length run as often as
    the example that takes the most steps needs."""
    ours = revolve_while(bound)
    assert ours.checkpoints is not None
    steps = compiler.workload.length
    taken = Plan(steps, min(ours.checkpoints, steps))
    yield compiler.record(masked(bound), None)
    yield compiler.record(ours, "default", cost.evaluations(taken, is_while=True))
    runs = plan(steps, ours.checkpoints).evaluations
    yield compiler.record(equinox_while(bound, ours.checkpoints), "default", runs)


def of_host_memory(compiler: CompilerFor) -> Iterator[Record]:
    """Checkpoints in the host's memory, one for each block, and as many as are worth it."""
    n = compiler.workload.length
    size = max(n // 50, 1)
    blocks = {"storage": HostMemory(checkpoints=-(-n // size)), "block_size": size}
    few = {"storage": HostMemory(checkpoints=30)}
    for name, options in {f"HostMemory, blocks of {size}": blocks, "HostMemory": few}.items():
        chosen = plan(n, 0, **options)
        loop = partial(checkpointed_scan, checkpoints=0, **options)
        ours = Contender(names.JAX_REVOLVE, loop, detail=name)
        yield compiler.record(ours, name, unknown(chosen), evaluations=chosen.evaluations)


def measure(quick: bool) -> Iterator[list[Record]]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    host = stencil(*((16, 16) if quick else (1000, 20_000)))
    bound, many = (32, stencil(5, 16)) if quick else (4096, stencil(64, 2000))
    for name, device in DESCRIBED.items():
        for make, shape in QUICK_SHAPES if quick else SHAPES:
            yield list(of_scan(CompilerFor(scanned(make(*shape)), device), SHARES[name]))
        yield list(of_host_memory(CompilerFor(scanned(host), device)))
        yield list(of_while_loop(CompilerFor(under_vmap(many, bound), device), bound))


BENCHMARK = Benchmark("programs", measure, device="gpu")
