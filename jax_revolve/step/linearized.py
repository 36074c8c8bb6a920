"""A linearized step: which of its values have derivatives, its residuals, its pullback, and the
restart set, the leaves of the carry that a checkpoint must hold."""

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat.interpreters import pulled_back
from jax_revolve._compat.jaxprs import ClosedJaxpr, call_jaxpr, name_of, pruned
from jax_revolve._compat.primitives import has_own_transpose
from jax_revolve._compat.values import (
    AbstractValue,
    SymbolicZero,
    add_cotangents,
    as_array,
    cotangent_type,
    is_traced,
    pick,
    spread,
    substitute,
    symbolic_zero,
    zeros,
)
from jax_revolve.jaxprs.equations import calls_rules, has_methods
from jax_revolve.jaxprs.inline import WITHOUT_RULES, inlined
from jax_revolve.jaxprs.meshes import recomputed_outside
from jax_revolve.jaxprs.parts import (
    made_by_effects,
    num_equations,
    varying_variables,
    with_outputs,
    without_dead_code,
)
from jax_revolve.jaxprs.walk import any_equation, function_of, has_equation
from jax_revolve.step.cpu import without_transposes
from jax_revolve.step.examples import linearizable
from jax_revolve.step.loop import Loop, Mask, Operands, is_inexact, once, with_layout
from jax_revolve.step.references import without_own_references
from jax_revolve.step.reports import silenced
from jax_revolve.storage.buffers import first_of, zeros_among

Variable = Any
"""A variable of a jaxpr."""

# Which values have derivatives


class Activity(NamedTuple):
    """One flag per value. `init` flags differentiated initial carries; `carry` flags carries that
    depend on a differentiated operand after any number of steps."""

    consts: Mask
    init: Mask
    xs: Mask
    carry: Mask
    ys: Mask

    @property
    def operands(self) -> Mask:
        return (*self.consts, *self.init, *self.xs)

    @property
    def results(self) -> Mask:
        return (*self.carry, *self.ys)


def find_activity(loop: Loop, differentiated: Sequence[bool]) -> Activity:
    """The activity, a least fixed point over the carry, given which operands are differentiated.
    Consts of the condition are not active, because a predicate has no derivative."""
    first = loop.num_condition_consts
    mask = (*[False] * first, *differentiated[first:])
    tangents = [t.to_tangent_aval() for t in loop.output_types]
    is_integer = [getattr(t, "dtype", None) == jax.dtypes.float0 for t in tangents]

    def find() -> Activity:
        consts, init, xs = loop.operands(mask)
        carry = init
        while True:
            active = [*consts, *carry, *xs][first:]
            results = forward_mode(loop, tuple(active)).results
            carry_out, ys = loop.results(results)
            grown = [a or b for a, b in zip(carry, carry_out, strict=True)]
            # The next round would find nothing new, if all floats are active.
            if grown == carry or all(map(max, results, is_integer)):
                return Activity(*map(tuple, (consts, init, xs, grown, ys)))
            carry = grown

    return once(loop.bare, ("activity", mask), find)


def find_reached(loop: Loop, activity: Activity, nonzero: Sequence[bool]) -> Activity:
    """The part of an activity that the cotangents of these active results reach; all of it, if the
    step computes nothing for the other results alone."""
    given = spread(nonzero, activity.results)
    carry, ys = ([bool(flag) for flag in flags] for flags in loop.results(given))

    def find() -> Activity:
        live = live_carry(loop, carry, ys)
        results = [*live, *ys]
        if all(pick(results, activity.results)):
            return activity
        kept = [r or not a for r, a in zip(results, activity.results, strict=True)]
        smaller, _ = pruned(loop.jaxpr, kept, [True] * len(loop.jaxpr.in_avals))
        if num_equations(smaller) == num_equations(without_dead_code(loop.jaxpr)):
            return activity
        reached = [r and a for r, a in zip(results, activity.results, strict=True)]
        of_carry, of_ys = loop.results(reached)
        init = [i and c for i, c in zip(activity.init, of_carry, strict=True)]
        return activity._replace(init=tuple(init), carry=tuple(of_carry), ys=tuple(of_ys))

    return once(loop.bare, ("reached", activity, tuple(nonzero)), find)


