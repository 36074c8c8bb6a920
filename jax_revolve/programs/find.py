"""The loops of a program: where they are, what their gradients take, and their replacements.

A program is a jaxpr, and so a tree of equations. What a loop's gradient takes, we read from the
derivative of the whole program, with the loop's replacement in its place: see `derivative`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, NamedTuple, TypeAlias

from jax_revolve._compat.functions import Mask
from jax_revolve._compat.jaxprs import (
    closed_call_p,
    name_of,
    name_of_function,
    parameters_of,
    with_equations,
)
from jax_revolve._compat.values import bytes_of
from jax_revolve.autodiff.loop import loop_p, run_loop
from jax_revolve.autodiff.refusal import without_reverse_mode
from jax_revolve.jaxprs.equations import (
    is_recomputed,
    is_shard_map,
    name_in,
    source_of,
)
from jax_revolve.jaxprs.evaluate import call_in_place, run_in_place
from jax_revolve.jaxprs.walk import (
    inner_jaxprs,
    inner_programs,
    is_equinox_loop,
    not_differentiated,
    others,
    with_inner_programs,
)
from jax_revolve.loops.while_loop import run_or_raise
from jax_revolve.programs.derivative import (
    Decided,
    Decisions,
    Key,
    decisions,
    equations,
    gradient_of,
    is_forward_sweep,
    is_reverse_sweep,
    with_keys,
)
from jax_revolve.programs.guards import without_guards
from jax_revolve.progress.meters import Listener
from jax_revolve.schedule.cost import Sizes
from jax_revolve.schedule.options import LARGEST_BOUND, Options
from jax_revolve.schedule.plan import Plan
from jax_revolve.step.cpu import with_windows_apart
from jax_revolve.step.equation import read_loop
from jax_revolve.step.loop import Loop

Replacements: TypeAlias = Mapping[Key, "Replacement"]


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
    - `bound`: the most steps of a while loop, if its condition, or a part of it joined by `&`,
        compares an integer with a constant. Each step must add the same number to that, and its
        start must be known.
    - `is_equinox`: whether it is a loop of Equinox with `kind="checkpointed"`.
    - `carry_bytes`: the bytes of its carry.
    - `residual_bytes`: the most bytes that `jax.lax` keeps of each step for the reverse pass,
        without checkpoints. While loops inside, which have no reverse mode then, count with their
        initial carries. Measured on first use, by tracing the derivative of the function.
    """

    name: str
    source: str
    kind: str
    length: int | None
    depth: int
    runs: int | None
    is_own: bool
    bound: int | None
    is_equinox: bool
    carry_bytes: int
    key: Key = field(repr=False)
    # The keys of the equations around it that are recomputed when they are transposed.
    recomputed: tuple[Key, ...] = field(repr=False)
    # The `shard_map` equations around it.
    enclosing: tuple[Any, ...] = field(repr=False, compare=False)
    _eqn: Any = field(repr=False, compare=False)
    program: "Program" = field(repr=False, compare=False)

    @property
    def own_plan(self) -> Plan | Options | None:
        """The plan of a loop of this library."""
        return self._eqn.params["function"].plan if self.is_own else None

    @cached_property
    def residual_bytes(self) -> int:
        found = self.program.alone.get(self.key)
        if found is None:
            return 0
        inside = [(loop, self.program.alone[loop.key]) for loop in self.program.directly_in(self)]
        by_ours = sum(decided.held for _, decided in inside)
        by_lax = sum(loop.plain_bytes or decided.held for loop, decided in inside)
        return (found.sizes.uncut or 0) - by_ours + by_lax

    @property
    def ends_gradients(self) -> bool:
        """Whether the gradients that its steps take end there, so that no step holds anything: each
        forward sweep in a step has its reverse sweep there. One that is not known again counts as
        held."""
        inside = [found.eqn for p in inner_jaxprs(self._eqn) for found in equations(p)]
        forward, reverse = (
            Counter(eqn.params["function"].loop.jaxpr for eqn in inside if is_sweep(eqn))
            for is_sweep in (is_forward_sweep, is_reverse_sweep)
        )
        return forward <= reverse

    @property
    def plain_bytes(self) -> int | None:
        """The most bytes that the gradient of `jax.lax`'s loop keeps; `None` for a while loop, and
        for a loop with a while loop inside, which have no gradient."""
        is_taken, is_while = self.program.mask is None, self.kind == "while"
        if self.length is None or is_taken or is_while or self.program.has_no_gradient(self):
            return None
        return self.length * self.residual_bytes


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


