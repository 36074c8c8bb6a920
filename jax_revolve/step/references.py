"""Mutable references (`jax.new_ref`) that a loop reads and writes, as values of a pure loop.

Recomputed steps would write again. So a loop gets the contents of its references, which are read
once before it and written back once after it. JAX transforms these reads and writes like any
others, and nothing else in this library knows of references. A reference becomes

- a const, if the loop only reads it;
- a part of the carry, if the loop writes it;
- xs and, if it is written, ys, if the loop scans over it;
- nothing, if it is made in a step.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jax_revolve._compat.interpreters import (
    contents_type,
    discharged,
    is_input_effect,
    is_reference,
    is_reference_effect,
)
from jax_revolve._compat.jaxprs import ClosedJaxpr, call_jaxpr, is_high_for, name_of, with_equations
from jax_revolve._compat.primitives import Primitive
from jax_revolve._compat.values import exactly_of_type, is_array_type, pick, substitute
from jax_revolve.jaxprs.walk import any_equation, changed, inner_programs
from jax_revolve.step.loop import Loop


class NotPure(NotImplementedError):
    """Says why a loop is not a function of arrays and contents of references."""


def run_on_contents(run_loop: Callable[..., Any], equation: Loop, operands: list[Any]) -> Any:
    """`run_loop(equation, operands)`, with the contents of references in their places. Where that
    is impossible, the loop stays unchanged, and its `obstacle` says why."""
    try:
        pure, inputs, carried, written = _pure_loop(equation, operands)
    except NotPure as error:
        return run_loop(equation._replace(obstacle=str(error)), operands)
    carry, ys = pure.results(run_loop(pure, inputs))
    num_carry, num_ys = len(carry) - len(carried), len(ys) - len(written)
    contents = [*carry[num_carry:], *ys[num_ys:]]
    for reference, value in zip([*carried, *written], contents, strict=True):
        reference[...] = value
    return [*carry[:num_carry], *ys[:num_ys]]


def _pure_loop(equation: Loop, operands: list[Any]) -> tuple[Loop, list[Any], list[Any], list[Any]]:
    """The loop of the contents, its operands, and the references that it writes: those that become
    a part of the carry, and those that it scans over."""
    _check(equation, operands)
    num_condition, num_carry = equation.num_condition_consts, equation.num_carry
    consts, carry, xs = equation.operands(operands)
    step, condition = _Pure(equation.jaxpr, operands[num_condition:]), None
    if equation.condition is not None:
        condition = _Pure(equation.condition, [*consts[:num_condition], *carry])
        if condition.written:
            raise NotPure("its condition writes to a mutable reference")

    # A reference that both condition and step use is one object.
    carried = [*{id(x): x for x in consts if id(x) in step.written}.values()]
    written = [x for x in xs if id(x) in step.written]
    index = {id(x): num_carry + i for i, x in enumerate(carried)}
    kept = [id(x) not in index for x in consts]
    of_condition, of_step = kept[:num_condition], kept[num_condition:]

    def with_carried(consts: Sequence[Any], own: list[Any], carry: list[Any]) -> list[Any]:
        """The consts and carry of the original jaxpr, from the remaining consts and the carry."""
        every = [id(x) in index and carry[index[id(x)]] for x in consts]
        return [*substitute(every, [id(x) not in index for x in consts], own), *carry[:num_carry]]

    def run_step(own: list[Any], carry: list[Any], x: list[Any]) -> list[Any]:
        results, after = step([*with_carried(consts[num_condition:], own, carry), *x])
        new = map(exactly_of_type, (after[id(x)] for x in carried), types_carried)
        ys = map(exactly_of_type, (after[id(x)] for x in written), types_xs)
        return [*results[:num_carry], *new, *results[num_carry:], *ys]

    def run_condition(own: list[Any], carry: list[Any]) -> list[Any]:
        assert condition is not None
        return condition(with_carried(consts[:num_condition], own, carry))[0]

    types = equation.operands([*of_condition, *step.types])
    types_carried = [contents_type(jax.typeof(x)) for x in carried]
    types_xs = pick(types.xs, [id(x) in step.written for x in xs])
    own, of_carry = pick(types.consts[num_condition:], of_step), [*types.carry, *types_carried]
    of_written = [contents_type(jax.typeof(x)) for x in written]
    outputs, output_ys = equation.results(equation.output_types)
    pure = equation._replace(
        jaxpr=jax.make_jaxpr(run_step)(own, of_carry, types.xs),
        num_condition_consts=sum(of_condition),
        num_consts=sum(kept),
        num_carry=len(of_carry),
        output_types=(*outputs, *types_carried, *output_ys, *of_written),
        effects=frozenset(e for e in equation.effects if not is_reference_effect(e)),
    )
    if condition is not None:
        own = pick(condition.types[:num_condition], of_condition)
        pure = pure._replace(condition=jax.make_jaxpr(run_condition)(own, of_carry))

    def contents(x: Any) -> Any:
        return exactly_of_type(x[...], contents_type(jax.typeof(x)))

    read = {id(x): contents(x) for x in operands if is_reference(jax.typeof(x))}
    inputs = [read.get(id(x), x) for x in (*pick(consts, kept), *carry, *carried, *xs)]
    return pure, inputs, carried, written


class _Pure:
    """A jaxpr as a pure function, given its operands, some of which are references."""

    def __init__(self, closed: ClosedJaxpr, operands: Sequence[Any]) -> None:
        invars = closed.jaxpr.invars
        are_references = [is_reference(v.aval) for v in invars]
        self.types = [contents_type(v.aval) for v in invars]
        self.keys = [id(x) for x, r in zip(operands, are_references, strict=True) if r]
        effects: Any = closed.effects
        changed = {e.input for e in effects if is_reference_effect(e, written=True)}
        self.written = {id(x) for x, v in zip(operands, invars, strict=True) if v in changed}
        self.pure = _with_contents(closed, are_references)

    def __call__(self, inputs: Sequence[Any]) -> tuple[list[Any], dict[int, Any]]:
        """The results, and the contents of each reference afterwards."""
        results = list(call_jaxpr(self.pure)(*inputs))
        count = len(results) - len(self.keys)
        return results[:count], dict(zip(self.keys, results[count:], strict=True))


def _check(equation: Loop, operands: Sequence[Any]) -> None:
    for aval in (*map(jax.typeof, operands), *equation.output_types):
        if not (is_array_type(aval) or is_reference(aval)):
            raise NotPure(f"it has values of type {aval}, which are not arrays")

    for effect in equation.effects:
        if is_input_effect(effect) and not is_reference_effect(effect):
            raise NotPure(f"it has the effect {effect} on an operand")

    def has_rule(eqn: Any) -> bool:
        return _has_own_rule(eqn) and _is_given_references(eqn)

    if any_equation(equation.jaxpr, has_rule):
        # The rule may write to them in the reverse pass, which discharging would drop.
        raise NotPure("a function in it that has a rule of its own uses mutable references")


def uses_references(eqn: Any) -> bool:
    """Whether an equation reads, writes, makes or passes on references."""
    return _is_given_references(eqn) or any(map(is_reference_effect, eqn.effects))


def _is_given_references(eqn: Any) -> bool:
    """Whether references from outside an equation are used in it."""
    return any(is_reference(v.aval) for v in (*eqn.invars, *eqn.outvars))


def without_own_references(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The jaxpr with values in place of the references that are made in it: nobody else sees them.
    It may be of derivative rules, which make references when they are applied."""
    if not any(map(is_reference_effect, closed.effects)):
        return closed
    return _with_contents(closed, [False] * len(closed.in_avals))


