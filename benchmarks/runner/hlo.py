"""What the text of a program tells that was compiled for a GPU or a TPU: loops, kernels, waits,
copies and transfers.

XLA runs a loop on a GPU from the host. If the number of iterations is known, the host launches the
kernels of all iterations and goes ahead. If not, it waits for the predicate before each iteration.
XLA writes the number where it knows it (`known_trip_count`), but not in programs for a TPU. There a
loop counts as static if it compares a counter with a constant, and starts from a constant.
"""

import re
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

HOST = "S(5)"
"""The memory space of the host in the layout of a type."""

COMPUTATION = re.compile(r"^(?:ENTRY )?(%[\w.-]+) .*\{$")
INSTRUCTION = re.compile(r"^\s+(ROOT )?(%[\w.-]+) = ")
CALLED = re.compile(r"(?:to_apply|calls|true_computation|false_computation)=(%[\w.-]+)")
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
TRIPS = re.compile(r'known_trip_count"?:\{"?n"?:"?(\d+)')
ARRAY = re.compile(r"^\(?\w+\[([\d,]+)\]")

FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"),
    *("opt-barrier", "partition-id", "replica-id"),
}
MOVES = {
    *("copy", "copy-start", "slice-start", "async-start", "fusion"),
    *("dynamic-slice", "dynamic-slice-start", "dynamic-update-slice", "dynamic-update-slice-start"),
}
SAME = {"bitcast", "copy", "copy-done"}
"""Operations whose result is their operand."""


def on_described(arrays: Any, name: str, platform: str, **options: Any) -> Any:
    """The shapes of arrays on the first device of a topology that need not be there."""
    devices = topologies.get_topology_desc(name, platform, **options).devices
    sharding = NamedSharding(Mesh(np.array(devices[:1]), ("x",)), PartitionSpec())
    described = partial(jax.ShapeDtypeStruct, sharding=sharding)
    return jax.tree.map(lambda x: described(x.shape, x.dtype), arrays)


class Instruction(NamedTuple):
    """A line of a program."""

    name: str
    type: str
    opcode: str
    operands: list[str]
    line: str
    is_root: bool

    def attribute(self, name: str) -> str:
        found = re.search(rf"\b{name}=(%?[\w.-]+)", self.line)
        assert found is not None, self.line
        return found[1]


Computation = dict[str, Instruction]


class Launched(NamedTuple):
    """By the host, and how often it waits for the predicate of an iteration or of a branch."""

    kernels: float
    waits: float


