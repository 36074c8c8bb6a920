"""A loop and its two sweeps as primitives: what the sweeps have in common.

The loop primitive stands for a whole loop. In forward mode, its derivative is the loop of values
and tangents. In reverse mode, the forward sweep linearizes it and saves checkpoints, and the
reverse sweep pulls cotangents back.

Both sweeps are primitives, too. In forward mode, the derivative of a sweep is what `jax.jvp` makes
of its program (`SweepPrimitive`), whoever wrote the derivative rules in it. In reverse mode, the
derivative consists of sweeps. Write `L(p)` for the loop as a function of its operands, `J(p)` for
its derivative, and `S(p, w) = J(p)^T w` for the reverse sweep. Then

    <u, S(p, w)> = <w, J(p) u>

by transposition alone. The right side is a number that the loop of values and tangents computes, a
loop like any other, and JAX differentiates it in place of `S`: forward and in reverse once more. A
Hessian-vector product is differentiated as the derivative of such a number (`derivatives.Pushed`).
The sweep that was pushed forward serves as its forward sweep: its checkpoints and their tangents
are checkpoints of the loop of values and tangents.

Where a program cannot be pushed forward (it saves files, or less than its derivative needs) or has
rules, and is to be differentiated in reverse mode, a formula serves that needs no more either: the
map

    (u, du)  ->  d/dt J(p + t p') (u + t du)   at t = 0

is linear, and its transpose at `(w', w)` is `(S', S)`.

This holds where the derivative of the step has a reverse mode that is its transpose. A step with a
`custom_vjp` function, or a primitive with a transpose of its own, has none. For these loops, the
reverse sweep is differentiated as the pullback of the nested engine.

A batched sweep is the sweep of one example and the axes it is mapped over, so that its derivative
is one example's derivative, mapped over the same axes. The sweep of a batched loop would be wrong:
it sums the cotangents of unbatched operands, where `jax.vmap` of a gradient returns one for each
example.

Sweeps are primitives rather than `jax.custom_jvp` functions because up to 0.10, JAX drops the rules
of such functions in the body of a linearized `lax.scan`: it partially evaluates the body, to find
what is the same at every step.

Source for second-order adjoints: A. Griewank and A. Walther, "Evaluating Derivatives", SIAM, 2nd
edition 2008, chapter 5.
"""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from operator import gt
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat.functions import Active, Batched, Flat, Mask, jvp_in
from jax_revolve._compat.jaxprs import ClosedJaxpr, call_jaxpr, source_of_function
from jax_revolve._compat.memories import is_on_host
from jax_revolve._compat.primitives import declare
from jax_revolve._compat.values import (
    as_array,
    bytes_of,
    is_traced,
    pick,
    spread,
    tangent_type,
    zeros,
)
from jax_revolve.autodiff.batching import Vmap, batched_dims, mapped, vmap_over, within
from jax_revolve.autodiff.derivatives import Pushable
from jax_revolve.engine.buffers import Saved
from jax_revolve.engine.plain import run_plain
from jax_revolve.jaxprs.equations import calls_rules
from jax_revolve.jaxprs.parts import without_dead_code
from jax_revolve.jaxprs.walk import inner_programs
from jax_revolve.step.journal import Journal
from jax_revolve.step.linearized import (
    Activity,
    Cotangents,
    Linearized,
    active_inputs,
    find_activity,
    forward_mode,
    linearized,
    primal_loop,
    watched,
)
from jax_revolve.step.loop import Loop, Operands, once
from jax_revolve.step.steps import Steps

loop_p, forward_sweep_p, reverse_sweep_p = map(
    declare,
    (
        "checkpointed_loop",
        "checkpointed_loop_forward_sweep",
        "checkpointed_loop_reverse_sweep",
    ),
)
"""Their rules call each other, and are in `loop`, `forward` and `reverse`."""