def _with_contents(closed: ClosedJaxpr, which: Sequence[bool]) -> ClosedJaxpr:
    """The jaxpr with contents in place of these references, and of those that are made in it."""
    try:
        pure = discharged(_with_each(closed, _hidden), which)
    except NotImplementedError as error:  # of a primitive, such as a call of a kernel
        raise NotPure(f"its mutable references cannot be discharged: {error}") from error
    return _with_each(pure, _shown)


# JAX discharges references after all transformations, and drops derivative rules on the way. So we
# hide all equations without references in equations of an unknown primitive. A function with a rule
# may make references of its own: then it is hidden without them.

_hidden_p = Primitive("hidden")
_hidden_p.multiple_results = True


@_hidden_p.def_effectful_abstract_eval
def _(*_: Any, hidden: Any) -> tuple[list[Any], Any]:
    return [v.aval for v in hidden.outvars], hidden.effects


def _has_own_rule(eqn: Any) -> bool:
    """Whether an equation calls a function that may have rules of its own."""
    is_custom = name_of(eqn).startswith(("custom_jvp", "custom_vjp", "custom_vmap"))
    return is_custom or (is_high_for(eqn) and not inner_programs(eqn))


def _hidden(eqn: Any) -> Any:
    if uses_references(eqn):
        if not _has_own_rule(eqn) or _is_given_references(eqn):
            return eqn
        new = changed(eqn, lambda _, inner: without_own_references(inner))
        if new is eqn:
            raise NotPure("an object in it that has rules of its own makes mutable references")
        effects = (e for e in eqn.effects if not is_reference_effect(e))
        eqn = new.replace(effects=frozenset(effects))
    return eqn.replace(primitive=_hidden_p, params={"hidden": eqn})


def _shown(eqn: Any) -> Any:
    if eqn.primitive is not _hidden_p:
        return eqn
    return eqn.params["hidden"].replace(invars=eqn.invars, outvars=eqn.outvars)


def _with_each(jaxpr: Any, change: Callable[[Any], Any]) -> Any:
    """The jaxpr, open or closed, with `change(eqn)` for each equation in it, however deep."""

    def of(eqn: Any) -> Any:
        new = change(eqn)
        return new if new is not eqn else changed(eqn, lambda _, inner: _with_each(inner, change))

    return with_equations(jaxpr, [*map(of, jaxpr.eqns)])