class ProgramText:
    """The computations of a program as lists of instructions."""

    def __init__(self, text: str) -> None:
        self.computations: dict[str, Computation] = {}
        self.entry = ""
        current: Computation = {}
        for line in text.splitlines():
            if header := COMPUTATION.match(line):
                current = self.computations.setdefault(header[1], {})
                self.entry = header[1] if line.startswith("ENTRY") else self.entry
            elif head := INSTRUCTION.match(line):
                current[head[2]] = _instruction(line, head)

    def instructions(self, *opcodes: str) -> Iterator[tuple[Instruction, Computation]]:
        """All of some operations, each with the computation that it is in."""
        for computation in self.computations.values():
            for each in computation.values():
                if each.opcode in opcodes:
                    yield each, computation

    def facts(self, carry_shapes: Iterable[tuple[int, ...]]) -> dict[str, Any]:
        """What is recorded of a program whose loops carry arrays of these shapes. Copies of buffers
        are of whole arrays of several carries, as the slots are. Transfers read or write the host's
        memory; each may run many times."""
        loops = [self._is_static(*loop) for loop in self.instructions("while")]
        copied = [_dimensions(each.type) for each, _ in self.instructions("copy", "copy-start")]
        shapes = set(carry_shapes)
        return {
            "loops": len(loops),
            "dynamic_loops": loops.count(False),
            "copies_of_buffers": sum(d[:1] > (1,) and d[1:] in shapes for d in copied if d[1:]),
            "transfers": sum(_is_on_host(*each) for each in self.instructions(*MOVES)),
        }

    def launched(
        self, some: Iterable[Instruction] | None = None, unknown: float = 1, outer: float = 1
    ) -> Launched:
        """In one run of these instructions, or of all, which run `outer` times. Each loop of
        unknown length runs `unknown` times in all; of branches, the largest is taken."""
        kernels = waits = 0.0
        for each in self.computations[self.entry].values() if some is None else some:
            times, within = 1.0, Launched(0, 0)
            if each.opcode == "while":
                trips, body = TRIPS.search(each.line), self._of(each.attribute("body"))
                times = int(trips[1]) if trips else unknown / outer
                within = self.launched(body, unknown, max(outer * times, 1))
                waits += 0 if trips else times + 1
            elif each.opcode == "call":
                within = self.launched(self._of(each.attribute("to_apply")), unknown, outer)
            elif each.opcode == "conditional":
                names = ",".join([*BRANCHES.findall(each.line), *CALLED.findall(each.line)])
                branches = (self._of(name.strip()) for name in names.split(","))
                within = max(self.launched(branch, unknown, outer) for branch in branches)
                waits += 1
            elif each.opcode not in FREE and not each.opcode.endswith("-done"):
                within = Launched("AllocateBuffer" not in each.line, 0)
            kernels += times * within.kernels
            waits += times * within.waits
        return Launched(kernels, waits)

    def beside_transfers(self) -> list[int]:
        """For each transfer to or from the host's memory, in the order of the text, the kernels
        that are launched between its start and its end. A loop in which it is may run many times;
        one of unknown length between them counts as none."""
        found: list[int] = []
        for computation in self.computations.values():
            order = list(computation.values())
            for at, each in enumerate(order):
                if each.opcode.endswith("-start") and _is_on_host(each, computation):
                    rest = order[at + 1 :]
                    between = takewhile(lambda e, name=each.name: name not in e.operands, rest)
                    found.append(int(self.launched(between, 0).kernels))
        return found

    def _of(self, name: str) -> Iterable[Instruction]:
        return self.computations[name].values()

    def _is_static(self, loop: Instruction, around: Computation) -> bool:
        if TRIPS.search(loop.line):
            return True
        inside = self.computations[loop.attribute("condition")]
        root = _source(next(each for each in inside.values() if each.is_root), inside)
        sides = {s.opcode: s for s in (_source(inside[o], inside) for o in root.operands)}
        start = _source(around[loop.operands[0]], around)
        compared = root.opcode == "compare" and {*sides} == {"constant", "get-tuple-element"}
        if not compared or start.opcode != "tuple":
            return False
        at = int(sides["get-tuple-element"].attribute("index"))
        return _source(around[start.operands[at]], around).opcode == "constant"


def _is_on_host(each: Instruction, around: Computation) -> bool:
    """Whether its result or an operand is in the host's memory."""
    types = [each.type, *(around[name].type for name in each.operands if name in around)]
    return any(HOST in type for type in types)


def _instruction(line: str, head: re.Match[str]) -> Instruction:
    rest = line[head.end() :]
    type_end = _closing(rest) if rest.startswith("(") else rest.index(" ")
    opcode, _, tail = rest[type_end:].lstrip().partition("(")
    operands = re.findall(r"%[\w.-]+", tail[: _closing("(" + tail) - 1])
    return Instruction(head[2], rest[:type_end], opcode, operands, line, bool(head[1]))


def _closing(text: str) -> int:
    """The position after the parenthesis that closes the first character."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth:
            return position + 1
    return len(text)


def _source(each: Instruction, among: Computation) -> Instruction:
    while each.opcode in SAME and each.operands[0] in among:
        each = among[each.operands[0]]
    return each


def _dimensions(type: str) -> tuple[int, ...]:
    found = ARRAY.match(type)
    return tuple(map(int, found[1].split(","))) if found else ()
