"""Where a loop is in a program, and its replacement.

A program is a jaxpr, and so a tree of equations. The `Key` of a loop is the path to it: the number
of an equation, the number of a jaxpr in it, the number of an equation there, and so on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from jax_revolve import _compat
from jax_revolve.autodiff.rules import loop_p
from jax_revolve.schedule.selection import Request
from jax_revolve.schedule.two_level import AnyPlan
from jax_revolve.step.loop import Loop

Key: TypeAlias = tuple[int, ...]

Replacements: TypeAlias = Mapping[Key, "Replacement"]


@dataclass(frozen=True)
class Replacement:
    """The checkpointed loop that replaces one of lax's: its plan and, for a while loop, its bound.

    Without a plan, the replacement is lax's own while loop, with an error in reverse mode that
    names the missing argument.
    """

    plan: AnyPlan | Request | None
    max_steps: int | None
    progress: Any = None

    def loop(self, eqn: Any) -> Loop:
        equation = _compat.read_loop(eqn)
        assert equation is not None
        length = self.max_steps if equation.condition is not None else equation.length
        return Loop.of(equation, length, self.plan, self.progress)


def loop_in(eqn: Any) -> Loop | _compat.LoopEquation | None:
    """The loop that an equation is, of this library or of lax."""
    return eqn.params["function"] if eqn.primitive is loop_p else _compat.read_loop(eqn)


@dataclass(frozen=True)
class Location:
    """The location of a jaxpr in a program."""

    key: Key = ()
    names: tuple[str, ...] = ()
    source: str = ""
    depth: int = 0
    runs: int | None = 1
    """How often a run of the program comes here, at most; `None` if nobody knows."""
    enclosing: tuple[Any, ...] = ()
    """The `shard_map` equations around it."""
    recomputed: tuple[Key, ...] = ()
    """The keys of the equations around it that run again when they are transposed."""

    def into(self, index: int, eqn: Any) -> Callable[[int], "Location"]:
        """The locations of the jaxprs that an equation here runs."""
        key, loop, runs = (*self.key, index), loop_in(eqn), self.runs
        if loop is not None:
            runs = None if runs is None or loop.length is None else runs * loop.length
        inner = replace(
            self,
            names=(*self.names, *_compat.name_in(eqn)),
            source=self.source_of(eqn),
            depth=self.depth + (loop is not None),
            runs=runs,
            enclosing=(*self.enclosing, eqn) if _compat.is_shard_map(eqn) else self.enclosing,
            recomputed=(*self.recomputed, key) if _compat.is_recomputed(eqn) else self.recomputed,
        )
        return lambda part: replace(inner, key=(*key, part))

    def name_of(self, eqn: Any) -> str:
        return "/".join([*self.names, *_compat.name_in(eqn)])

    def source_of(self, eqn: Any) -> str:
        """The source line of an equation here, or of the equation around it if that is unknown."""
        return _compat.source_of(eqn) or self.source


def is_in(key: Key, outer: Key) -> bool:
    return len(key) > len(outer) and key[: len(outer)] == outer