class Pushed(NamedTuple):
    """A jaxpr in forward mode: the jaxpr of its results and the tangents of active ones, from its
    inputs and the tangents of active ones."""

    closed: ClosedJaxpr
    results: list[bool]
    """Which results have a tangent that is not a symbolic zero."""
    is_opaque: bool
    """Whether the tangents cannot be computed (a `custom_vjp` function has none), or the pullback
    may not be their transpose: an object has a method for each, and another library's primitive
    any transpose that it registered."""


def pushed(jaxpr: ClosedJaxpr, active: Sequence[bool]) -> Pushed:
    """As in `lax.scan`, we trace the derivative and ask JAX. Without forward mode, `closed` has
    the results alone."""
    found: list[bool] = []
    by_methods = any_equation(jaxpr, has_methods)

    def derivative(inputs: list[Any], dots: list[Any]) -> list[Any]:
        def run(chosen: list[Any]) -> list[Any]:
            results = call_jaxpr(jaxpr)(*substitute(inputs, active, chosen))
            return watched(found)(list(map(as_array, results)))

        chosen = pick(inputs, active)
        if by_methods:
            return jax.vjp(run, chosen)[0]
        results, dots = jax.jvp(run, (chosen,), (dots,))
        return [*results, *pick(dots, found)]

    dots = [t.to_tangent_aval() for t in pick(jaxpr.in_avals, active)]
    closed = without_own_references(jax.make_jaxpr(derivative)(jaxpr.in_avals, dots))
    return Pushed(closed, found, by_methods or any_equation(closed, _is_opaque))


def _is_opaque(eqn: Any) -> bool:
    if name_of(eqn) == "custom_lin" or has_own_transpose(eqn):
        return True
    function = function_of(eqn)
    if isinstance(function, Loop) and "activity" in eqn.params:  # whose derivative is not here
        return forward_mode(function, active_inputs(function, eqn.params["activity"])).is_opaque
    return function is not None and has_equation(function[0], "custom_vjp")


class ForwardMode(NamedTuple):
    """What the derivative of a loop's step in forward mode tells of it."""

    results: list[bool]
    """Which results have a derivative in the active inputs, not a symbolic zero."""
    is_opaque: bool = False
    """See `Pushed`."""
    effects: frozenset[Any] = frozenset()
    """Those of the step and of its derivative rules."""
    closes_over: bool = False
    """Whether its derivative rules close over tracers."""


def forward_mode(loop: Loop, active: Mask) -> ForwardMode:
    """Found from one trace, with these inputs of the step active."""

    def find() -> ForwardMode:
        made = pushed(loop.jaxpr, active)
        if not calls_rules(loop.jaxpr):
            return ForwardMode(made.results, made.is_opaque)
        traced = any(map(is_traced, made.closed.consts))
        return ForwardMode(made.results, made.is_opaque, frozenset(made.closed.effects), traced)

    return once(loop.bare, ("forward mode", active), find)


