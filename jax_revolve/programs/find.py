"""The loops of a program: where they are, what their gradients take, and their replacements.

A program is a jaxpr, and so a tree of equations. The `Key` of a loop is the path to it: the index
of an equation, the index of a jaxpr in it, the index of an equation there, and so on.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, NamedTuple, TypeAlias

import jax

from jax_revolve._compat.jaxprs import (
    name_of,
    name_of_function,
    parameters_of,
    with_equations,
)
from jax_revolve._compat.values import bytes_of, pick, zeros
from jax_revolve.autodiff.loop import loop_p, run_loop
from jax_revolve.autodiff.refusal import without_reverse_mode
from jax_revolve.engine.tape.tape import sizes_of, taped_step
from jax_revolve.jaxprs.equations import (
    is_recomputed,
    is_shard_map,
    name_in,
    source_of,
)
from jax_revolve.jaxprs.evaluate import call_in_place, operands_like, run_in_place, within
from jax_revolve.jaxprs.walk import (
    inner_jaxprs,
    inner_programs,
    not_differentiated,
    others,
    with_inner_programs,
)
from jax_revolve.loops.while_loop import run_or_raise
from jax_revolve.progress.meters import Listener
from jax_revolve.schedule.cost import Sizes
from jax_revolve.schedule.options import LARGEST_BOUND, Options
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.report import Report
from jax_revolve.step.equation import read_loop
from jax_revolve.step.linearized import Activity, find_activity, linearized
from jax_revolve.step.loop import Loop, NoReverseMode, is_inexact

Key: TypeAlias = tuple[int, ...]
Replacements: TypeAlias = Mapping[Key, "Replacement"]
Facts: TypeAlias = tuple[Sizes, Activity]


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
    key: Key = field(repr=False)
    # The keys of the equations around it that are recomputed when they are transposed.
    recomputed: tuple[Key, ...] = field(repr=False)
    # The `shard_map` equations around it.
    enclosing: tuple[Any, ...] = field(repr=False, compare=False)
    _eqn: Any = field(repr=False, compare=False)
    # All loops of the program.
    _loops: list["FoundLoop"] = field(repr=False, compare=False)

    @cached_property
    def residual_bytes(self) -> int:
        one_carry = Plan(LARGEST_BOUND, 1)
        inside = {loop.key: Replacement(loop, one_carry, None) for loop in self._while_loops}
        return self.bytes_of_a_step(inside) or 0

    @property
    def plain_bytes(self) -> int | None:
        """The most bytes that the gradient of `jax.lax`'s loop keeps; `None` for a while loop, and
        for a loop with a while loop inside, which have no gradient."""
        if self.kind == "while" or self.length is None or self._while_loops:
            return None
        return self.length * self.residual_bytes

    def bytes_of_a_step(self, replacements: Replacements) -> int | None:
        """The bytes that `jax.lax` keeps of a step with these replacements inside, if any."""
        facts = self._facts(replacements)
        return None if facts is None else facts[0].uncut

    def loop(self, replacements: Replacements) -> Loop:
        """The loop itself, or its replacement, as a loop of this library."""
        eqn = _with_inside(self._eqn, self.key, replacements)
        own = replacements.get(self.key)
        return eqn.params["function"] if own is None else own.loop(eqn)

    def measure(self, replacements: Replacements) -> Report | None:
        """The report on its gradient with these replacements; `None` without a plan or gradient."""
        other = replacements.get(self.key)
        loop = self._eqn.params.get("function") if other is None else other.loop(self._eqn)
        if loop is None or loop.plan is None or (facts := self._facts(replacements)) is None:
            return None
        sizes, activity = facts
        consts, _, xs = loop.operands([v.aval for v in self._eqn.invars])
        _, ys = loop.results(loop.output_types)
        always = {
            "xs": bytes_of(xs),
            "cotangents of xs": bytes_of(pick(xs, activity.xs)),
            "ys": bytes_of(ys),
            "cotangents of ys": bytes_of(pick(ys, activity.ys)),
            "cotangents of closed-over values": bytes_of(pick(consts, activity.consts)),
        }
        where = (self.name, self.source, self.runs, self.is_own)
        is_while = self.kind == "while"
        plan = resolved(loop.plan, loop.length, sizes, is_while=is_while)
        return Report(plan, sizes, always, is_while, *where)

    @property
    def _while_loops(self) -> list["FoundLoop"]:
        """The while loops inside that `jax.lax` cannot reverse."""
        return [
            loop
            for loop in self._loops
            if is_in(loop.key, self.key) and loop.length is None and not loop.is_own
            if any(is_inexact(v.aval) for v in loop._eqn.outvars)
        ]

    def _facts(self, replacements: Replacements) -> Facts | None:
        """The sizes and the activity with these replacements inside, if all operands are
        differentiated; `None` without reverse mode."""
        if not self.is_own:
            any_plan = Replacement(self, Plan(self.length or 1, 1), 1)
            replacements = {**replacements, self.key: any_plan}

        loop = self.loop(replacements)

        def find() -> Facts | None:
            operands = operands_like(self._eqn)
            inputs, first = loop.operands(operands), loop.num_condition_consts
            if loop.length == 0:  # the xs have no slice
                one = [zeros(jax.typeof(x).update(shape=(1, *x.shape[1:]))) for x in inputs.xs]
                inputs = inputs._replace(xs=one)
            mask = [is_inexact(x) and i >= first for i, x in enumerate(operands)]
            if not any((activity := find_activity(loop, mask)).results):
                return None
            step = linearized(loop, activity, inputs)
            is_transposable = taped_step(step).is_transposable
            return (sizes_of(loop, step, inputs), activity) if is_transposable else None

        try:
            return within(self.enclosing, find)
        except NoReverseMode:
            return None


def is_in(key: Key, outer: Key) -> bool:
    return len(key) > len(outer) and key[: len(outer)] == outer


def _loop_in(eqn: Any) -> Loop | None:
    """The equation as a loop of this library or of lax, if it is one."""
    return eqn.params["function"] if eqn.primitive is loop_p else read_loop(eqn)


# Finding


def _equations(
    jaxpr: Any, around: tuple[Any, ...] = (), key: Key = ()
) -> Iterator[tuple[Any, Key, tuple[Any, ...]]]:
    """The equations of a program, outer ones first, with their keys and enclosing equations."""
    for index, eqn in enumerate(jaxpr.eqns):
        yield eqn, (*key, index), around
        for part, inner in enumerate(inner_programs(eqn)):
            yield from _equations(inner, (*around, eqn), (*key, index, part))


def find_loops(jaxpr: Any) -> list[FoundLoop]:
    """The loops of a program, each before those inside it."""
    loops: list[FoundLoop] = []
    for eqn, key, around in _equations(jaxpr):
        if (equation := _loop_in(eqn)) is None:
            continue
        outer = [loop.length for loop in map(_loop_in, around) if loop is not None]
        known = [length for length in outer if length is not None]
        loops.append(
            FoundLoop(
                name="/".join(_names((*around, eqn))),
                source=_source((*around, eqn)),
                kind="scan" if equation.condition is None else "while",
                length=equation.length,
                depth=len(outer),
                runs=prod(known) if known == outer else None,
                is_own=eqn.primitive is loop_p,
                carry_bytes=bytes_of(equation.output_types[: equation.num_carry]),
                key=key,
                recomputed=tuple(
                    key[: 2 * i + 1] for i, outer in enumerate(around) if is_recomputed(outer)
                ),
                enclosing=tuple(filter(is_shard_map, around)),
                _eqn=eqn,
                _loops=loops,
            )
        )
    return loops


def _names(equations: Iterable[Any]) -> list[str]:
    return [name for eqn in equations for name in name_in(eqn)]


def _source(equations: Sequence[Any]) -> str:
    """The source line of the innermost of these equations that has one."""
    return next(filter(None, map(source_of, reversed(equations))), "")


_OWN_RULE = "a derivative rule of its own determines its residuals"

_EXPECTED = {
    **dict.fromkeys(("custom_jvp_call", "custom_vjp_call", "linear_call"), _OWN_RULE),
    **dict.fromkeys(("remat_opt", "OptRemat", "CustomRoot"), _OWN_RULE),
    "pallas_call": "a kernel keeps no residuals",
}
"""Equations whose programs deliberately stay unchanged, and why. Tracing a derivative rule here
might give it a tangent that it refuses."""

_UNREADABLE = {
    "Scan3": "JAX's new scans, with jax_scan3, have no reverse mode",
    "scan": "jax_revolve cannot checkpoint a loop over values that are not arrays",
    "while": "jax_revolve cannot checkpoint a loop over values that are not arrays",
}
"""Loops of lax that `read_loop` does not read."""


class NotEntered(NamedTuple):
    """An equation with loops of `jax.lax` that stay unchanged: its name, the reason, the length of
    the longest loop, `None` if a loop has none, and whether we expect it."""

    name: str
    reason: str
    longest: int | None
    is_expected: bool


def find_not_entered(jaxpr: Any) -> list[NotEntered]:
    """The equations that run loops of lax that `find_loops` does not find."""
    found = []
    for eqn, _, around in _equations(jaxpr):
        source = _source((*around, eqn))
        name = "/".join(_names((*around, eqn)))
        found.append(_not_entered(eqn, f"{name} of {source}" if source else name))
    return [each for each in found if each is not None]


def _not_entered(eqn: Any, name: str) -> NotEntered | None:
    """The loops that an equation runs and that `find_loops` cannot enter, if any."""
    kind = name_of(eqn)
    if kind.startswith(("checkpointed_", "apart")):
        return None  # this library's own equations, whose loops are checkpointed
    lengths, programs = [], others(eqn)
    if kind in _UNREADABLE and read_loop(eqn) is None:
        lengths.append(parameters_of(eqn).get("length"))
    lengths += [length for program in programs for length in _lengths(program)]
    if not lengths:
        apart = [length for program in not_differentiated(eqn) for length in _lengths(program)]
        reason = f"{kind} does not differentiate them, and keeps no residuals of them"
        return NotEntered(name, reason, None, is_expected=True) if apart else None
    if kind in _EXPECTED:
        name = name_of_function(programs[0])
    reasons = {**_UNREADABLE, **_EXPECTED}
    reason = reasons.get(kind, f"jax_revolve does not know what the equation {kind} does")
    longest = None if None in lengths else max(lengths)
    return NotEntered(name, reason, longest, kind in _EXPECTED)


def _lengths(program: Any) -> list[int | None]:
    """The lengths of lax's loops in a program, at any depth."""
    loops = [eqn for eqn in program.eqns if name_of(eqn) in _UNREADABLE]
    inside = [inner for eqn in program.eqns for inner in inner_jaxprs(eqn)]
    found = [parameters_of(eqn).get("length") for eqn in loops]
    return found + [length for inner in inside for length in _lengths(inner)]


