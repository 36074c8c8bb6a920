"""The forward sweep: a loop's results, and the arrays that it saves for the reverse sweep.

    results, *saved = forward_sweep(*operands)       # saved: the leaves of `engine.buffers.Saved`

The plan determines what is saved: checkpoints in slots or in a storage, the last block's tape, or
the ends of blocks that are walked back. In forward mode, JAX differentiates the saved arrays with
the program. In reverse mode they have no cotangents, because they are functions of the operands.

JAX's dead-code elimination shrinks a sweep (`dce`). If nothing that it saves is used, as where
an outer loop only advances, the sweep becomes the loop.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat.functions import Active, Flat, Mask, jvp_in
from jax_revolve._compat.jaxprs import ClosedJaxpr, call_jaxpr
from jax_revolve._compat.memories import transfers_of
from jax_revolve._compat.values import (
    as_array,
    cotangent_type,
    is_zero,
    pick,
    spread,
    substitute,
    with_weak_type,
    zeros,
)
from jax_revolve.autodiff.batching import mapped, within
from jax_revolve.autodiff.derivatives import gradient_of, summed
from jax_revolve.autodiff.reverse import pull_back_loop
from jax_revolve.autodiff.sweeps import (
    Sweep,
    SweepPrimitive,
    forward_sweep_p,
    loop_p,
    program_of,
    run_plain_loop,
)
from jax_revolve.engine.buffers import Carries, Record, Saved
from jax_revolve.engine.nest import run_forward_offline, tape_the_last_block
from jax_revolve.engine.online import run_forward_online
from jax_revolve.jaxprs.equations import calls_rules
from jax_revolve.step.dead_code import prune_loop
from jax_revolve.step.derived import Paired, paired
from jax_revolve.step.linearized import Activity, find_activity, linearized, live_carry
from jax_revolve.step.loop import is_inexact, once, plan_of
from jax_revolve.step.reports import silenced


def run_forward_sweep(untraced: Sweep, operands: Flat) -> tuple[Flat, Flat, Sweep]:
    """The loop's kept results, the saved arrays, and the sweep."""
    operands = list(map(as_array, operands))
    traced, saved = _trace_forward_sweep(untraced, operands)
    types = tuple(traced.out_avals)
    fields = {
        "saved_tree": saved,
        "output_types": types,
        "transfers": transfers_of(types),
        "vmaps": (),
        "rule_effects": frozenset(traced.effects),
    }
    sweep = untraced._replace(**fields)
    flat = forward_sweep_p.bind(*operands, function=sweep)
    count = len(flat) - saved.num_leaves
    return flat[:count], flat[count:], sweep


def _trace_forward_sweep(sweep: Sweep, operands: Flat) -> tuple[ClosedJaxpr, Any]:
    """The forward sweep of one example, and the tree of what it saves."""
    loop = sweep.loop

    def run(*operands: Any) -> tuple[Flat, Saved]:
        plan, steps = plan_of(loop), sweep.steps(operands)
        steps = steps._replace(logs=sweep.journal is not None)
        if loop.condition is None:
            results, saved = run_forward_offline(steps, plan, sweep.ys, tapes=sweep.tapes)
        else:
            results, saved = run_forward_online(steps, plan)
        return list(map(with_weak_type, results, sweep.of_results(loop.output_types))), saved

    def trace() -> tuple[ClosedJaxpr, Any]:
        traced, shape = program_of(sweep, run, *operands)
        return traced, jax.tree.structure(shape[1])

    return once(sweep.untraced, ("forward sweep", *map(jax.typeof, operands)), trace)


def _without_unused(sweep: Sweep, used: Sequence[bool]) -> tuple[list[bool], Sweep]:
    """Which results a sweep keeps, and the sweep with those alone. We drop unused ys, because XLA
    does not notice that an inner loop merely carries a buffer through, and an unused tape. One loop
    computes the carry and all other saved arrays, so these stay together."""
    num_carry, first = sweep.loop.num_carry, len(sweep.output_types) - sweep.num_saved
    ys, tape = used[num_carry:first], sweep.saved_indices.tape
    is_taped = any(used[first + i] for i in tape)
    saved = [is_taped or i not in tape for i in range(sweep.num_saved)]
    kept = [*[True] * num_carry, *ys, *saved]
    smaller = sweep._replace(
        ys=tuple(substitute(sweep.ys, sweep.ys, ys)),
        output_types=tuple(pick(sweep.output_types, kept)),
        vmaps=tuple(v._replace(dims_out=tuple(pick(v.dims_out, kept))) for v in sweep.vmaps),
    )
    return kept, smaller if is_taped or not tape else smaller.without_tape()


