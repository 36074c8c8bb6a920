"""The loops of a program, and their properties."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax

from jax_revolve import _compat
from jax_revolve._compat import bytes_of, zeros
from jax_revolve.autodiff.loop_primitive import loop_p
from jax_revolve.autodiff.sizes import sizes_of
from jax_revolve.loops.options import LARGEST_BOUND
from jax_revolve.programs.location import (
    Key,
    Location,
    Replacement,
    Replacements,
    is_in,
    loop_in,
)
from jax_revolve.programs.replace import replace_inside
from jax_revolve.schedule.cost import Sizes
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.report import Report
from jax_revolve.schedule.selection import Request
from jax_revolve.schedule.two_level import AnyPlan
from jax_revolve.step.activity import Activity, find_activity
from jax_revolve.step.loop import Loop, NoReverseMode, is_inexact, pick
from jax_revolve.step.restart import find_restart


@dataclass(frozen=True)
class FoundLoop:
    """A loop in a function that [`jax_revolve.checkpoint_loops`][] or [`jax_revolve.explain`][] was
    given.

    - `name`: where it is: the names of functions under `jax.jit`, of scopes made with
        `jax.named_scope` and of the loops around it, ending in "scan" or "while".
    - `source`: the file and line that it comes from, "model.py:42".
    - `kind`: "scan" or "while". A `fori_loop` is one or the other: a scan if its bounds are known
        when it is traced.
    - `length`: its steps; `None` for a while loop of `jax.lax`, and the bound of one of this
        library.
    - `depth`: the number of loops around it.
    - `runs`: how often it runs, at most: as often as the loops around it have steps. `None` inside
        a while loop without a bound.
    - `is_own`: whether it is a loop of this library, not of `jax.lax`.
    - `carry_bytes`: the bytes of its carry.
    - `residual_bytes`: the most bytes that `jax.lax` keeps of each step for the reverse pass,
        without checkpoints. While loops inside, which have no reverse mode then, count with their
        initial carries. Measured on first use, by tracing the derivative of a step.
    """

    name: str
    source: str
    kind: str
    length: int | None
    depth: int
    runs: int | None
    is_own: bool
    carry_bytes: int
    _eqn: Any = field(repr=False)
    _place: Location = field(repr=False)
    _measured: dict[Any, Any] = field(repr=False, compare=False)
    """Measurements of the program's loops, by what they depend on."""

    @cached_property
    def residual_bytes(self) -> int:
        return self.bytes_of_a_step({loop.key: _ONE_CARRY for loop in self._while_loops}) or 0

    @property
    def plain_bytes(self) -> int | None:
        """The most bytes that the gradient of `jax.lax`'s loop keeps; `None` for a while loop, and
        for a loop with a while loop inside, which have no gradient."""
        if self.kind == "while" or self.length is None or self._while_loops:
            return None
        return self.length * self.residual_bytes

    @property
    def has_floats(self) -> bool:
        """Whether any of its results can have a derivative."""
        return any(is_inexact(v.aval) for v in self._eqn.outvars)

    @property
    def varies_unevenly(self) -> bool:
        """Whether it is a while loop in `jax.shard_map` whose devices take different numbers of
        steps, although part of its carry is typed as the same on all of them."""
        return not self.is_own and self.kind == "while" and _compat.varies_unevenly(self._eqn)

    @property
    def key(self) -> Key:
        return self._place.key

    @property
    def recomputed(self) -> tuple[Key, ...]:
        """The keys of the equations around it that run again when they are transposed."""
        return self._place.recomputed

    def bytes_of_a_step(self, inside: Replacements) -> int | None:
        """The bytes that `jax.lax` keeps of each step with these replacements inside, or `None` if
        it has no gradient."""
        reversible = {key for key, replacement in inside.items() if replacement.plan is not None}
        if any(loop.key not in reversible for loop in self._while_loops):
            return None
        facts = self._facts(inside)
        return None if facts is None else facts[0].uncut

    def loop(self, inside: Replacements, own: Replacement | None) -> Loop:
        """The loop of this library that it is, or that its replacement is."""
        eqn = self._with(inside)
        return eqn.params["function"] if own is None else own.loop(eqn)

    def measure(self, inside: Replacements, own: Replacement | None) -> Report | None:
        """The report on the gradient with these replacements, or `None` if it has none. A loop of
        this library has its own plan."""
        facts = self._facts(inside)
        plan = self._eqn.params["function"].plan if own is None else own.plan
        if facts is None or plan is None:
            return None
        sizes, always = facts[0], _always(self.loop({}, own), self._eqn, facts[1])
        where = (self.name, self.source, self.runs, self.is_own)
        return Report(resolved(plan, sizes), sizes, always, self.kind == "while", *where)

    @cached_property
    def _while_loops(self) -> list["FoundLoop"]:
        place = replace(self._place, key=self.key[:-1])
        into = place.into(self.key[-1], self._eqn)
        return [
            loop
            for part, inner in enumerate(_compat.inner_programs(self._eqn))
            for loop in find_loops(inner, into(part))
            if loop.length is None and loop.has_floats and not loop.is_own
        ]

    def _facts(self, inside: Replacements) -> "Facts | None":
        """What there is to know of a gradient with these replacements, if it has one."""
        inside = {key: value for key, value in inside.items() if is_in(key, self.key)}
        equation = loop_in(self._eqn)
        assert equation is not None
        # Loops of the same function share the jaxpr of the step, whatever their lengths.
        kept = (equation.jaxpr, equation.condition, equation.num_consts, self._place.enclosing)
        known = (kept, frozenset((key[len(self.key) :], value) for key, value in inside.items()))
        if known not in self._measured:
            self._measured[known] = self._look(inside)
        return self._measured[known]

    def _with(self, inside: Replacements) -> Any:
        """The equation with these replacements."""
        place = replace(self._place, key=self.key[:-1])
        return replace_inside(self._eqn, self.key[-1], place, inside)

    def _look(self, inside: Replacements) -> "Facts | None":
        any_plan = Replacement(Plan(self.length or 1, 1), 1)
        loop = self.loop(inside, None if self.is_own else any_plan)

        def look() -> Facts | None:
            try:
                return _facts(loop, _compat.operands_like(self._eqn))
            except NoReverseMode:
                return None

        return _compat.within(self._place.enclosing, look)


