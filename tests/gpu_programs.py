"""Programs compiled for a GPU that is only described to XLA, and what their text says: kernels,
waits, copies, and what runs beside transfers.

XLA runs a loop from the host. If the number of iterations is known, the host launches the kernels
of all iterations and goes ahead. If not, it waits for the predicate before each iteration.
"""

import re
from collections.abc import Iterable
from itertools import takewhile
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_revolve.profiles import in_force

H100 = """
    gpu_device_info {
      threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
      shared_memory_per_block: 49152 shared_memory_per_core: 233472
      shared_memory_per_block_optin: 232448
      core_count: 132 fpus_per_core: 128
      block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
      memory_bandwidth: 3350000000000 l2_cache_size: 52428800
      clock_rate_ghz: 1.98 device_memory_size: 85899345920
      cuda_compute_capability { major: 9 minor: 0 }
      registers_per_core_limit: 65536 registers_per_block_limit: 65536
    }
    platform_name: "CUDA"
    dnn_version_info { major: 9 minor: 8 }
    device_description_str: "NVIDIA H100 80GB HBM3"
"""
HOST = "S(5)"
"""The memory space of the host in the layout of a type."""

COMPUTATION = re.compile(r"^(?:ENTRY )?(%[\w.-]+) .*\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?(%[\w.-]+) = ")
CALLED = re.compile(r"(?:to_apply|calls|true_computation|false_computation)=(%[\w.-]+)")
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
TRIPS = re.compile(r'known_trip_count"?:\{"?n"?:"?(\d+)')
ARRAY = re.compile(r"^\w+\[([\d,]*)\]")
FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"),
    *("opt-barrier", "partition-id", "replica-id"),
}


def compiled_for_an_h100(function: Any, argument: jax.Array, monkeypatch: Any) -> Any:
    """The planner asks for the kind of device that JAX uses, which would be the CPU."""
    described = SimpleNamespace(platform="gpu", device_kind="NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(in_force, "default_device", lambda: described)
    topology = topologies.get_topology_desc(
        topology_name="", platform="cuda", target_config=H100, topology="1x1x1"
    )
    mesh = Mesh(np.array(topology.devices).reshape(1), ("x",))
    sharding = NamedSharding(mesh, PartitionSpec())
    shape = jax.ShapeDtypeStruct(argument.shape, argument.dtype, sharding=sharding)
    return jax.jit(function).lower(shape).compile()


class Instruction(NamedTuple):
    """A line of a program."""

    name: str
    type: str
    opcode: str
    operands: list[str]
    line: str

    @property
    def waits(self) -> bool:
        """Whether the host waits, for the predicate of an iteration or of a branch."""
        return self.opcode == "conditional" or (
            self.opcode == "while" and not TRIPS.search(self.line)
        )

    def attribute(self, name: str) -> str:
        found = re.search(rf"\b{name}=(%?[\w.-]+)", self.line)
        assert found is not None, self.line
        return found[1]


class ProgramText:
    """The computations of a program as lists of instructions."""

    def __init__(self, text: str) -> None:
        self.computations: dict[str, dict[str, Instruction]] = {}
        self.entry = ""
        current: dict[str, Instruction] = {}
        for line in text.splitlines():
            if header := COMPUTATION.match(line):
                current = self.computations.setdefault(header[1], {})
                self.entry = header[1] if line.startswith("ENTRY") else self.entry
            elif head := INSTRUCTION.match(line):
                current[head[1]] = _instruction(line, head)

    @property
    def instructions(self) -> list[Instruction]:
        return [each for some in self.computations.values() for each in some.values()]

    def copies_of_buffers(self, carry: tuple[int, ...]) -> int:
        """Copies of whole arrays of several carries, as the slots are."""
        copies = [each for each in self.instructions if each.opcode in ("copy", "copy-start")]
        copied = [_dimensions(each.type.lstrip("(")) for each in copies]
        return sum(len(dims) > 1 and dims[0] > 1 and dims[1:] == carry for dims in copied)

    def kernels(self, some: Iterable[Instruction] | None = None) -> int:
        """The kernels that the host launches in one run of these instructions, or of all. The body
        of a loop of unknown length and the largest branch are counted once."""
        count = 0
        for each in self.computations[self.entry].values() if some is None else some:
            if each.opcode == "while":
                trips = TRIPS.search(each.line)
                body = self.computations[each.attribute("body")].values()
                count += (int(trips[1]) if trips else 1) * self.kernels(body)
            elif each.opcode == "call":
                count += self.kernels(self.computations[each.attribute("to_apply")].values())
            elif each.opcode == "conditional":
                found = [*BRANCHES.findall(each.line), *CALLED.findall(each.line)]
                names = [name.strip() for name in ",".join(found).split(",")]
                count += max(self.kernels(self.computations[name].values()) for name in names)
            elif each.opcode not in FREE and not each.opcode.endswith("-done"):
                count += "AllocateBuffer" not in each.line
        return count

    def beside_transfers(self) -> list[int]:
        """For each transfer to or from the host's memory, in the order of the text, the kernels
        that are launched between its start and its end."""
        found = []
        for computation in self.computations.values():
            order = list(computation.values())
            for at, each in enumerate(order):
                operands = [computation[name] for name in each.operands if name in computation]
                is_on_host = any(HOST in one.type for one in (each, *operands))
                if each.opcode.endswith("-start") and is_on_host:
                    rest = order[at + 1 :]
                    between = takewhile(lambda e, name=each.name: name not in e.operands, rest)
                    found.append(self.kernels(between))
        return found


def _instruction(line: str, head: re.Match[str]) -> Instruction:
    rest = line[head.end() :]
    type_end = _closing(rest) if rest.startswith("(") else rest.index(" ")
    opcode, _, tail = rest[type_end:].lstrip().partition("(")
    operands = re.findall(r"%[\w.-]+", tail[: _closing("(" + tail) - 1])
    return Instruction(head[1], rest[:type_end], opcode, operands, line)


def _closing(text: str) -> int:
    """The position after the parenthesis that closes the first character."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth:
            return position + 1
    return len(text)


def _dimensions(type: str) -> tuple[int, ...]:
    found = ARRAY.match(type)
    return tuple(map(int, found[1].split(","))) if found and found[1] else ()