def takes_derivatives(jaxpr: Any) -> bool:
    """Whether a program runs derivatives of loops."""
    return any(
        eqn.primitive.name.startswith("checkpointed_loop_")
        or (_loop_in(eqn) and any("transpose(" in name for name in _names((*around, eqn))))
        for eqn, _, around in _equations(jaxpr)
    )


def resolved(plan: Plan | Options, length: int | None, sizes: Sizes, *, is_while: bool) -> Plan:
    return plan if isinstance(plan, Plan) else plan.resolve(length, sizes, is_while=is_while)


# Replacing


@dataclass(frozen=True)
class Replacement:
    """The checkpointed loop that replaces one of lax's: its plan and, for a while loop, its bound.

    Without a plan, the replacement is lax's own while loop, with an error in reverse mode that
    names the missing argument.
    """

    of: FoundLoop = field(compare=False)
    plan: Plan | Options | None
    max_steps: int | None
    progress: Listener | None = None

    def loop(self, eqn: Any) -> Loop:
        equation = read_loop(eqn)
        assert equation is not None
        length = self.max_steps if equation.condition is not None else equation.length
        return equation.with_plan(length, self.plan)

    def equation(self, eqn: Any) -> Any:
        if self.plan is None:
            message = (
                f"max_steps must be an int to differentiate the loop {self.of.name!r} of "
                f"{self.of.source} in reverse mode, but is None: it is a while loop, which has no "
                "reverse mode without a bound. Pass max_steps, the most steps that it may take, or "
                "checkpoints, the number of carries to store, to checkpoint_loops, or for this "
                "loop alone by where."
            )

            def refuse(*operands: Any) -> Any:
                return without_reverse_mode(run_in_place(eqn, operands), message)

            return call_in_place(refuse, eqn, self.of.enclosing)
        loop = self.loop(eqn)
        can_stop_early = loop.condition is not None and loop.length is not None
        if not can_stop_early and self.progress is None:
            return eqn.replace(primitive=loop_p, params={"function": loop})

        def run(*operands: Any) -> Any:
            if not can_stop_early:
                return run_loop(loop, list(operands), self.progress)
            return run_or_raise(loop, list(operands), self.progress)[1]

        return call_in_place(run, eqn, self.of.enclosing)


def replace_loops(jaxpr: Any, replacements: Replacements, around: Key = ()) -> Any:
    """The program with these loops replaced; the same object if it contains none of them."""
    equations = []
    for index, eqn in enumerate(jaxpr.eqns):
        key = (*around, index)
        new = _with_inside(eqn, key, replacements)
        equations.append(replacements[key].equation(new) if key in replacements else new)
    return with_equations(jaxpr, equations)


def _with_inside(eqn: Any, key: Key, replacements: Replacements) -> Any:
    """The equation with these replacements inside."""
    if not any(is_in(other, key) for other in replacements):
        return eqn
    programs = enumerate(inner_programs(eqn))
    new = [replace_loops(program, replacements, (*key, part)) for part, program in programs]
    return with_inner_programs(eqn, new)