def _without_dead_carry(sweep: Sweep, used: list[bool]) -> tuple[list[bool], Mask, Sweep]:
    """The sweep without leaves of the carry that neither a used leaf nor a checkpoint needs."""
    of_loop = sweep.activity
    results, operands, params = prune_loop([*used, *sweep.ys], sweep.loop)
    (carry, ys), kept = sweep.loop.results(results), sweep.loop.operands(operands)
    parts = ((of_loop.consts, kept.consts), (of_loop.init, carry), (of_loop.xs, kept.xs))
    parts = (*parts, (of_loop.carry, carry), (of_loop.ys, ys))
    kept_results = [*carry, *[True] * (len(sweep.output_types) - len(carry))]
    smaller = sweep.of_loop(
        params["function"],
        activity=Activity(*(tuple(pick(mask, keep)) for mask, keep in parts)),
        restart=tuple(pick(sweep.restart, carry)),
        record=tuple(pick(sweep.record, ys)),
        ys=tuple(pick(sweep.ys, ys)),
        output_types=tuple(pick(sweep.output_types, kept_results)),
        vmaps=tuple(
            v._replace(
                dims=tuple(pick(v.dims, operands)), dims_out=tuple(pick(v.dims_out, kept_results))
            )
            for v in sweep.vmaps
        ),
    )
    return kept_results, operands, smaller


def _served(sweep: Sweep, activity: Active, operands: Flat) -> Sweep | None:
    """The sweep that can pull back from this sweep's saved arrays once it is linearized. If its
    steps call rules, it is a sweep of the loop with the values that the rules return."""
    # A checkpoint file can be read only once.
    if sweep.vmaps or sweep.is_read_once or activity.operands != sweep.activity.operands:
        return None
    if not sweep.has_rule:
        return sweep
    if sweep.journal is not None:  # its loop is not that of these values
        return None
    loop = sweep.primal
    found = find_activity(loop, sweep.activity.operands)
    has_rule = calls_rules(loop.jaxpr)
    served = sweep.without_tape().of_loop(loop, activity=found, has_rule=has_rule, later=())
    needs_more = served.needs_more(served.linearized_step(loop, loop.operands(operands)))
    return None if needs_more or found != sweep.activity else served


# The pullback of the sweep and its tangents, by the loop of values and tangents


def _pairs(sweep: Sweep, along: Active, flat: Flat) -> tuple[Paired, list[Any], list[int | None]]:
    """That loop, its operands, and which of the sweep's operands and tangents each of them is."""
    loop, count = sweep.loop, len(along.operands)
    pairs = paired(loop, find_activity(loop, along.operands))
    inputs = pairs.operands(loop.operands(flat[:count]), flat[count:])
    numbers = loop.operands(range(count)), range(count, len(flat))
    return pairs, inputs, pairs.operands(*numbers, start=lambda _: None)


