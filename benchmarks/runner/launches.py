"""A launch model of programs for a GPU: kernels, waits, and a time predicted from both.

XLA runs a loop from the host. If the number of iterations is known, the host launches the kernels
of all iterations and goes ahead. If not, it waits for the predicate before each iteration. A kernel
takes as long as its launch or, if that is longer, as its bytes and its products. Kernels in CUDA
graphs launch more quickly than this, and kernels rarely reach the full bandwidth.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from math import prod, sqrt
from typing import NamedTuple

from benchmarks.runner.hlo import (
    BRANCHES,
    CALLED,
    TRIPS,
    Instruction,
    ProgramText,
    attribute,
    bytes_of_type,
    is_on_host,
)

KERNEL = 2.5e-6
WAIT = 10e-6
"""Seconds to launch a kernel, and to wait for the device."""

FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"),
    *("opt-barrier", "partition-id", "replica-id"),
}
PRODUCTS = ("__cublas", "__triton_gemm", "gemm")


@dataclass(frozen=True)
class Device:
    """A GPU as it is described to XLA, and how fast it is: bytes of its memory and operations of
    single-precision products (TensorFloat-32) in a second, by its data sheet."""

    name: str
    capability: tuple[int, int]
    processors: int
    units: int
    clock_ghz: float
    bandwidth: float
    products: float
    cache: int
    memory: int
    shared: int

    @property
    def description(self) -> str:
        """The description that XLA takes instead of the device."""
        major, minor = self.capability
        return f"""
            gpu_device_info {{
              threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
              shared_memory_per_block: 49152 shared_memory_per_core: {self.shared + 1024}
              shared_memory_per_block_optin: {self.shared}
              core_count: {self.processors} fpus_per_core: {self.units}
              block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
              memory_bandwidth: {self.bandwidth:.0f} l2_cache_size: {self.cache}
              clock_rate_ghz: {self.clock_ghz} device_memory_size: {self.memory}
              cuda_compute_capability {{ major: {major} minor: {minor} }}
              registers_per_core_limit: 65536 registers_per_block_limit: 65536
            }}
            platform_name: "CUDA"
            dnn_version_info {{ major: 9 minor: 8 }}
            device_description_str: "{self.name}"
        """


H100 = Device(
    "NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 1.98, 3.35e12, 4.9e14, 50 << 20, 80 << 30, 232448
)
A100 = Device(
    "NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 1.41, 2.04e12, 1.56e14, 40 << 20, 80 << 30, 166912
)


class Launches(NamedTuple):
    """What the host launches, and what it waits for, in one run of a program.

    `waits` counts iterations of loops of unknown length, each taken to run `unknown` times, and
    predicates of branches. `seconds` is predicted."""

    kernels: float
    waits: float
    seconds: float

    def __add__(self, other: "Launches") -> "Launches":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Launches(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, count: float) -> "Launches":
        return Launches(*(count * a for a in self))


NOTHING = Launches(0, 0, 0)


def launches(program: ProgramText, device: Device, unknown: float = 0) -> Launches:
    """Of a program in which the loops of unknown length that hold no others run `unknown` times in
    all, one as often as another."""
    dynamic = max(program.loops.count(False), 1)
    return _Walk(program, device, unknown / dynamic).run(program.entry, 1)


def beside_transfers(program: ProgramText, device: Device) -> list[int]:
    """For each transfer to or from the host's memory, in the order of the text, the kernels that
    are launched between its start and its end. A loop in which it is may run many times."""
    walk, found = _Walk(program, device, 0), []
    for computation in program.computations.values():
        order = list(computation.values())
        for at, each in enumerate(order):
            if each.opcode.endswith("-start") and is_on_host(each, computation):
                between = takewhile(lambda e, n=each.name: n not in e.operands, order[at + 1 :])
                found.append(round(walk.run_some(between, computation, 1).kernels))
    return found


class _Walk:
    def __init__(self, program: ProgramText, device: Device, unknown: float) -> None:
        self._program, self._device, self._unknown = program, device, unknown

    def run(self, name: str, outer: float) -> Launches:
        """The launches of a computation that runs `outer` times."""
        computation = self._program.computations[name]
        return self.run_some(computation.values(), computation, outer)

    def run_some(
        self, some: Iterable[Instruction], computation: dict[str, Instruction], outer: float
    ) -> Launches:
        """The launches of some instructions of a computation."""
        total = NOTHING
        for each in some:
            if each.opcode == "while":
                total += self._loop(each, outer)
            elif each.opcode == "call":
                total += self.run(attribute(each.line, "to_apply"), outer)
            elif each.opcode == "conditional":
                branches = ",".join([*BRANCHES.findall(each.line), *CALLED.findall(each.line)])
                total += Launches(0, 1, WAIT)
                total += max(self.run(branch.strip(), outer) for branch in branches.split(","))
            elif not (each.opcode in FREE or each.opcode.endswith("-done") or _allocates(each)):
                total += Launches(1, 0, max(KERNEL, self._busy(each, computation)))
        return total

    def _loop(self, each: Instruction, outer: float) -> Launches:
        body, known = attribute(each.line, "body"), TRIPS.search(each.line)
        if known:
            trips = int(known[1])
            return self.run(body, outer * trips).times(trips)
        trips = max(self._unknown / outer, 0)
        return self.run(body, max(outer * trips, 1)).times(trips) + Launches(
            0, trips + 1, WAIT * (trips + 1)
        )

    def _busy(self, each: Instruction, computation: dict[str, Instruction]) -> float:
        """The seconds that the device needs for the bytes and the products of a kernel."""
        return (
            sum(self._bytes(each, computation)) / self._device.bandwidth
            + self._operations(each, computation) / self._device.products
        )

    def _bytes(self, each: Instruction, computation: dict[str, Instruction]) -> Iterator[float]:
        """Read and written; of arrays that are sliced or updated, the slice alone."""
        inside = self._fused(each)
        if inside is None:
            if "dynamic-update-slice" in each.opcode:
                yield 2 * bytes_of_type(computation[each.operands[1]].type)
                return
            yield bytes_of_type(each.type)
            if "dynamic-slice" in each.opcode:
                yield bytes_of_type(each.type)
                return
            for name in each.operands:
                yield bytes_of_type(computation[name].type)
            return
        updated = [i for i in inside.values() if i.opcode == "dynamic-update-slice"]
        written = {i.type.split("{")[0]: bytes_of_type(inside[i.operands[1]].type) for i in updated}
        types = each.type.strip("()").split(", ") if each.type.startswith("(") else [each.type]
        for type in types:
            yield written.get(type.split("{")[0], bytes_of_type(type))
        for parameter in (i for i in inside.values() if i.opcode == "parameter"):
            users = [i for i in inside.values() if parameter.name in i.operands]
            whole = bytes_of_type(parameter.type)
            if users and all(i.opcode == "dynamic-slice" for i in users):
                yield min(whole, sum(bytes_of_type(i.type) for i in users))
            elif not any(u.operands[0] == parameter.name for u in updated):
                yield whole

    def _fused(self, each: Instruction) -> dict[str, Instruction] | None:
        if "calls=" not in each.line or "fusion" not in each.opcode:
            return None
        return self._program.computations.get(attribute(each.line, "calls"))

    def _operations(self, each: Instruction, computation: dict[str, Instruction]) -> float:
        """Those of products: twice the root of the product of the three sizes, for each batch."""
        dots = []
        if each.opcode == "custom-call" and any(name in each.line for name in PRODUCTS):
            dots = [(each, computation)]
        elif (inside := self._fused(each)) is not None:
            dots = [(i, inside) for i in inside.values() if i.opcode == "dot"]
        total = 0.0
        for dot, among in dots:
            sizes = [_size(among[name].type) for name in dot.operands[:2]]
            total += 2 * sqrt(prod(sizes) * _size(dot.type.lstrip("(")))
        return total


def _allocates(each: Instruction) -> bool:
    return each.opcode == "custom-call" and "AllocateBuffer" in each.line


def _size(type: str) -> int:
    return bytes_of_type(type.split(")")[0].split(", ")[0]) // 4