@dataclass(eq=False)
class Program:
    """A traced function, its loops and the bounds of while loops, and which of its inputs are
    differentiated; `None` if it takes derivatives itself."""

    closed: Any
    mask: Mask | None
    bounds: Mapping[Key, int] = field(default_factory=dict)
    loops: list[FoundLoop] = field(default_factory=list)

    def decided(self, replacements: Replacements, mask: Mask | None = None) -> Decisions:
        """What the loops decide in the gradient with these replacements. Loops that would have no
        reverse mode get one checkpoint, so that the others have one."""
        if (mask := mask or self.mask) is None:
            return {}
        closed = with_keys(self.closed, {loop.key for loop in self.loops})
        open_loops = [loop for loop in self.loops if self.is_open(loop, replacements)]
        replaced = replace_loops(closed, {**replacements, **_with_one_checkpoint(open_loops)})
        return decisions(gradient_of(replaced, mask), {loop.key for loop in self.loops})

    @cached_property
    def alone(self) -> Decisions:
        """What the loops decide if each loop of lax has one checkpoint."""
        one_each = _with_one_checkpoint(o for o in self.loops if not o.is_own)
        try:
            return self.decided(one_each)
        except Exception:
            # An operation has no derivative in an input, which may not be asked for: try each.
            found, count = dict[Key, Decided](), len(self.mask or ())
            for i in range(count):
                with suppress(Exception):
                    found |= self.decided(one_each, tuple(i == j for j in range(count)))
            if not found:
                raise
            return found

    def is_open(self, loop: FoundLoop, replacements: Replacements) -> bool:
        """Whether a loop would have no reverse mode."""
        if loop.is_own:
            return loop.own_plan is None
        replacement = replacements.get(loop.key)
        return loop.length is None and (replacement is None or replacement.plan is None)

    def has_no_gradient(self, loop: FoundLoop, replacements: Replacements | None = None) -> bool:
        """Whether the loop or one inside is differentiated, but would have no reverse mode."""
        inside = [o for o in self.loops if o is loop or is_in(o.key, loop.key)]
        return any(self.is_open(o, replacements or {}) and o.key in self.alone for o in inside)

    def directly_in(self, loop: FoundLoop) -> list[FoundLoop]:
        """The loops in a step whose residuals are among the step's."""
        inside = [o for o in self.loops if is_in(o.key, loop.key)]
        return [
            inner
            for inner in inside
            if inner.key in self.alone
            if not any(is_in(key, loop.key) for key in inner.recomputed)
            if not any(is_in(inner.key, other.key) for other in inside)
        ]


def _with_one_checkpoint(loops: Iterable[FoundLoop]) -> dict[Key, "Replacement"]:
    lengths = ((o, LARGEST_BOUND if o.length is None else o.length) for o in loops)
    return {o.key: Replacement(o, Plan(n, 1), None) for o, n in lengths if n}


def find_loops(jaxpr: Any, mask: Mask, bounds: Mapping[Key, int]) -> list[FoundLoop]:
    """The loops of a program, each before those inside it."""
    program = Program(jaxpr, mask, bounds)
    for eqn, key, around in _equations(jaxpr):
        if (loop := _loop_in(eqn)) is not None:
            program.loops.append(_found(program, eqn, loop, key, around))
    return program.loops


def find_differentiated(jaxpr: Any) -> list[tuple[FoundLoop, Decided | None]]:
    """The loops of a program that takes derivatives itself, and what they decided where they were
    linearized."""
    program, found = Program(jaxpr, None), []
    for eqn, key, decided, around in equations(jaxpr):
        loop = _loop_of(eqn)
        if loop is not None and not any(map(_is_transposed, (*around, eqn))):
            found.append((_found(program, eqn, loop, key, around), decided))
    return found


def _found(
    program: "Program", eqn: Any, loop: Loop, key: Key, around: tuple[Any, ...]
) -> FoundLoop:
    outer = [length for each in around for length in _length_of(each)]
    known = [length for length in outer if length is not None]
    is_equinox = loop.condition is not None and any(map(is_equinox_loop, around[-1:]))
    return FoundLoop(
        name="/".join(_names((*around, eqn))),
        source=_source(around if is_equinox else (*around, eqn)),  # the loop itself is in Equinox
        kind="scan" if loop.condition is None else "while",
        length=loop.length,
        depth=len(outer),
        runs=prod(known) if known == outer else None,
        is_own=read_loop(eqn) is None,
        bound=program.bounds.get(key),
        is_equinox=is_equinox,
        carry_bytes=bytes_of(loop.output_types[: loop.num_carry]),
        key=key,
        recomputed=tuple(key[: 2 * i + 1] for i, each in enumerate(around) if is_recomputed(each)),
        enclosing=tuple(filter(is_shard_map, around)),
        _eqn=eqn,
        program=program,
    )


def _length_of(eqn: Any) -> list[int | None]:
    """The steps of a loop or of a forward sweep; none if the equation is neither."""
    loop = _loop_of(eqn)
    return [] if loop is None else [loop.length]


def _loop_of(eqn: Any) -> Loop | None:
    """The loop of an equation that runs it, sweeps it forward, or pushes it forward."""
    if is_forward_sweep(eqn):
        return eqn.params["function"].loop
    is_pushed = eqn.primitive.name == f"{loop_p.name}_jvp"
    return eqn.params["function"] if is_pushed else _loop_in(eqn)


def _is_transposed(eqn: Any) -> bool:
    """Whether JAX made it by transposing a program. A forward sweep is made there in
    `jax.checkpoint`."""
    return "transpose(" in str(eqn.source_info.name_stack) and not is_forward_sweep(eqn)


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
    found = (_not_entered(eqn, around) for eqn, _, around in _equations(jaxpr))
    return [each for each in found if each is not None]


