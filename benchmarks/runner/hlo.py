"""What the text of a compiled program tells: its loops, kernels, copies and transfers.

XLA writes the number of iterations of a loop where it knows it (`known_trip_count`), but not in
programs for a TPU. There a loop counts as static if it compares a counter with a constant, and the
counter starts from a constant.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

HOST = "S(5)"
"""The memory space of the host in the layout of a type."""

COMPUTATION = re.compile(r"^(?:ENTRY )?(%[\w.-]+) .*\{$")
INSTRUCTION = re.compile(r"^\s+(ROOT )?(%[\w.-]+) = ")
CALLED = re.compile(r"(?:to_apply|calls|true_computation|false_computation)=(%[\w.-]+)")
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
TRIPS = re.compile(r'known_trip_count"?:\{"?n"?:"?(\d+)')
ARRAY = re.compile(r"^\w+\[([\d,]*)\]")

MOVES = {
    *("copy", "copy-start", "slice-start", "async-start", "fusion"),
    *("dynamic-slice", "dynamic-slice-start", "dynamic-update-slice", "dynamic-update-slice-start"),
}
COPIES = {"copy", "copy-start"}
SAME = {"bitcast", "copy", "copy-done"}
"""Operations whose result is their operand."""


class Instruction(NamedTuple):
    """A line of a program."""

    name: str
    type: str
    opcode: str
    operands: list[str]
    line: str
    is_root: bool


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
                current[head[2]] = _instruction(line, head)

    @property
    def instructions(self) -> Iterator[tuple[Instruction, dict[str, Instruction]]]:
        """All of them, each with the computation that it is in."""
        for computation in self.computations.values():
            for each in computation.values():
                yield each, computation

    @cached_property
    def loops(self) -> list[bool]:
        """For each loop, whether the number of its iterations is known when it is compiled."""
        every = ((each, around) for each, around in self.instructions if each.opcode == "while")
        return [self._is_static(each, around) for each, around in every]

    def facts(self, carry_shapes: Iterable[tuple[int, ...]]) -> dict[str, Any]:
        """What is recorded of a program whose loops carry arrays of these shapes."""
        return {
            "loops": len(self.loops),
            "dynamic_loops": self.loops.count(False),
            "copies_of_buffers": self.copies_of_buffers(carry_shapes),
            "transfers": self.transfers,
        }

    def copies_of_buffers(self, shapes: Iterable[tuple[int, ...]]) -> int:
        """Copies of whole arrays of several carries, as the slots are."""
        wanted = set(shapes)
        copied = [
            _dimensions(i.type.lstrip("(")) for i, _ in self.instructions if i.opcode in COPIES
        ]
        return sum(len(dims) > 1 and dims[0] > 1 and dims[1:] in wanted for dims in copied)

    @property
    def transfers(self) -> int:
        """Operations that read or write the host's memory, in the text: each may run many times."""
        return sum(
            each.opcode in MOVES and is_on_host(each, around) for each, around in self.instructions
        )

    def _is_static(self, loop: Instruction, around: dict[str, Instruction]) -> bool:
        if TRIPS.search(loop.line):
            return True
        inside = self.computations[attribute(loop.line, "condition")]
        root = _source(next(each for each in inside.values() if each.is_root), inside)
        if root.opcode != "compare":
            return False
        sides = [_source(inside[name], inside) for name in root.operands]
        counters = [side for side in sides if side.opcode == "get-tuple-element"]
        if sum(side.opcode == "constant" for side in sides) != 1 or len(counters) != 1:
            return False
        start = _source(around[loop.operands[0]], around)
        if start.opcode != "tuple":
            return False
        at = int(attribute(counters[0].line, "index"))
        return _source(around[start.operands[at]], around).opcode == "constant"


def is_on_host(each: Instruction, around: dict[str, Instruction]) -> bool:
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


def attribute(line: str, attribute: str) -> str:
    found = re.search(rf"\b{attribute}=(%?[\w.-]+)", line)
    assert found is not None, line
    return found[1]


def _source(each: Instruction, among: dict[str, Instruction]) -> Instruction:
    while each.opcode in SAME and each.operands[0] in among:
        each = among[each.operands[0]]
    return each


def bytes_of_type(type: str) -> int:
    """The bytes of an array, or of all arrays of a tuple."""
    found = re.findall(r"\b(pred|[a-z]+\d+)\w*\[([\d,]*)\]", type)
    return sum(_width(name) * prod(map(int, filter(None, dims.split(",")))) for name, dims in found)


def _width(name: str) -> int:
    return 1 if name == "pred" else max(int(re.sub(r"\D", "", name)) // 8, 1)


def _dimensions(type: str) -> tuple[int, ...]:
    found = ARRAY.match(type)
    return tuple(map(int, found[1].split(","))) if found and found[1] else ()
