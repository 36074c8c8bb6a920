"""The loops of a program that is already written: finding them, and putting checkpointed ones in
their places.

A program is a jaxpr. What it runs, at any depth, is a tree of equations; a loop is known by its
`Key`, the way to it: which equation, which of the jaxprs in that, which equation there, and so on.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from jax_revolve import _compat
from jax_revolve._explain import NoDerivative, report_of
from jax_revolve._while import raise_if_stopped
from jax_revolve.engine.loop import Loop
from jax_revolve.engine.loop_primitive import loop_p, run_loop
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.report import Report
from jax_revolve.schedule.request import Request
from jax_revolve.schedule.two_level import AnyPlan

Key: TypeAlias = tuple[int, ...]

Replacements: TypeAlias = Mapping[Key, "Replacement"]


@dataclass(frozen=True)
class Replacement:
    """The checkpointed loop in place of one of lax's: its plan and, for a while loop, its bound."""

    plan: AnyPlan | Request | None
    max_steps: int | None

    def loop(self, eqn: Any) -> Loop:
        equation = _compat.read_loop(eqn)
        assert equation is not None
        length = self.max_steps if equation.condition is not None else equation.length
        return Loop.of(equation, length, self.plan)


@dataclass(frozen=True)
class Place:
    """Where in a program a jaxpr is."""

    key: Key = ()
    names: tuple[str, ...] = ()
    source: str = ""
    depth: int = 0
    enclosing: tuple[Any, ...] = ()
    """The `shard_map` equations that it is in."""
    in_rule: bool = False
    """Whether it belongs to a `custom_jvp` rule. Rules of functions called in rules, often the same
    ones again, are not looked into."""

    def programs(self, eqn: Any) -> list[Any]:
        """The jaxprs that an equation here runs."""
        if self.in_rule and _compat.has_rule(eqn):
            return []
        return _compat.inner_programs(eqn, self.enclosing)

    def into(self, index: int, eqn: Any) -> Callable[[int], "Place"]:
        """The places of the jaxprs that an equation here runs."""
        names = (*self.names, *_compat.name_in(eqn))
        depth = self.depth + (_compat.read_loop(eqn) is not None)
        enclosing = (*self.enclosing, eqn) if _compat.is_shard_map(eqn) else self.enclosing
        in_rule = self.in_rule or _compat.has_rule(eqn)
        source = self.source_of(eqn)
        return lambda part: Place(
            (*self.key, index, part), names, source, depth, enclosing, in_rule
        )

    def source_of(self, eqn: Any) -> str:
        """Where an equation here comes from: what runs it, if that is not known of itself."""
        return _compat.source_of(eqn) or self.source


@dataclass(frozen=True)
class FoundLoop:
    """A loop in a function that [`jax_revolve.checkpoint_loops`][] was given.

    - `name`: where it is: the names of functions under `jax.jit`, of scopes made with
        `jax.named_scope` and of the loops around it, ending in "scan" or "while".
    - `source`: the file and line that it comes from, "model.py:42".
    - `kind`: "scan" or "while". A `fori_loop` is one or the other: a scan if its bounds are known
        when it is traced.
    - `length`: its steps, or `None` for a while loop.
    - `depth`: how many loops it is in.
    - `carry_bytes`: what its carry takes.
    - `residual_bytes`: what `jax.lax` keeps of each step for the reverse pass, where nothing is
        checkpointed. Measured when it is asked for, by tracing the derivative of a step.
    """

    name: str
    source: str
    kind: str
    length: int | None
    depth: int
    carry_bytes: int
    _eqn: Any = field(repr=False)
    _place: Place = field(repr=False)

    @cached_property
    def residual_bytes(self) -> int:
        report = self.measure({}, Replacement(Plan(self.length or 1, 1), 1))
        return 0 if report is None else report.sizes.alone

    @property
    def plain_bytes(self) -> int | None:
        """What the gradient of `jax.lax`'s loop keeps; `None` for a while loop, which has none."""
        return None if self.length is None else self.length * self.residual_bytes

    @property
    def key(self) -> Key:
        return self._place.key

    def measure(self, inside: Replacements, own: Replacement) -> Report | None:
        """What the gradient takes with these replacements, or `None` if it has none."""
        index = self.key[-1]
        place = Place(self.key[:-1], enclosing=self._place.enclosing)
        eqn = _replace_inside(self._eqn, index, place, inside)

        def look() -> Report | None:
            try:
                return report_of(own.loop(eqn), _compat.operands_like(eqn))
            except NoDerivative:
                return None

        return _compat.within(self._place.enclosing, look)


def find_loops(jaxpr: Any, place: Place | None = None) -> Iterator[FoundLoop]:
    """The loops of a program, each before those that are in it."""
    place = place or Place()
    for index, eqn in enumerate(jaxpr.eqns):
        equation = _compat.read_loop(eqn)
        if equation is not None:
            yield FoundLoop(
                name="/".join([*place.names, *_compat.name_in(eqn)]),
                source=place.source_of(eqn),
                kind="scan" if equation.condition is None else "while",
                length=equation.length,
                depth=place.depth,
                carry_bytes=_compat.bytes_of(equation.output_types[: equation.num_carry]),
                _eqn=eqn,
                _place=Place((*place.key, index), enclosing=place.enclosing),
            )
        into = place.into(index, eqn)
        for part, inner in enumerate(place.programs(eqn)):
            yield from find_loops(inner, into(part))


def replace_loops(jaxpr: Any, replacements: Replacements, place: Place | None = None) -> Any:
    """The program with these loops in it checkpointed. What holds none of them stays the same."""
    place = place or Place()
    equations = [_replace(eqn, index, place, replacements) for index, eqn in enumerate(jaxpr.eqns)]
    if all(new is old for new, old in zip(equations, jaxpr.eqns, strict=True)):
        return jaxpr
    return _compat.with_equations(jaxpr, equations)


def _replace(eqn: Any, index: int, place: Place, replacements: Replacements) -> Any:
    eqn = _replace_inside(eqn, index, place, replacements)
    replacement = replacements.get((*place.key, index))
    if replacement is None:
        return eqn
    loop = replacement.loop(eqn)
    if loop.condition is None or loop.length is None:
        return eqn.replace(primitive=loop_p, params=loop.params())

    def run(*operands: Any) -> Any:
        results = run_loop(loop, list(operands))
        return raise_if_stopped(loop, list(operands), results, results)

    return _compat.call_in_place(run, eqn, place.enclosing)


def _replace_inside(eqn: Any, index: int, place: Place, replacements: Replacements) -> Any:
    key = (*place.key, index)
    if not any(k[: len(key)] == key and len(k) > len(key) for k in replacements):
        return eqn
    into = place.into(index, eqn)
    old = place.programs(eqn)
    new = [replace_loops(program, replacements, into(part)) for part, program in enumerate(old)]
    return _compat.with_inner_programs(eqn, new, place.enclosing)