_ONE_CARRY = Replacement(Plan(LARGEST_BOUND, 1), None)


def _equations(jaxpr: Any, place: Location) -> Iterator[tuple[Any, int, Location]]:
    """The equations of a program, each before those inside it, with its number and the location of
    its jaxpr."""
    for index, eqn in enumerate(jaxpr.eqns):
        yield eqn, index, place
        if programs := _compat.inner_programs(eqn):
            into = place.into(index, eqn)
            for part, inner in enumerate(programs):
                yield from _equations(inner, into(part))


def find_loops(jaxpr: Any, place: Location | None = None) -> Iterator[FoundLoop]:
    """The loops of a program, each before those inside it."""
    measured: dict[Any, Any] = {}
    for eqn, index, here in _equations(jaxpr, place or Location()):
        equation = loop_in(eqn)
        if equation is not None:
            yield FoundLoop(
                name=here.name_of(eqn),
                source=here.source_of(eqn),
                kind="scan" if equation.condition is None else "while",
                length=equation.length,
                depth=here.depth,
                runs=here.runs,
                is_own=eqn.primitive is loop_p,
                carry_bytes=_compat.bytes_of(equation.output_types[: equation.num_carry]),
                _eqn=eqn,
                _place=replace(here, key=(*here.key, index)),
                _measured=measured,
            )


def find_rules(jaxpr: Any) -> tuple[str, ...]:
    """The functions of a program that run loops and have a derivative rule of their own, which
    determines their residuals."""
    found = (_compat.rule_with_loops(eqn) for eqn, _, _ in _equations(jaxpr, Location()))
    return tuple(dict.fromkeys(name for name in found if name is not None))


def takes_derivatives(jaxpr: Any) -> bool:
    """Whether a program runs derivatives of loops, which are no loops that have a gradient."""
    return any(
        eqn.primitive.name.startswith("checkpointed_loop_")
        or (loop_in(eqn) is not None and "transpose(" in here.name_of(eqn))
        for eqn, _, here in _equations(jaxpr, Location())
    )


Facts = tuple[Sizes, Activity]


def _facts(loop: Loop, operands: list[Any]) -> Facts | None:
    """The sizes of a loop, and what is active, as if all operands were differentiated that can be;
    `None` if there is nothing to differentiate."""
    inputs, first = loop.operands(operands), loop.num_condition_consts
    if loop.length == 0:  # there is no slice to look at
        one = [zeros(jax.typeof(x).update(shape=(1, *x.shape[1:]))) for x in inputs.xs]
        inputs = inputs._replace(xs=one)
    activity = find_activity(loop, [is_inexact(x) and i >= first for i, x in enumerate(operands)])
    if not any(activity.results):
        return None
    return sizes_of(loop, activity, find_restart(loop, activity, inputs), inputs), activity


def _always(loop: Loop, eqn: Any, activity: Activity) -> dict[str, int]:
    """The bytes that every plan needs, by name."""
    consts, _, xs = loop.operands([v.aval for v in eqn.invars])
    _, ys = loop.results(loop.output_types)
    return {
        "xs": bytes_of(xs),
        "cotangents of xs": bytes_of(pick(xs, activity.xs)),
        "ys": bytes_of(ys),
        "cotangents of ys": bytes_of(pick(ys, activity.ys)),
        "cotangents of closed-over values": bytes_of(pick(consts, activity.consts)),
    }


def resolved(plan: AnyPlan | Request, sizes: Sizes) -> AnyPlan:
    """The plan of a loop of these sizes."""
    return plan.resolve(sizes) if isinstance(plan, Request) else plan