LARGE = 2**16
"""The bytes from which an operand's value is of no use to the compiler."""


class Sweep(NamedTuple):
    """A sweep over a loop, forward or in reverse.

    The forward sweep takes the loop's operands. It returns the carry, the ys that `ys` marks, and
    the leaves of the `Saved` for a reverse sweep of this activity, whose structure is `saved_tree`.
    The leaves include the last block's tape if the sweep `tapes`.

    The reverse sweep takes the loop's operands, the saved leaves, and the cotangents of each active
    carry and of the active ys that `ys` marks.
    """

    jaxpr: ClosedJaxpr
    """The loop's, as a field because JAX looks for jaxprs among the fields of a parameter."""
    loop: Loop
    activity: Activity
    restart: Mask
    """From which leaves of the carry steps run again."""
    record: Mask
    """Which ys are saved for an inverse."""
    ys: Mask
    tapes: bool
    has_rule: bool
    """Whether the step calls a function with a derivative rule of its own."""
    saved_tree: Any = None
    output_types: tuple[Any, ...] = ()
    transfers: ClosedJaxpr | None = None
    vmaps: tuple[Vmap, ...] = ()
    """The axes that it is mapped over, the innermost first."""
    is_mapped: bool = False
    """Whether `jax.vmap` maps a while loop, so that some examples may be done before others."""
    keeps_rules: bool = False
    """Whether JAX differentiates its program, in which functions then keep their rules."""
    rule_effects: Any = frozenset()
    """The effects of derivative rules, which the loop itself does not have."""
    whole: Activity | None = None
    """What the forward sweep's steps differentiate, if cotangents reach only a part of it."""
    later: tuple[Mask, ...] = ()
    """For each time that the sweep was itself linearized, the loop's operands that were active."""
    journal: Journal | None = None
    """The leaves among them that no checkpoint holds, and how they are undone."""

    @property
    def untraced(self) -> "Sweep":
        """The fields that are known before the sweep is traced. They determine the others."""
        fields = {"saved_tree": None, "output_types": (), "transfers": None, "vmaps": ()}
        return self._replace(**fields, rule_effects=frozenset())

    @property
    def traced(self) -> Activity:
        return self.activity if self.whole is None else self.whole

    def of_loop(self, loop: Loop, **fields: Any) -> "Sweep":
        """The sweep over another loop, with these fields replaced."""
        return self._replace(jaxpr=loop.jaxpr, loop=loop, **fields)

    @property
    def effects(self) -> Any:
        return self.loop.effects | self.rule_effects

    @property
    def num_saved(self) -> int:
        return self.saved_tree.num_leaves

    def unflatten(self, arrays: Flat) -> Saved:
        return jax.tree.unflatten(self.saved_tree, arrays)

    @property
    def saved_indices(self) -> Saved:
        """A `Saved` with the index of each leaf in its place."""
        return self.unflatten(range(self.num_saved))

    @property
    def is_read_once(self) -> bool:
        """Whether what it saves has no tangents, or can be read only once: codes, or files."""
        plan = self.loop.plan
        storage = getattr(plan, "storage", None)
        is_encoded = getattr(plan, "codec", None) is not None
        return is_encoded or (storage is not None and storage.is_read_once)

    @property
    def is_opaque(self) -> bool:
        """Whether the loop's tangents do not tell its derivative: see `step.linearized.Pushed`."""
        active = active_inputs(self.loop, self.activity)
        return within(self.vmaps, lambda: forward_mode(self.loop, active).is_opaque)

    def of_results(self, values: Flat) -> list[Any]:
        """The entries for the forward sweep's results, of values for all results of the loop."""
        carry, ys = self.loop.results(values)
        return [*carry, *pick(ys, self.ys)]

    @property
    def needed(self) -> Mask:
        """The operands on which the loop's linearization depends: all if there is a rule, which may
        depend on more once it is differentiated."""
        first, count = self.loop.num_consts, self.loop.num_carry
        carry = [self.is_any_needed or stored for stored in self.restart]
        num_xs = len(self.activity.operands) - first - count
        return (*[True] * first, *carry, *[True] * num_xs)

    @property
    def kept(self) -> Mask:
        """Which leaves of the carry a checkpoint holds."""
        return self.restart if self.journal is None else self.journal.without(self.restart)

    @property
    def logs(self) -> int:
        """The number of arrays that rules log in the reverse sweep: its last results."""
        return len(self.output_types) - sum(self.activity.operands)

    def sums(self, flat: Flat) -> Operands:
        """Values for the reverse sweep's results, by operands; `None` for logs."""
        first = sum(self.activity.consts)
        last = first + sum(self.activity.init)
        of_xs = [*flat[last:], *[None] * self.logs]
        return Operands(list(flat[:first]), list(flat[first:last]), of_xs)

    @property
    def is_any_needed(self) -> bool:
        return self.has_rule or self.loop.inverse is not None

    def take_apart(self, flat: Flat) -> tuple[list[Any], list[Any], list[Any]]:
        """The reverse sweep's operands, split into the loop's, saved arrays, and cotangents."""
        first = len(self.activity.operands)
        last = first + self.num_saved
        return list(flat[:first]), list(flat[first:last]), list(flat[last:])

    def cotangents(self, flat: Flat) -> Cotangents:
        """The reverse sweep's cotangents, with `None` for ys without one."""
        num_carry = sum(self.activity.carry)
        return Cotangents(list(flat[:num_carry]), spread(flat[num_carry:], self.ys))

    def steps(self, operands: Flat, *, borrows: bool = False) -> Steps:
        loop, inputs = self.loop, self.loop.operands(operands)
        step = self.linearized_step(loop, inputs)
        if self.needs_more(step):
            raise NotImplementedError(
                f"A second derivative of {source_of_function(loop.jaxpr)} needs values of the "
                "carry that the first one does not, because a custom_jvp or custom_vjp rule in it "
                "uses them only if it is differentiated itself. Use jax.lax.scan for this loop."
            )
        return Steps.of(
            loop, self.restart, inputs, step, self.record, self.journal, borrows=borrows
        )

    def linearized_step(self, loop: Loop, inputs: Any) -> Linearized:
        traced, activity = self.traced, self.activity
        if (journal := self.journal) is not None:
            loop, traced, activity = journal.loop, *map(journal.active, (traced, activity))
        step = linearized(
            loop,
            traced,
            inputs,
            self.later,
            is_mapped=self.is_mapped,
            keeps_rules=self.keeps_rules,
        )
        return step.where_reached(activity)

    def needs_more(self, step: Linearized) -> bool:
        return any(map(gt, (*step.restart, *step.record), (*self.restart, *self.record)))

    def as_program(self, operands: Flat) -> "Sweep | None":
        """The sweep as a program that JAX may differentiate; `None` if there is none, because it
        saves files, or less than its derivative needs."""
        if self.is_read_once:
            return None
        # JAX may map this program without our batching rule, so its step must allow for it.
        own, inputs = self.when_mapped(), self.loop.operands(operands)
        step = own.linearized_step(self.loop, inputs)
        if not calls_rules(step.code):
            return own
        own = own._replace(keeps_rules=True)
        step = own.linearized_step(self.loop, inputs)
        return None if own.needs_more(step) else own

    def when_mapped(self) -> "Sweep":
        """The sweep under `jax.vmap`. The steps of a scan are unchanged, so it stays the same."""
        return self._replace(is_mapped=self.loop.condition is not None)

    @property
    def primal(self) -> Loop:
        """The loop whose derivatives are the derivatives of the forward sweep's results."""
        loop = primal_loop(self.loop, self.traced)
        for mask in self.later:
            loop = primal_loop(loop, find_activity(loop, mask))
        return loop

    def without_tape(self) -> "Sweep":
        saved = jax.tree.structure(self.saved_indices.without_tape())
        return self._replace(tapes=False, saved_tree=saved)