def _not_entered(eqn: Any, around: tuple[Any, ...]) -> NotEntered | None:
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
        if not apart:
            return None
        reason = f"{kind} does not differentiate them, and keeps no residuals of them"
        return NotEntered(_named((*around, eqn)), reason, None, is_expected=True)
    name = name_of_function(programs[0]) if kind in _EXPECTED else _named((*around, eqn))
    reasons = {**_UNREADABLE, **_EXPECTED}
    reason = reasons.get(kind, f"jax_revolve does not know what the equation {kind} does")
    longest = None if None in lengths else max(lengths)
    return NotEntered(name, reason, longest, kind in _EXPECTED)


def _named(equations: Sequence[Any]) -> str:
    name, source = "/".join(_names(equations)), _source(equations)
    return f"{name} of {source}" if source else name


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
        or (_loop_in(eqn) and any(map(_is_transposed, (*around, eqn))))
        for eqn, _, around in _equations(jaxpr)
    )


def outside_derivatives(jaxpr: Any) -> set[Key]:
    """The keys of the loops that are no part of a derivative that JAX has taken."""
    is_part = lambda eqn: re.search(r"(jvp|transpose)\(", str(eqn.source_info.name_stack))  # noqa: E731
    found = ((key, (*around, eqn)) for eqn, key, around in _equations(jaxpr) if _loop_in(eqn))
    return {key for key, eqns in found if not any(map(is_part, eqns))}


def resolved(plan: Plan | Options, length: int | None, sizes: Sizes, *, is_while: bool) -> Plan:
    return plan if isinstance(plan, Plan) else plan.resolve(length, sizes, is_while=is_while)


# Replacing


@dataclass(frozen=True)
class Replacement:
    """The checkpointed loop that replaces one of lax's: its plan and, for a while loop, its bound.
    A loop that cannot take more steps raises no error at its bound.

    Without a plan, the replacement is lax's own while loop, with an error in reverse mode that
    names the missing argument.
    """

    of: FoundLoop = field(compare=False)
    plan: Plan | Options | None
    max_steps: int | None
    progress: Listener | None = None

    def loop(self, eqn: Any) -> Loop:
        equation = _loop_in(without_guards(eqn, self.of.enclosing) if self.of.is_equinox else eqn)
        assert equation is not None
        if self.of.is_own:
            return equation._replace(plan=self.plan)
        length = self.max_steps if equation.condition is not None else equation.length
        return with_windows_apart(equation.with_plan(length, self.plan))

    def equation(self, eqn: Any) -> Any:
        if self.plan is None:
            bound = self.of.bound
            said = "its condition does not say one"
            said = said if bound is None else f'max_steps="loop" would read {bound}'
            message = (
                f"max_steps must be an int to differentiate the loop {self.of.name!r} of "
                f"{self.of.source} in reverse mode: it is a while loop, which has no reverse mode "
                f"without a bound, and {said}. Pass max_steps, the most steps that it may take, "
                "or checkpoints, the number of carries to store, to checkpoint_loops, or for this "
                "loop alone by where."
            )

            def refuse(*operands: Any) -> Any:
                return without_reverse_mode(run_in_place(eqn, operands), message)

            return call_in_place(refuse, eqn, self.of.enclosing)
        loop = self.loop(eqn)
        can_stop_early = loop.condition is not None and loop.length is not None
        can_stop_early &= not self.of.is_own and self.max_steps != self.of.bound
        if not can_stop_early and self.progress is None:
            return eqn.replace(primitive=loop_p, params={"function": loop})

        def run(*operands: Any) -> Any:
            if not can_stop_early:
                return run_loop(loop, list(operands), self.progress)
            advice = "Pass a larger max_steps to checkpoint_loops, or for this loop alone by where."
            return run_or_raise(loop, list(operands), self.progress, advice)[1]

        return call_in_place(run, eqn, self.of.enclosing)


def replace_loops(jaxpr: Any, replacements: Replacements, around: Key = ()) -> Any:
    """The program with these loops replaced; the same object if it contains none of them."""
    equations = []
    for index, eqn in enumerate(jaxpr.eqns):
        key = (*around, index)
        new = _with_inside(eqn, key, replacements)
        if key in replacements:
            new = replacements[key].equation(new)
        elif is_equinox_loop(eqn) and not is_equinox_loop(new):
            program = new.params["call_jaxpr"]  # with our loop, whose derivative is the rule now
            params, effects = {"call_jaxpr": program}, program.effects
            new = new.replace(primitive=closed_call_p, params=params, effects=effects)
        equations.append(new)
    return with_equations(jaxpr, equations)


def _with_inside(eqn: Any, key: Key, replacements: Replacements) -> Any:
    """The equation with these replacements inside."""
    if not any(is_in(other, key) for other in replacements):
        return eqn
    programs = enumerate(inner_programs(eqn))
    new = [replace_loops(program, replacements, (*key, part)) for part, program in programs]
    return with_inner_programs(eqn, new)
