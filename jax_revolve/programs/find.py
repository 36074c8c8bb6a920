"""The loops of a program that is already written: finding them, and putting checkpointed ones in
their places.

A program is a jaxpr. What it runs, at any depth, is a tree of equations; a loop is known by its
`Key`, the way to it: which equation, which of the jaxprs in that, which equation there, and so on.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

from jax_revolve import _compat
from jax_revolve.autodiff.loop_primitive import loop_p, run_loop
from jax_revolve.autodiff.refusal import without_reverse_mode
from jax_revolve.loops.explain import NoDerivative, chosen_plan, report_of, residual_bytes
from jax_revolve.loops.options import LARGEST_BOUND
from jax_revolve.loops.while_loop import raise_if_stopped
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.report.report import Report
from jax_revolve.schedule.selection import Request
from jax_revolve.schedule.two_level import AnyPlan
from jax_revolve.step.loop import Loop, NoReverseMode, is_inexact

T = TypeVar("T")

Key: TypeAlias = tuple[int, ...]

Replacements: TypeAlias = Mapping[Key, "Replacement"]


@dataclass(frozen=True)
class Replacement:
    """The checkpointed loop in place of one of lax's: its plan and, for a while loop, its bound.

    Without a plan it is lax's own while loop, of which reverse mode says what it needs.
    """

    plan: AnyPlan | Request | None
    max_steps: int | None

    def loop(self, eqn: Any) -> Loop:
        equation = _compat.read_loop(eqn)
        assert equation is not None
        length = self.max_steps if equation.condition is not None else equation.length
        return Loop.of(equation, length, self.plan)


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
    - `residual_bytes`: what `jax.lax` keeps of each step for the reverse pass at most, where
        nothing is checkpointed. While loops in it, which have no reverse mode then, count with
        their first carries. Measured when it is asked for, by tracing the derivative of a step.
    """

    name: str
    source: str
    kind: str
    length: int | None
    depth: int
    carry_bytes: int
    _eqn: Any = field(repr=False)
    _place: Location = field(repr=False)
    _measured: dict[Any, Any] = field(repr=False, compare=False)
    """What was found out about the loops of the program, by what it depends on."""

    @cached_property
    def residual_bytes(self) -> int:
        return self.bytes_of_a_step({loop.key: _ONE_CARRY for loop in self._while_loops}) or 0

    @property
    def plain_bytes(self) -> int | None:
        """What the gradient of `jax.lax`'s loop keeps at most; `None` for a while loop and for one
        that has a while loop in it, which have none."""
        if self.length is None or self._while_loops:
            return None
        return self.length * self.residual_bytes

    @property
    def has_floats(self) -> bool:
        """Whether there is anything in its results that could be differentiated."""
        return any(is_inexact(v.aval) for v in self._eqn.outvars)

    @property
    def varies_unevenly(self) -> bool:
        """Whether it is a while loop in `jax.shard_map` whose devices take different numbers of
        steps, and yet a part of its carry is typed as the same on all of them."""
        return self.length is None and _compat.varies_unevenly(self._eqn)

    @property
    def key(self) -> Key:
        return self._place.key

    @property
    def recomputed(self) -> tuple[Key, ...]:
        """The ways to what it is in, and what is run again when it is transposed."""
        return self._place.recomputed

    def bytes_of_a_step(self, inside: Replacements) -> int | None:
        """What `jax.lax` keeps of each step with these replacements in it, or `None` if it has no
        gradient."""
        inside = self._among(inside)
        reversible = {key for key, replacement in inside.items() if replacement.plan is not None}
        if any(loop.key not in reversible for loop in self._while_loops):
            return None
        equation = _compat.read_loop(self._eqn)
        assert equation is not None
        # Loops of the same function have the very same step, however long they are.
        kept = (equation.jaxpr, equation.condition, equation.num_consts, self._place.enclosing)
        relative = frozenset((key[len(self.key) :], value) for key, value in inside.items())
        known = ("bytes", kept, relative)
        if known not in self._measured:
            report = self._measured.get(self._report_key(inside))
            self._measured[known] = (
                report.sizes.alone if report else self._look(inside, residual_bytes)
            )
        return self._measured[known]

    def measure(self, inside: Replacements, own: Replacement) -> Report | None:
        """What the gradient takes with these replacements, or `None` if it has none."""
        report = self._measure(inside)
        if report is None:
            return None
        return replace(report, plan=chosen_plan(own.loop(self._eqn), report.sizes))

    @cached_property
    def _while_loops(self) -> list["FoundLoop"]:
        place = replace(self._place, key=self.key[:-1])
        into = place.into(self.key[-1], self._eqn)
        return [
            loop
            for part, inner in enumerate(place.programs(self._eqn))
            for loop in find_loops(inner, into(part))
            if loop.length is None and loop.has_floats
        ]

    def _measure(self, inside: Replacements) -> Report | None:
        """With a plan that stands for any other."""
        inside = self._among(inside)
        known = self._report_key(inside)
        if known not in self._measured:
            self._measured[known] = self._look(inside, report_of)
        return self._measured[known]

    def _report_key(self, inside: Replacements) -> Any:
        return "report", self.key, frozenset(inside.items())

    def _among(self, replacements: Replacements) -> Replacements:
        return {key: value for key, value in replacements.items() if _is_in(key, self.key)}

    def _look(self, inside: Replacements, find: Callable[[Loop, list[Any]], T]) -> T | None:
        """What is found out with these replacements; `None` without reverse mode."""
        place = replace(self._place, key=self.key[:-1])
        eqn = _replace_inside(self._eqn, self.key[-1], place, inside)
        any_plan = Replacement(Plan(self.length or 1, 1), 1)

        def look() -> T | None:
            try:
                return find(any_plan.loop(eqn), _compat.operands_like(eqn))
            except (NoDerivative, NoReverseMode):
                return None

        return _compat.within(self._place.enclosing, look)


