"""Which of the loops that were found are checkpointed, and how."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from jax_revolve._program import FoundLoop, Key, Replacement
from jax_revolve.schedule import cost, request
from jax_revolve.schedule.choose import trade_off
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.planning import Checkpoints, check_integer
from jax_revolve.schedule.report import Report
from jax_revolve.schedule.share import Outlay, share
from jax_revolve.schedule.units import Memory, bytes_of

Where: TypeAlias = Callable[[FoundLoop], bool | dict[str, Any]]


@dataclass(frozen=True)
class _Options:
    """How one loop is to be checkpointed: as the arguments of the loops that take these names."""

    checkpoints: Checkpoints
    block: int | None
    memory: Memory
    max_steps: int | None

    def replacement(self, loop: FoundLoop) -> Replacement:
        if loop.length is not None:
            plan = request.for_scan(loop.length, self.checkpoints, self.block, self.memory)
            return Replacement(plan, None)
        plan = request.for_bound(self.max_steps, self.checkpoints, self.block, self.memory)
        return Replacement(plan, self.max_steps)


@dataclass(frozen=True)
class Choice:
    """The arguments of `checkpoint_loops`."""

    checkpoints: Checkpoints
    memory: Memory
    min_length: int
    max_steps: int | None
    where: Where | None

    def check(self) -> None:
        request.check_arguments(self.checkpoints, None, self.memory)
        request.for_bound(self.max_steps, None)
        check_integer("min_length", self.min_length, least=1)
        if self.where is not None and not callable(self.where):
            raise TypeError(
                "where must be a function from a loop to a bool or a dict, or None, but is "
                f"{self.where!r} of type {type(self.where).__name__}."
            )

    def replacements(self, loops: Sequence[FoundLoop]) -> dict[Key, Replacement]:
        """What stands for each loop that is checkpointed."""
        chosen = {loop: options for loop in loops if (options := self._options(loop)) is not None}
        sharing = {
            loop: options
            for loop, options in chosen.items()
            if self.memory is not None and options.checkpoints is None and options.memory is None
        }
        own = {
            loop.key: options.replacement(loop)
            for loop, options in chosen.items()
            if loop not in sharing
        }
        if not sharing:
            return own
        return {**own, **_SharedMemory(loops, sharing, own).replacements(bytes_of(self.memory))}

    def _options(self, loop: FoundLoop) -> _Options | None:
        """`None` for a loop that is left alone."""
        if loop.length is not None and loop.length < self.min_length:
            return None
        options = _Options(self.checkpoints, None, None, self.max_steps)
        said = True if self.where is None else self.where(loop)
        if isinstance(said, dict):
            options = _changed(options, said, loop)
        elif not isinstance(said, bool):
            raise TypeError(
                f"where must return a bool or a dict, but returns {said!r} of type "
                f"{type(said).__name__} for the loop {loop.name!r} of {loop.source}."
            )
        elif not said:
            return None
        if loop.length is None and options.max_steps is None:
            # Then an int for checkpoints is enough to reverse it.
            return None if options.checkpoints in (None, "all") else options
        return options


def _changed(options: _Options, said: dict[str, Any], loop: FoundLoop) -> _Options:
    allowed = tuple(options.__dataclass_fields__)
    for name in said:
        if name not in allowed:
            raise ValueError(
                f"where must return a bool or a dict with some of the keys {', '.join(allowed)}, "
                f"but the dict that it returns for the loop {loop.name!r} of {loop.source} has the "
                f"key {name!r}."
            )
    if said.get("memory") is not None:
        said = {"checkpoints": None, **said}
    options = replace(options, **said)
    options.replacement(loop)  # which checks the values
    return options


@dataclass(frozen=True)
class _SharedMemory:
    """Loops that share an amount of memory, among all that were found.

    Loops that are in none of the others hold their checkpoints until the reverse pass comes to
    them, all at the same time. One that is in another one is there as often as that tapes steps:
    its share is part of the residuals of a step.
    """

    loops: Sequence[FoundLoop]
    sharing: Mapping[FoundLoop, _Options]
    own: Mapping[Key, Replacement]
    _found: dict[Key, list[Outlay]] = field(default_factory=dict)

    def replacements(self, memory: int) -> dict[Key, Replacement]:
        loops = self._within(None)
        least = sum(self._copies(loop) * self._least(loop) for loop in loops)
        if memory < least:
            names = ", ".join(f"{loop.name} of {loop.source}" for loop in loops)
            raise ValueError(
                f"memory must be at least {least} bytes here, but is {memory}: with less, the "
                f"loops that share it cannot be checkpointed ({names}). Pass at least so much, or "
                "leave out loops with where."
            )
        return dict(self._shared_out(loops, memory))

    def _shared_out(
        self, loops: Sequence[FoundLoop], memory: int
    ) -> Iterator[tuple[Key, Replacement]]:
        outlays = [
            [(self._copies(loop) * size, time) for size, time in self._outlays(loop)]
            for loop in loops
        ]
        for loop, part in zip(loops, share(memory, outlays), strict=True):
            own = part // self._copies(loop)
            yield loop.key, self._replacement(loop, own)
            inner = self._within(loop)
            needed = sum(self._copies(i) * self._least(i) for i in inner)
            yield from self._shared_out(inner, needed + (own - self._least(loop)) // 2)

    def _outlays(self, loop: FoundLoop) -> list[Outlay]:
        """What a loop can do with, if those in it get the least that they can do with."""
        if loop.key not in self._found:
            inside = {i.key: self._replacement(i, self._least(i)) for i in self._inside(loop)}
            options, length = self.sharing[loop], self._length(loop)
            single = Replacement(Plan(length, 1, options.block or 1), options.max_steps)
            report = loop.measure({**self.own, **inside}, single)
            self._found[loop.key] = (
                [(0, 0.0)] if report is None else _outlays_of(report, options.block)
            )
        return self._found[loop.key]

    def _least(self, loop: FoundLoop) -> int:
        return self._outlays(loop)[0][0]

    def _length(self, loop: FoundLoop) -> int:
        length = self.sharing[loop].max_steps if loop.length is None else loop.length
        assert length is not None
        return length

    def _replacement(self, loop: FoundLoop, memory: int) -> Replacement:
        return replace(self.sharing[loop], memory=memory).replacement(loop)

    def _inside(self, outer: FoundLoop) -> list[FoundLoop]:
        return [loop for loop in self.sharing if _is_in(loop, outer)]

    def _within(self, outer: FoundLoop | None) -> list[FoundLoop]:
        """The loops that share, and are in this one but in none that shares and is in it."""
        return [loop for loop in self.sharing if self._around(loop) == outer]

    def _around(self, loop: FoundLoop) -> FoundLoop | None:
        """The innermost loop that shares and that this one is in."""
        outer = [other for other in self.sharing if _is_in(loop, other)]
        return outer[-1] if outer else None

    def _copies(self, loop: FoundLoop) -> int:
        """How often what a loop holds is there, for every step of the loops around it that are left
        alone."""
        around = self._around(loop)
        copies = 1
        for other in self.loops:
            is_between = around is None or _is_in(other, around)
            is_left_alone = other not in self.sharing and other.key not in self.own
            if is_between and is_left_alone and _is_in(loop, other):
                copies *= other.length or 1
        return copies


def _outlays_of(report: Report, block: int | None) -> list[Outlay]:
    plans = trade_off(
        report.plan.length, report.sizes, block=block, stops_by_itself=report.stops_by_itself
    )
    time = partial(cost.time, sizes=report.sizes, stops_by_itself=report.stops_by_itself)
    return [(report.memory(plan), time(plan)) for plan in plans]


def _is_in(loop: FoundLoop, outer: FoundLoop) -> bool:
    return len(loop.key) > len(outer.key) and loop.key[: len(outer.key)] == outer.key