def program_of(sweep: Sweep, run: Callable[..., Any], *operands: Any) -> tuple[ClosedJaxpr, Any]:
    """The jaxpr of a sweep, and the shape of its results. JAX runs it when the tracers of the
    transformations around it are dead, so it must not hold any: see `step.rules`."""
    traced, shape = jax.make_jaxpr(run, return_shape=True)(*operands)
    if sweep.has_rule and _holds_tracers(traced):
        raise NotImplementedError(
            "A custom_jvp or custom_vjp rule in the step of a loop is itself differentiated, and "
            "closes over a value of a transformation around the loop. Pass this value to the "
            "function as an argument, or compute the rule's results without such functions."
        )
    return without_dead_code(traced), shape


def _holds_tracers(closed: ClosedJaxpr) -> bool:
    inner = (jaxpr for eqn in closed.eqns for jaxpr in inner_programs(eqn))
    return any(map(is_traced, getattr(closed, "consts", ()))) or any(map(_holds_tracers, inner))


def run_plain_loop(*operands: Any, function: Loop) -> Flat:
    return run_plain(function, function.operands(operands))


def _held_once(sweep: Sweep, operands: Flat) -> list[Any]:
    """The operands of a sweep. XLA must not see which of them are constants, because it would put a
    copy of an array that the step closes over into each loop that reads it."""

    def held(x: Any, is_active: bool) -> Any:
        if is_active or is_on_host(x) or bytes_of([jax.typeof(x)]) < LARGE:
            return x
        return lax.optimization_barrier(x)

    active, count = sweep.activity.operands, len(sweep.activity.operands)
    flat = list(map(as_array, operands))
    return [*map(held, flat[:count], active), *flat[count:]]