_ONE_CARRY = Replacement(Plan(LARGEST_BOUND, 1), None)


def _is_in(key: Key, outer: Key) -> bool:
    return len(key) > len(outer) and key[: len(outer)] == outer


def _equations(jaxpr: Any, place: Location) -> Iterator[tuple[Any, int, Location]]:
    """What a program runs, each before what is in it: equations, their numbers, and where."""
    for index, eqn in enumerate(jaxpr.eqns):
        yield eqn, index, place
        if programs := place.programs(eqn):
            into = place.into(index, eqn)
            for part, inner in enumerate(programs):
                yield from _equations(inner, into(part))


def find_loops(jaxpr: Any, place: Location | None = None) -> Iterator[FoundLoop]:
    """The loops of a program, each before those that are in it."""
    measured: dict[Any, Any] = {}
    for eqn, index, here in _equations(jaxpr, place or Location()):
        equation = _compat.read_loop(eqn)
        if equation is not None:
            yield FoundLoop(
                name=here.name_of(eqn),
                source=here.source_of(eqn),
                kind="scan" if equation.condition is None else "while",
                length=equation.length,
                depth=here.depth,
                carry_bytes=_compat.bytes_of(equation.output_types[: equation.num_carry]),
                _eqn=eqn,
                _place=replace(here, key=(*here.key, index)),
                _measured=measured,
            )


def find_rules(jaxpr: Any) -> tuple[str, ...]:
    """The functions of a program that run loops and have a `custom_vjp` rule, which says what they
    keep."""
    found = (_compat.reverse_rule_with_loops(eqn) for eqn, _, _ in _equations(jaxpr, Location()))
    return tuple(dict.fromkeys(name for name in found if name is not None))


def replace_loops(jaxpr: Any, replacements: Replacements, place: Location | None = None) -> Any:
    """The program with these loops in it checkpointed. What holds none of them stays the same."""
    place = place or Location()
    equations = [_replace(eqn, index, place, replacements) for index, eqn in enumerate(jaxpr.eqns)]
    if all(new is old for new, old in zip(equations, jaxpr.eqns, strict=True)):
        return jaxpr
    return _compat.with_equations(jaxpr, equations)


def _replace(eqn: Any, index: int, place: Location, replacements: Replacements) -> Any:
    eqn = _replace_inside(eqn, index, place, replacements)
    replacement = replacements.get((*place.key, index))
    if replacement is None:
        return eqn
    if replacement.plan is None:
        return _compat.call_in_place(_without_a_bound(eqn, place), eqn, place.enclosing)
    loop = replacement.loop(eqn)
    if loop.condition is None or loop.length is None:
        return eqn.replace(primitive=loop_p, params=loop.params())

    def run(*operands: Any) -> Any:
        results = run_loop(loop, list(operands))
        return raise_if_stopped(loop, list(operands), results, results)

    return _compat.call_in_place(run, eqn, place.enclosing)


def _without_a_bound(eqn: Any, place: Location) -> Callable[..., Sequence[Any]]:
    """lax's own while loop, with an error of ours in reverse mode."""
    message = (
        f"max_steps must be an int to differentiate the loop {place.name_of(eqn)!r} of "
        f"{place.source_of(eqn)} in reverse mode, but is None: it is a while loop, which has no "
        "reverse mode without a bound. Pass max_steps, the most steps that it may take, or "
        "checkpoints, the number of carries to store, to checkpoint_loops, or for this loop alone "
        "by where."
    )
    return lambda *operands: without_reverse_mode(_compat.run_in_place(eqn, operands), message)


def _replace_inside(eqn: Any, index: int, place: Location, replacements: Replacements) -> Any:
    key = (*place.key, index)
    if not any(_is_in(k, key) for k in replacements):
        return eqn
    into = place.into(index, eqn)
    old = place.programs(eqn)
    new = [replace_loops(program, replacements, into(part)) for part, program in enumerate(old)]
    return _compat.with_inner_programs(eqn, new, place.enclosing)
