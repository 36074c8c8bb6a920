"""Where a loop is in a program, and what stands in its place.

A program is a jaxpr. What it runs, at any depth, is a tree of equations; a loop is known by its
`Key`, the way to it: which equation, which of the jaxprs in that, which equation there, and so on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from jax_revolve import _compat
from jax_revolve.schedule.selection import Request
from jax_revolve.schedule.two_level import AnyPlan
from jax_revolve.step.loop import Loop

Key: TypeAlias = tuple[int, ...]

Replacements: TypeAlias = Mapping[Key, "Replacement"]


@dataclass(frozen=True)
class Replacement:
    """The checkpointed loop in place of one of lax's: its plan and, for a while loop, its bound.

    Without a plan it is lax's own while loop, of which reverse mode says what it needs.
    """

    plan: AnyPlan | Request | None
    max_steps: int | None
    progress: Any = None

    def loop(self, eqn: Any) -> Loop:
        equation = _compat.read_loop(eqn)
        assert equation is not None
        length = self.max_steps if equation.condition is not None else equation.length
        return Loop.of(equation, length, self.plan, self.progress)


@dataclass(frozen=True)
class Location:
    """Where in a program a jaxpr is."""

    key: Key = ()
    names: tuple[str, ...] = ()
    source: str = ""
    depth: int = 0
    enclosing: tuple[Any, ...] = ()
    """The `shard_map` equations that it is in."""
    recomputed: tuple[Key, ...] = ()
    """The ways to the equations that it is in, and that are run again when they are transposed."""
    in_rule: bool = False
    """Whether it belongs to a `custom_jvp` rule. Rules of functions called in rules, often the same
    ones again, are not looked into."""

    def programs(self, eqn: Any) -> list[Any]:
        """The jaxprs that an equation here runs."""
        if self.in_rule and _compat.has_rule(eqn):
            return []
        return _compat.inner_programs(eqn, self.enclosing)

    def into(self, index: int, eqn: Any) -> Callable[[int], "Location"]:
        """The places of the jaxprs that an equation here runs."""
        key = (*self.key, index)
        inner = replace(
            self,
            names=(*self.names, *_compat.name_in(eqn)),
            source=self.source_of(eqn),
            depth=self.depth + (_compat.read_loop(eqn) is not None),
            enclosing=(*self.enclosing, eqn) if _compat.is_shard_map(eqn) else self.enclosing,
            recomputed=(*self.recomputed, key) if _compat.is_recomputed(eqn) else self.recomputed,
            in_rule=self.in_rule or _compat.has_rule(eqn),
        )
        return lambda part: replace(inner, key=(*key, part))

    def name_of(self, eqn: Any) -> str:
        return "/".join([*self.names, *_compat.name_in(eqn)])

    def source_of(self, eqn: Any) -> str:
        """Where an equation here comes from: what runs it, if that is not known of itself."""
        return _compat.source_of(eqn) or self.source


def is_in(key: Key, outer: Key) -> bool:
    return len(key) > len(outer) and key[: len(outer)] == outer