class SweepPrimitive(Pushable):
    """A primitive of sweeps."""

    has_dead_code = False  # `of_example` has none

    @abstractmethod
    def of_example(self, sweep: Sweep, /, *operands: Any) -> Flat:
        """The results of a sweep of one example."""

    @abstractmethod
    def jvp_by_loops(self, sweep: Sweep, active: Active, /, *flat: Any) -> Flat:
        """Of one example, the results and the tangents of active results, from its operands and
        tangents: see the top of this file."""

    def run(self, *operands: Any, function: Sweep) -> Flat:
        of_one = partial(self.of_example, function)
        return mapped(of_one, function.vmaps)(*_held_once(function, operands))

    def batch(self, axis: Any, operands: Flat, dims: Flat, function: Sweep) -> Batched:
        """The sweep mapped over one more axis."""
        flat, function = list(map(as_array, operands)), function.when_mapped()

        def find() -> tuple[Vmap, tuple[Any, ...]]:
            run_all = partial(self.run, function=function)
            dims_out = batched_dims(axis, run_all, flat, dims)
            types = jax.make_jaxpr(vmap_over(axis, run_all, dims, dims_out))(*flat).out_avals
            return Vmap(axis, tuple(dims), tuple(dims_out)), tuple(types)

        key = ("batched sweep", self.primitive, axis, tuple(dims), *map(jax.typeof, flat))
        vmap, types = once(function, key, find)
        batched = function._replace(vmaps=(*function.vmaps, vmap), output_types=types)
        return self.primitive.bind(*flat, function=batched), vmap.dims_out

    def primal_half(self, function: Sweep, activity: Active, /) -> Sweep:
        """The sweep that computes the results once this one is linearized. Its steps also apply
        derivative rules that only this derivative needs."""
        mask = activity.operands[: len(function.activity.operands)]
        is_changed = function.has_rule and any(mask)
        return function._replace(later=(*function.later, mask)) if is_changed else function

    def refined(self, function: Sweep, activity: Active, operands: Flat, /) -> Active:
        """Results whose tangents are zero have none: rules may refuse those."""
        if function.vmaps or not function.has_rule:
            return activity
        own = function.as_program(operands[: len(function.activity.operands)])
        if own is None:  # traced now, while the axes are bound that rules name
            dots = [tangent_type(x) for x in pick(operands, activity.operands)]
            self._by_loops(function, activity, [*operands, *map(zeros, dots)])
            return activity
        return self.with_tangents(own, activity, operands)

    def with_tangents(self, sweep: Sweep, activity: Active, operands: Flat, /) -> Active:
        _, has_dot = self._pushed_program(sweep, activity.operands, operands)
        return activity._replace(results=tuple(map(min, activity.results, has_dot)))

    def jvp(self, function: Sweep, activity: Active, /, *flat: Any) -> Flat:
        return self._mapped(self._jvp_of_example, function, activity)(*_held_once(function, flat))

    def jvp_in_reverse(self, function: Sweep, activity: Active, /, *flat: Any) -> Flat:
        return self._mapped(self.jvp_by_loops, function, activity)(*flat)

    def _mapped(self, of_one: Callable[..., Flat], sweep: Sweep, active: Active) -> Any:
        return mapped(
            partial(of_one, sweep, active),
            sweep.vmaps,
            lambda vmap: pick(vmap.dims, active.operands),
            lambda vmap: [*vmap.dims_out, *pick(vmap.dims_out, active.results)],
        )

    def _jvp_of_example(self, sweep: Sweep, active: Active, *flat: Any) -> Flat:
        """JAX differentiates the program of the sweep."""
        count = len(active.operands)
        operands, tangents = flat[:count], flat[count:]
        own = sweep.as_program(operands[: len(sweep.activity.operands)])
        if own is None:
            return call_jaxpr(self._by_loops(sweep, active, flat))(*flat)
        both, has_dot = self._pushed_program(own, active.operands, operands)
        flat = call_jaxpr(both)(*operands, *tangents)
        results, dots = flat[: len(has_dot)], spread(flat[len(has_dot) :], has_dot)
        used = active.values or [True] * len(results)  # what is not used is dead code
        results = [x if u else jnp.zeros_like(x) for x, u in zip(results, used, strict=True)]
        dots = zip(results, dots, active.results, strict=True)
        dots = [zeros(tangent_type(x)) if dot is None else dot for x, dot, a in dots if a]
        return [*results, *dots]

    def _by_loops(self, sweep: Sweep, active: Active, flat: Flat) -> ClosedJaxpr:
        types = list(map(jax.typeof, flat))
        trace = lambda: jax.make_jaxpr(partial(self.jvp_by_loops, sweep, active))(*types)  # noqa: E731
        key = ("by loops", self.primitive, active, sweep.saved_tree, *types)
        return once(sweep.untraced, key, trace)

    def _pushed_program(
        self, sweep: Sweep, mask: Mask, operands: Flat
    ) -> tuple[ClosedJaxpr, list[bool]]:
        """The program of a sweep as JAX pushes it forward, from the operands and the tangents of
        those that `mask` marks to the results and their tangents; and which results have one."""
        types = list(map(jax.typeof, operands))

        def trace() -> tuple[ClosedJaxpr, list[bool]]:
            has_dot: list[bool] = []

            def both(*flat: Any) -> Flat:
                run = lambda *operands: watched(has_dot)(list(self.of_example(sweep, *operands)))  # noqa: E731
                results, dots = jvp_in(run, flat[: len(mask)], mask, flat[len(mask) :])
                return [*results, *pick(dots, has_dot)]

            dots = [t.to_tangent_aval() for t in pick(types, mask)]
            return program_of(sweep, both, *types, *dots)[0], has_dot

        key = ("pushed", self.primitive, mask, sweep.saved_tree, *types)
        return once(sweep.untraced, key, trace)