class ForwardSweep(SweepPrimitive):
    def of_example(self, sweep: Sweep, /, *operands: Any) -> Flat:
        if not ((sweep.later or sweep.keeps_rules) and sweep.saved_indices.tape):
            return call_jaxpr(_trace_forward_sweep(sweep, operands)[0])(*operands)
        # Linearizing the step again changes its residuals. A reverse sweep that is linearized again
        # tapes those itself. This tape is for one that is not, so it has the original residuals.
        bare = sweep.without_tape()

        def run(*operands: Any) -> Flat:
            results = self.of_example(bare, *operands)
            saved = bare.unflatten(results[len(results) - bare.num_saved :])
            given, at = operands, saved
            if sweep.keeps_rules:  # then its functions have none, and its derivative is not used
                given, at = jax.tree.map(lax.stop_gradient, (list(operands), saved))
            steps = silenced(sweep)._replace(later=(), keeps_rules=False).steps(given)
            _, tape = tape_the_last_block(steps, plan_of(sweep.loop), at)
            kept = results[: len(results) - bare.num_saved]
            return [*kept, *jax.tree.leaves(saved._replace(block=tape))]

        return call_jaxpr(program_of(sweep, run, *operands)[0])(*operands)

    def jvp_by_loops(self, sweep: Sweep, active: Active, /, *flat: Any) -> Flat:
        """The derivative of the results alone: saved arrays are functions of the operands."""
        count = len(active.operands)
        operands, tangents = flat[:count], flat[count:]
        half = partial(loop_p.bind, function=sweep.primal)
        run = lambda *operands: sweep.of_results(half(*operands))  # noqa: E731
        results, dots = jvp_in(run, operands, active.operands, tangents)
        _, arrays, _ = run_forward_sweep(silenced(sweep).untraced, operands)
        nothing = [zeros(jax.typeof(x).to_tangent_aval()) for x in arrays]
        return [*results, *arrays, *pick([*dots, *nothing], active.results)]

    def activity(self, sweep: Sweep, differentiated: Mask, /) -> Active:
        activity = within(sweep.vmaps, lambda: find_activity(sweep.loop, differentiated))

        def of(part: Any) -> Any:
            if isinstance(part, Carries):  # empty, without a buffer
                return pick(activity.carry, sweep.kept) if part.leaves else []
            if isinstance(part, Record):
                return pick(activity.ys, sweep.record)
            return any(differentiated)

        saved = jax.tree.leaves(sweep.saved_indices.map(of))
        types = sweep.output_types[len(sweep.output_types) - sweep.num_saved :]
        saved = [is_inexact(t) and active for t, active in zip(types, saved, strict=True)]
        return Active(activity.operands, (*sweep.of_results(activity.results), *saved))

    def vjp_fwd(
        self, sweep: Sweep, activity: Active, operands: Flat, /
    ) -> tuple[Flat, Flat, Sweep, Sweep | None]:
        """The saved arrays serve this derivative, too, if it has the same active operands."""
        results = forward_sweep_p.bind(*operands, function=self.primal_half(sweep, activity))
        served = _served(sweep, activity, operands)
        saved = [] if served is None else results[len(results) - sweep.num_saved :]
        if served is not None and not served.tapes:
            saved = [x for i, x in enumerate(saved) if i not in sweep.saved_indices.tape]
        return results, saved, sweep, served

    def needed(self, sweep: Sweep, aux: Any, operands: Flat, /) -> Sequence[bool]:
        return sweep.needed if aux else super().needed(sweep, aux, operands)

    def vjp_bwd(
        self,
        cotangents: Flat,
        operands: Flat,
        saved: Flat,
        function: Sweep,
        activity: Active,
        aux: Any,
    ) -> Flat:
        """Saved arrays have no cotangents, or zeros: the result of the reverse sweep depends only
        on the operands and its cotangents, and checkpoints merely make it cheap."""
        sweep, count = function, len(function.output_types) - function.num_saved
        if aux is not None:
            cts = spread(cotangents, activity.results)[:count]
            of_loop, first = aux.activity, sweep.loop.num_carry
            ys = spread(cts[first:], sweep.ys)
            of_results = [*pick(cts[:first], of_loop.carry), *pick(ys, of_loop.ys)]
            nothing = [None] * sum(of_loop.operands)
            return pull_back_loop(of_results, nothing, operands, saved, aux, of_loop)[0]
        of = lambda flat: self.products(sweep, flat, spread(cotangents, activity.results))  # noqa: E731
        return gradient_of(of, operands, activity.operands)

    def products(self, sweep: Sweep, operands: Flat, cotangents: Flat, /) -> Flat:
        """Of the loop's results: saved arrays have no cotangents."""
        count = len(sweep.output_types) - sweep.num_saved
        given = [i < count and not (ct is None or is_zero(ct)) for i, ct in enumerate(cotangents)]
        loop = silenced(within(sweep.vmaps, lambda: sweep.primal))

        def of_one(*flat: Any) -> Flat:
            operands, cts = flat[: len(flat) - sum(given)], flat[len(flat) - sum(given) :]
            results = pick(sweep.of_results(loop_p.bind(*operands, function=loop)), given[:count])
            return [jnp.sum(ct * x) for ct, x in zip(cts, results, strict=True)]

        return summed(of_one, sweep.vmaps, given)(*operands, *pick(cotangents, given))

    def dce(self, used: list[bool], function: Sweep) -> Any:
        """A sweep whose saved arrays are unused becomes the loop, as if an outer one advances."""
        count = len(used) - function.num_saved
        as_loop = not (function.vmaps or function.later or function.is_read_once)
        as_loop &= function.loop.inverse is None or all(function.ys)  # it computes all ys
        if as_loop and not any(used[count:]):
            carry, ys = used[: function.loop.num_carry], used[function.loop.num_carry : count]
            wanted = [*carry, *map(bool, spread(ys, function.ys))]
            results, operands, params = prune_loop(wanted, function.primal)
            kept = [*function.of_results(results), *[False] * function.num_saved]
            return kept, operands, params, loop_p
        kept, smaller = _without_unused(function, used)
        every = [True] * len(function.activity.operands)
        # The last block's tape depends on the whole carry.
        may_shrink = not function.has_rule and not smaller.saved_indices.tape
        may_shrink &= function.journal is None
        if may_shrink and function.loop.inverse is None:
            carry = list(map(max, used[: function.loop.num_carry], function.restart))
            if not all(live_carry(function.loop, carry, smaller.ys)):
                results, operands, smaller = _without_dead_carry(smaller, carry)
                return spread(results, kept), operands, {"function": smaller}
        return kept, every, {"function": smaller}

    def dce_jvp(self, used: list[bool], function: Sweep, activity: Active) -> Any:
        """A result is kept if its tangent is used."""
        dots = spread(used[len(activity.results) :], activity.results)
        wanted = [bool(u or dot) for u, dot in zip(used[: len(dots)], dots, strict=True)]
        kept, smaller = _without_unused(function, wanted)
        results = [*kept, *pick(kept, activity.results)]
        num_operands = len(activity.operands) + sum(activity.operands)
        activity = activity._replace(results=tuple(pick(activity.results, kept)))
        return results, [True] * num_operands, {"function": smaller, "activity": activity}

    def keys(self, *operands: Any, function: Sweep) -> Flat:
        return mapped(partial(run_plain_loop, function=function.loop), function.vmaps)(*operands)

    def serve(
        self, sweep: Sweep, along: Active, active: Active, operands: Flat, results: Flat, /
    ) -> tuple[Flat, Sweep | None]:
        """What the sweep saves and the tangents of that are the checkpoints of that loop, unless
        its derivative needs more."""
        if sweep.is_read_once or sweep.journal is not None:  # files hold values alone
            return [], None
        pairs, inputs, places = _pairs(sweep, along, operands)
        activity = find_activity(pairs.loop, [i is not None and active.operands[i] for i in places])
        step = linearized(pairs.loop, activity, pairs.loop.operands(inputs))
        first = len(sweep.output_types) - sweep.num_saved
        dots = spread(results[len(sweep.output_types) :], along.results)[first:]

        def paired_leaves(part: list[Any], stored: Mask, active: Mask, needed: Mask) -> list[Any]:
            values, tangents = (
                spread([x[i] for i in part], stored) for x in (results[first:], dots)
            )
            found = pick([*values, *pick(tangents, active)], needed)
            is_missing.extend(x is None for x in found)
            return found

        def pair(part: Any) -> Any:
            if isinstance(part, Carries):
                masks = sweep.restart, pairs.activity.carry, step.restart
                return Carries(paired_leaves(part.leaves, *masks)) if part.leaves else part
            if isinstance(part, Record):
                masks = sweep.record, pairs.activity.ys, step.record
                return Record(paired_leaves(part.leaves, *masks))
            return results[first + part]

        is_missing: list[bool] = []
        arrays, tree = jax.tree.flatten(sweep.saved_indices.without_tape().map(pair))
        if any(is_missing):
            return [], None
        both = sweep.of_loop(
            pairs.loop,
            activity=activity,
            restart=step.restart,
            record=step.record,
            ys=pairs.loop.all_ys,
            tapes=False,
            saved_tree=tree,
        )
        return arrays, both

    def pull_back_pushed(
        self,
        cotangents: Flat,
        operands: Flat,
        arrays: Flat,
        sweep: Sweep,
        along: Active,
        active: Active,
        aux: Sweep,
        /,
    ) -> Flat:
        pairs, inputs, places = _pairs(sweep, along, operands)
        last, num_carry = len(sweep.output_types), sweep.loop.num_carry
        given = spread(cotangents, active.results)
        (carry, ys), (carry_dot, ys_dot) = (
            (cts[:num_carry], spread(cts[num_carry : last - sweep.num_saved], sweep.ys))
            for cts in (given[:last], spread(given[last:], along.results))
        )
        masks = pairs.activity.carry, pairs.activity.ys
        of_results = [*carry, *pick(carry_dot, masks[0]), *ys, *pick(ys_dot, masks[1])]
        of_results = pick(of_results, aux.activity.results)
        nothing = [None] * sum(aux.activity.operands)
        found, _ = pull_back_loop(of_results, nothing, inputs, arrays, aux, aux.activity)
        found = dict(zip(pick(places, aux.activity.operands), found, strict=True))
        chosen = pick([*enumerate(operands)], active.operands)
        return [found[i] if i in found else zeros(cotangent_type(x)) for i, x in chosen]


ForwardSweep(forward_sweep_p)