def watched(found: list[bool]) -> Any:
    """The identity of a list of results, which finds, once it is differentiated, which of them have
    a derivative that is not a symbolic zero."""

    @jax.custom_jvp
    def look(results: list[Any]) -> list[Any]:
        found[:] = [False] * len(results)  # JAX calls the rule below only if one has a derivative
        return results

    @partial(look.defjvp, symbolic_zeros=True)
    def _(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
        found[:] = [not isinstance(t, SymbolicZero) for t in tangents[0]]
        return primals[0], tangents[0]

    return look


# The linearized step


@jax.tree_util.register_static
@dataclass(frozen=True)
class Unlogged:
    """What a rule logs in the steps of a while loop: an error, once it is used. The rule does not
    know whether anybody asks for its logs."""

    name: str

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(str(self))

    __array__ = __jax_array__ = __getitem__ = __iter__ = _refuse

    def __repr__(self) -> str:
        return (
            f"with_logs cannot give {self.name!r} of the steps of a while loop, whose number is "
            "not known when it is traced: log in a scan, or outside the loop."
        )


class Cotangents(NamedTuple):
    """Cotangents of a loop's active carries and ys, with `None` for a y whose cotangent is zero at
    every step."""

    carry: list[Any]
    ys: list[Any]

    def filled(self, types: list[AbstractValue]) -> list[Any]:
        """The cotangents of all active results, zeros included."""
        pairs = zip(types, [*self.carry, *self.ys], strict=True)
        return [zeros(t) if ct is None else ct for t, ct in pairs]


@dataclass(frozen=True, eq=False)
class Linearized:
    """A step of a differentiated loop, as two halves from one trace:

        [*results, *residuals] = code(*shared, *carry, *x)
        cotangents = transposed(*residuals, *cotangents of the results)

    One trace, because JAX takes the *values* of a differentiated loop from derivative rules: a
    `custom_jvp` function's value is what its rule returns, and a `custom_vjp` function's is what
    its forward rule returns, which may differ from the function, for example by quantization. An
    engine that advanced with the function and taped with the rule would mix two loops, and its
    result would depend on the positions of checkpoints. So advances run `code` for its results
    alone, and tapes for both: see `run` and `engine.tape`.

    All steps share the consts, and the safe consts and carry (`examples.safe_operands`). The next
    derivative differentiates `code` and `transposed`, not the step, because JAX applies a rule once
    and then differentiates the code of the rule.
    """

    activity: Activity
    code: ClosedJaxpr
    closed: ClosedJaxpr
    """`code` with all calls inlined, only for running, because functions lose their rules."""
    shared: list[Variable]
    carry: list[Variable]
    x: list[Variable]
    results: list[Variable]
    residuals: list[Variable]
    varying: set[Variable]
    """The variables that differ from step to step."""
    _types: list[AbstractValue]
    """The types of the cotangents of the results that the trace differentiates."""
    _pullback: Any
    """The tree structure that turns the residuals into the pullback."""
    _later: list[list[bool]]
    """For each later linearization, which residuals have derivatives."""
    restart: Mask
    """The leaves of the carry that a checkpoint stores: see `_restart`."""
    record: Mask
    """The ys that the inverse reads."""
    read: Mask
    """The xs that a step reads where it is advanced or taped."""
    traced: Activity
    """What the trace differentiates. Cotangents may reach only a part of it, `activity`."""
    is_while: bool
    derived: dict[Hashable, Any] = field(default_factory=dict)
    """A cache for what other rooms derive from it."""

    @property
    def types(self) -> list[AbstractValue]:
        """The types of the cotangents of the active results."""
        return pick(self._types, self._reached.results)

    @property
    def _reached(self) -> Activity:
        """Which of the operands and results that the trace differentiates are active."""
        pairs = zip(self.activity, self.traced, strict=True)
        return Activity(*(tuple(pick(*masks)) for masks in pairs))

    def where_reached(self, activity: Activity) -> "Linearized":
        """The same step and residuals, where cotangents reach only this part of its activity."""
        if activity == self.activity:
            return self
        step = replace(self, activity=activity, derived={})
        return self.derived.setdefault(("reached", activity), step)

    def in_order(self, chosen: Collection[Variable]) -> list[Variable]:
        jaxpr = self.closed.jaxpr
        made = (v for eqn in jaxpr.eqns for v in eqn.outvars)
        return [v for v in (*jaxpr.invars, *made) if v in chosen]

    def run(self, outputs: Sequence[Variable], inputs: Sequence[Any]) -> list[Any]:
        """These variables of a step, from the inputs of `closed`."""
        key = ("run", *map(id, outputs))
        if key not in self.derived:
            self.derived[key] = with_outputs(self.closed, outputs)
        return self.derived[key](inputs)

    @property
    def transposed(self) -> ClosedJaxpr:
        """The cotangents of the active consts, carry and xs, then logs, from the residuals and the
        cotangents of the active results. Raises JAX's error if a part of the step has no reverse
        mode."""
        return self._transposition[0]

    @property
    def log_tree(self) -> Any:
        """The structure of what derivative rules in the step log, as `with_logs` returns it."""
        return self._transposition[1]

    @property
    def log_types(self) -> list[AbstractValue]:
        types = self.transposed.out_avals
        return types[len(types) - self.log_tree.num_leaves :]

    def zeros_of_logs(self, length: int | None = None) -> list[Any]:
        """Zeros for the logs of a step, or of so many."""
        shape = () if length is None else (length,)
        return [jnp.broadcast_to(z, (*shape, *z.shape)) for z in map(zeros, self.log_types)]

    def zeros_of_xs(
        self, xs: list[Any], length: int | None = None, others: list[Any] | None = None
    ) -> list[Any]:
        """Zero cotangents of the active xs, or of a slice, and zeros for logs."""
        return [*zero_cotangents(xs, self.activity.xs, others), *self.zeros_of_logs(length)]

    @cached_property
    def _transposition(self) -> tuple[ClosedJaxpr, Any]:
        num_consts, reached = (len(self.shared) - len(self.carry)) // 2, self._reached
        inputs = Operands(self.shared[:num_consts], self.carry, self.x)
        masks = (self.activity.consts, self.activity.carry, self.activity.xs)
        wanted = [v.aval.to_ct_aval().dtype for vs in map(pick, inputs, masks) for v in vs]

        trees: list[Any] = []

        def pull_back(residuals: list[Any], cts: list[Any]) -> list[Any]:
            pairs = zip(spread(cts, reached.results), self._types, strict=True)
            # Zeros that are not symbolic could be multiplied by infinity.
            cts = [symbolic_zero(t) if ct is None else ct for ct, t in pairs]
            parts, logs = pulled_back(jax.tree.unflatten(self._pullback, residuals), cts)
            if self.is_while:
                logs = {key: Unlogged(key) for key in logs}
            logged, tree = jax.tree.flatten(logs)
            trees.append(tree)
            parts = map(pick, parts, (reached.consts, reached.carry, reached.xs))
            # JAX lets a user's rule return another dtype.
            pairs = zip((x for part in parts for x in part), wanted, strict=True)
            found = [
                as_array(x) if jax.typeof(x).dtype == t else lax.convert_element_type(x, t)
                for x, t in pairs
            ]
            return [*found, *map(as_array, logged)]

        made = jax.make_jaxpr(pull_back)([v.aval for v in self.residuals], self.types)
        made = without_transposes(without_own_references(made))
        for residuals in self._later:
            made = primal_half(made, [*residuals, *(True for _ in self.types)])
        return made, trees[0]

    def pull_back(self, inputs: Sequence[Any], cotangents: Cotangents) -> Operands:
        """The cotangents of the active consts, carry and x of a step, and after those of x what its
        rules log, from the inputs of `code`."""
        residuals = call_jaxpr(self.code)(*inputs)[len(self.results) :]
        flat = call_jaxpr(self.transposed)(*residuals, *cotangents.filled(self.types))
        first = sum(self.activity.consts)
        last = first + sum(self.activity.carry)
        return Operands(flat[:first], flat[first:last], flat[last:])


def linearized(
    loop: Loop,
    activity: Activity,
    operands: Operands,
    later: Sequence[Mask] = (),
    *,
    is_mapped: bool = False,
    keeps_rules: bool = False,
    keep: bool = True,
) -> Linearized:
    """The step of a loop with these operands, linearized in its active inputs. `later` has, for
    each time that the result was linearized again, the loop's operands that were active then. If it
    `is_mapped` by `jax.vmap`, the step leaves examples that are done unchanged. If it
    `keeps_rules`, functions with rules are not inlined, so that JAX may differentiate it. Without
    `keep`, it is not found again, and may hold tracers."""
    found: list[tuple[Any, list[AbstractValue]]] = []  # no tracers, which must not leave the trace
    masks = (activity.consts, activity.carry, activity.xs)

    def run(consts: Any, safe_consts: Any, safe_carry: Any, carry: Any, x: Any) -> list[Any]:
        safe, inputs = Operands(safe_consts, safe_carry, []), Operands(consts, carry, x)
        step = linearizable(loop, safe, activity.consts, is_mapped=is_mapped)

        def active_step(*chosen: list[Any]) -> tuple[list[Any], list[Any]]:
            after, y = step(*map(substitute, inputs, masks, chosen))
            return pick([*after, *y], activity.results), [*after, *y]

        active, pullback, results = jax.vjp(active_step, *map(pick, inputs, masks), has_aux=True)
        residuals, tree = jax.tree.flatten(pullback)
        found.append((tree, list(map(cotangent_type, active))))
        return [*results, *residuals]

    def trace() -> Linearized:
        nonlocal loop
        loop = loop._replace(jaxpr=recomputed_outside(loop.jaxpr))
        consts, carry, xs = with_layout(loop, operands)
        code = jax.make_jaxpr(run)(consts, consts, carry, carry, first_of(xs))
        code = without_own_references(code)
        num_results, of_residuals = len(loop.output_types), []
        half = primal_loop(loop, activity) if later else loop
        for mask in later:
            direction = find_activity(half, mask)
            active = [*direction.consts, *direction.consts, *[False] * len(carry)]
            active += [*direction.carry, *direction.xs]
            of_residuals.append(pushed(code, active).results)
            code, half = primal_half(code, active), primal_loop(half, direction)
        closed = inlined(code, WITHOUT_RULES) if keeps_rules else inlined(code)
        num_shared = 2 * len(consts) + len(carry)
        inputs, outputs = closed.jaxpr.invars, closed.jaxpr.outvars
        carry, x = inputs[num_shared:][: len(carry)], inputs[num_shared + len(carry) :]
        return Linearized(
            activity,
            code,
            closed,
            inputs[:num_shared],
            carry,
            x,
            outputs[:num_results],
            outputs[num_results:],
            varying_variables(closed.jaxpr, [*carry, *x, *made_by_effects(closed.jaxpr)]),
            found[0][1],
            found[0][0],
            [mask[num_results:] for mask in of_residuals],
            *_restart(loop, inlined(code), num_shared),
            activity,
            loop.condition is not None,
        )

    key = ("linearized", activity, tuple(later), is_mapped, keeps_rules, operands.types)
    return once(loop.bare, key, trace) if keep else trace()


def _restart(loop: Loop, closed: ClosedJaxpr, num_shared: int) -> tuple[Mask, Mask, Mask]:
    """The restart set: the leaves of the carry on which the condition and the residuals depend, and
    those on which these depend after any number of steps. It excludes a running sum, or a
    trajectory that is written but not read. Steps that are walked back also need the leaves from
    which the inverse computes these, and the ys that it reads.

    This is the classical to-be-recorded analysis (A. Griewank and A. Walther, "Evaluating
    Derivatives", SIAM, 2nd edition 2008, section 6.3), by dead-code elimination of the traced step.
    """
    # A recomputed step reports no progress, and must have the same restart set.
    closed, num_results, inverse = silenced(closed), len(loop.output_types), loop.inverse
    residuals = [True] * (len(closed.out_avals) - num_results)
    no_ys = [False] * (num_results - loop.num_carry)

    def inputs(needed: Sequence[bool]) -> list[bool]:
        # Calls are inlined, so that dead-code elimination sees into every function.
        return needed_by(closed, [*needed, *no_ys, *residuals])[num_shared:]

    def reads(needed: Sequence[bool]) -> list[bool]:
        read = inputs(needed)[: loop.num_carry]
        return read if inverse is None else union(read, _of_carry(loop, needed_by(inverse, needed)))

    needed = _least_set(loop, [False] * loop.num_carry, reads)
    record = no_ys if inverse is None else needed_by(inverse, needed)[len(loop.jaxpr.in_avals) :]
    return tuple(needed), tuple(record), tuple(inputs(needed)[loop.num_carry :])


def primal_half(jaxpr: ClosedJaxpr, active: Sequence[bool]) -> ClosedJaxpr:
    """The values that a jaxpr computes once it is differentiated in its active inputs, with its
    derivative rules applied. The same jaxpr if it has none."""
    if not any(active) or not calls_rules(jaxpr):
        return jaxpr

    def half(*inputs: Any) -> Any:
        def run(chosen: list[Any]) -> tuple[list[Any], list[Any]]:
            results = list(map(as_array, call_jaxpr(jaxpr)(*substitute(inputs, active, chosen))))
            return [r for r in results if is_inexact(r)], results

        # Differentiating other inputs may raise an error, as by
        # `equinox.internal.nondifferentiable`. The residuals are unused, so they are dead code.
        return jax.vjp(run, pick(inputs, active), has_aux=True)[2]

    return without_dead_code(without_own_references(jax.make_jaxpr(half)(*jaxpr.in_avals)))


def primal_loop(loop: Loop, activity: Activity) -> Loop:
    """The loop whose step computes the values of the differentiated step (`primal_half`)."""
    if not calls_rules(loop.jaxpr):
        return loop  # `once` must not keep a reference to its jaxpr
    active = active_inputs(loop, activity)
    half = once(loop.bare, ("primal half", active), lambda: primal_half(loop.jaxpr, active))
    return loop._replace(jaxpr=half)


def active_inputs(loop: Loop, activity: Activity) -> Mask:
    """Which inputs of the step are active."""
    return (*activity.consts[loop.num_condition_consts :], *activity.carry, *activity.xs)


def needed_by(jaxpr: ClosedJaxpr, outputs: Sequence[bool]) -> list[bool]:
    return pruned(jaxpr, outputs, [False] * len(jaxpr.in_avals))[1]


def live_carry(loop: Loop, carry: Sequence[bool], ys: Sequence[bool]) -> list[bool]:
    """The leaves of the carry on which these leaves and ys, and the condition, depend after any
    number of steps."""
    return _least_set(
        loop, carry, lambda needed: _of_carry(loop, needed_by(loop.jaxpr, [*needed, *ys]))
    )


def _least_set(
    loop: Loop, carry: Sequence[bool], reads: Callable[[Sequence[bool]], Sequence[bool]]
) -> list[bool]:
    """The least set of leaves of the carry with these leaves, all leaves that the condition reads,
    and, for the set itself after a step, all that it `reads` before the step."""
    needed = list(carry)
    if loop.condition is not None:
        needed = union(needed, needed_by(loop.condition, [True])[loop.num_condition_consts :])
    while (grown := union(needed, reads(needed))) != needed:
        needed = grown
    return needed


def _of_carry(loop: Loop, used: Sequence[bool]) -> list[bool]:
    """The carry's flags, of flags for the inputs of the step."""
    return loop.operands([*[False] * loop.num_condition_consts, *used]).carry


def union(a: Sequence[bool], b: Sequence[bool]) -> list[bool]:
    return [x or y for x, y in zip(a, b, strict=True)]


# Cotangents


def zero_cotangents(
    values: list[Any], active: Sequence[bool], others: list[Any] | None = None
) -> list[Any]:
    """Zero cotangents of the active values, to which cotangents are added: of each example, if
    `jax.vmap` maps any of the others."""
    return [zeros_among(others or [], cotangent_type(v)) for v in pick(values, active)]


def add(total: list[Any], more: list[Any]) -> list[Any]:
    return list(map(add_cotangents, total, more))


def of_init(ct_carry: list[Any], activity: Activity) -> list[Any]:
    """The cotangents of differentiated initial carries, among all active carries'."""
    return pick(ct_carry, pick(activity.init, activity.carry))
