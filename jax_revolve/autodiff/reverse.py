"""The reverse sweep, from the arrays that a forward sweep saved to the cotangents of the operands.

    for block in reversed(blocks):                 # `engine.nest` does this
        carry = advance from the newest checkpoint to the start of the block
        tape = the residuals of the block's steps
        for step in reversed(block):
            ct_carry, ct_x = pull_back(tape[step], ct_carry, ct_ys[step])

This file has its rules for JAX: its derivative by loops (`_jvp_in_reverse`), and the product whose
gradient is its derivative in reverse mode (`_products`). See `sweeps`.
"""

from functools import partial
from operator import gt
from typing import Any

import jax
import jax.numpy as jnp

from jax_revolve._compat.functions import Active, Batched, Flat, Mask, jvp_in, jvp_of_nonzero
from jax_revolve._compat.interpreters import Logs
from jax_revolve._compat.jaxprs import call_jaxpr
from jax_revolve._compat.memories import transfers_of
from jax_revolve._compat.primitives import new_primitive
from jax_revolve._compat.values import (
    added,
    as_array,
    cotangent_type,
    instantiate,
    is_zero,
    pick,
    spread,
    substitute,
    tangent_type,
    with_weak_type,
    zeros,
)
from jax_revolve.autodiff import check
from jax_revolve.autodiff.batching import batch
from jax_revolve.autodiff.derivatives import gradient_of, summed
from jax_revolve.autodiff.sweeps import (
    Sweep,
    SweepPrimitive,
    loop_p,
    program_of,
    reverse_sweep_p,
)
from jax_revolve.engine.buffers import Saved
from jax_revolve.engine.nest import run_reverse
from jax_revolve.engine.nested import pull_back_nested
from jax_revolve.engine.tape.tape import taped_step
from jax_revolve.step.derived import paired
from jax_revolve.step.linearized import (
    Activity,
    Cotangents,
    find_activity,
    find_reached,
    linearized,
    primal_loop,
)
from jax_revolve.step.loop import is_inexact, once, plan_of
from jax_revolve.step.reports import silenced


def pull_back_loop(
    cotangents: Flat,
    sums: Flat,
    operands: Flat,
    arrays: Flat,
    aux: Sweep,
    activity: Activity,
) -> tuple[Flat, Logs]:
    """The pullback of a loop, added to `sums`, and what rules in it log. Results without
    cotangents, such as a loss's auxiliary outputs, cost nothing, and the code that computes them
    needs no reverse mode."""
    sweep, loop, checkpoints = aux, aux.loop, aux.unflatten(arrays)
    reached = find_reached(loop, activity, [not (ct is None or is_zero(ct)) for ct in cotangents])
    if reached != activity:
        inputs, whole = loop.operands(operands), sweep
        sweep = whole._replace(activity=reached, whole=activity)
        if not taped_step(sweep.linearized_step(loop, inputs)).is_transposable:
            # A user's rule may not be made for symbolic zeros. Then the trace leaves it out.
            sweep = whole
            if not any(map(gt, linearized(loop, reached, inputs).restart, whole.restart)):
                sweep = whole._replace(activity=reached)
                checkpoints = checkpoints.without_tape()  # the last block is taped again
    carry, ys = loop.results(spread(cotangents, activity.results))
    cts = Cotangents(
        [instantiate(ct) for ct in pick(carry, sweep.activity.carry)],
        [None if is_zero(ct) else ct for ct in pick(ys, sweep.activity.ys)],
    )
    sums = pick(spread(sums, activity.operands), sweep.activity.operands)
    result, logs = run_reverse_sweep(sweep, operands, checkpoints, cts, sums)
    return pick(spread(result, sweep.activity.operands), activity.operands), logs


def run_reverse_sweep(
    forward: Sweep, operands: Flat, saved: Saved, cotangents: Cotangents, sums: Flat = ()
) -> tuple[Flat, Logs]:
    """The cotangents of the loop's active operands, from what its forward sweep saved and the
    cotangents of its active results, added to `sums`; and what rules in it log."""
    arrays, tree = jax.tree.flatten(saved)
    forward = silenced(forward)
    step = forward.linearized_step(forward.loop, forward.loop.operands(operands))
    types = list(map(cotangent_type, pick(operands, forward.activity.operands)))
    logs = jax.make_jaxpr(partial(step.zeros_of_logs, forward.loop.length))().out_avals
    sweep = forward._replace(
        rule_effects=frozenset(step.code.effects | step.transposed.effects),
        ys=tuple(ct is not None for ct in cotangents.ys),
        tapes=False,
        saved_tree=tree,
        output_types=(*types, *logs),
        transfers=transfers_of(map(jax.typeof, arrays)),
        vmaps=(),
    )
    flat = [*operands, *arrays, *cotangents.carry, *pick(cotangents.ys, sweep.ys)]
    flat = list(map(as_array, flat))
    mask = tuple(x is not None for x in sums)
    if any(mask):
        run = _apart_from if check.is_on() else reverse_sweep_into_p.bind
        found = run(*flat, *pick(sums, mask), function=sweep, mask=mask)
    else:
        found = reverse_sweep_p.bind(*flat, function=sweep)
    return found[: len(types)], jax.tree.unflatten(step.log_tree, found[len(types) :])


def _tangent(value: Any, dot: Any) -> Any:
    """A tangent as an array, zeros for `None`."""
    return zeros(tangent_type(value)) if dot is None else dot


def _values_and_tangents(sweep: Sweep, primals: Flat, along: Flat) -> tuple[Flat, Flat]:
    """The loop's results that have cotangents, and their tangents in the given directions."""
    loop, given = sweep.loop, [d is not None for d in along]
    own = sweep.activity

    def of_cotangents(results: Flat) -> Flat:
        carry, ys = loop.results(results)
        return [*pick(carry, own.carry), *pick(pick(ys, own.ys), sweep.ys)]

    if not sweep.later:
        run = lambda *primals: of_cotangents(loop_p.bind(*primals, function=loop))  # noqa: E731
        return jvp_in(run, primals, given, pick(along, given))
    # Both as they are once they are linearized, with the rules that this applies.
    pairs = paired(loop, find_activity(loop, given))
    both, nothing = pairs.loop, [False] * sum(given)
    for mask in sweep.later:
        active = pairs.operands(loop.operands(mask), nothing, start=lambda _: False)
        both = primal_loop(both, find_activity(both, active))
    inputs = pairs.operands(loop.operands(primals), pick(along, given))
    values, dots = pairs.halves(loop_p.bind(*inputs, function=both), len(own.ys))
    dots = spread(dots, pairs.activity.results)
    pairs_of_results = zip(of_cotangents(dots), of_cotangents(values), strict=True)
    return of_cotangents(values), [_tangent(x, dot) for dot, x in pairs_of_results]


def _nested(sweep: Sweep, flat: Flat) -> Flat:
    """The results of a sweep of one example, by the nested engine."""
    if sweep.loop.inverse is not None:
        raise NotImplementedError(
            "inverse must be None where the gradient of a loop is differentiated whose step calls "
            "a function with a custom_vjp, has a linear primitive of another library, or has a "
            "derivative without reverse mode: its second derivatives take nested scans under "
            "jax.checkpoint, which walk nothing back."
        )
    operands, _, cotangents = sweep.take_apart(flat)
    # JAX may map the nested engine without our batching rule, so its step must allow for it.
    steps = sweep.when_mapped().steps(operands, borrows=True)
    return jax.tree.leaves(pull_back_nested(steps, sweep.cotangents(cotangents)))


class ReverseSweep(SweepPrimitive):
    def of_example(self, sweep: Sweep, /, *flat: Any) -> Flat:
        return self.into(sweep, (), *flat)

    def into(self, sweep: Sweep, mask: Mask, /, *flat: Any) -> Flat:
        """The results, added to the last operands if the mask marks any."""

        def run(*flat: Any) -> Flat:
            flat, sums = flat[: len(flat) - sum(mask)], flat[len(flat) - sum(mask) :]
            operands, arrays, cotangents = sweep.take_apart(flat)
            totals = sweep.sums(spread(sums, mask)) if any(mask) else None
            steps, cts = sweep.steps(operands), sweep.cotangents(cotangents)
            plan = plan_of(sweep.loop)
            saved = sweep.unflatten(arrays)
            saved = saved.without_tape() if sweep.later or sweep.keeps_rules else saved
            result = run_reverse(steps, plan, saved, cts, totals)
            if check.is_on() and plan.codec is None:
                result = check.checked(steps, plan, cts, result, is_plain=not sweep.later)
            result = jax.tree.leaves(result)
            types = map(cotangent_type, pick(operands, sweep.activity.operands))
            types = [*types, *steps.linearized.log_types]
            return list(map(with_weak_type, result, types))

        key = ("reverse sweep", check.is_on(), mask, sweep.saved_tree, *map(jax.typeof, flat))
        trace = lambda: program_of(sweep, run, *flat)[0]  # noqa: E731
        return call_jaxpr(once(sweep.untraced, key, trace))(*flat)

    def jvp_by_loops(self, sweep: Sweep, active: Active, /, *flat: Any) -> Flat:
        """The results of a sweep of one example, then their tangents, by loops: see `sweeps`."""
        mask = active.operands
        flat, tangents = flat[: len(mask)], flat[len(mask) :]
        primals, arrays, cts = sweep.take_apart(flat)
        saved = sweep.unflatten(arrays)
        along, _, cts_dot = sweep.take_apart(spread(tangents, mask))
        if all(dot is None for dot in along) and not sweep.logs:  # it is linear in the cotangents
            dots = [_tangent(x, dot) for x, dot in zip(cts, cts_dot, strict=True)]
            run = lambda cts: run_reverse_sweep(sweep, primals, saved, sweep.cotangents(cts))[0]  # noqa: E731
            if sweep.is_read_once:  # a checkpoint file can be read only once
                both = jax.vmap(run)([jnp.stack(pair) for pair in zip(cts, dots, strict=True)])
                return [x[i] for i in range(2) for x in both]
            return [*run(cts), *run(dots)]
        active_operands = sweep.activity.operands
        if sweep.is_opaque:
            results, dots = jvp_in(lambda *flat: _nested(sweep, flat), flat, mask, tangents)
            return [*results, *dots]
        moved = [dot is not None for dot in along]

        def product(chosen: Flat, directions: Flat) -> Flat:
            at = substitute(primals, moved, chosen)
            return _values_and_tangents(sweep, at, spread(directions, active_operands))[1]

        def pushed(directions: Flat, directions_dot: Flat) -> tuple[Flat, Flat]:
            primal, dots = (pick(primals, moved), directions), (pick(along, moved), directions_dot)
            return jax.jvp(product, primal, dots)

        nothing = [zeros(tangent_type(x)) for x in pick(primals, active_operands)]
        _, pullback = jax.vjp(pushed, nothing, nothing)  # it is linear in both
        tangent, value = pullback((list(map(_tangent, cts, cts_dot)), list(cts)))
        return [*value, *tangent]

    def activity(self, sweep: Sweep, differentiated: Mask, /) -> Active:
        """Saved arrays have no tangents of their own: they are functions of the operands."""
        of_loop, _, of_cotangents = sweep.take_apart(differentiated)
        is_any = any([*of_loop, *of_cotangents])
        return Active(differentiated, tuple(is_any and is_inexact(t) for t in sweep.output_types))

    def with_tangents(self, sweep: Sweep, activity: Active, operands: Flat, /) -> Active:
        """All results have a tangent."""
        del sweep, operands
        return activity

    def vjp_bwd(
        self,
        cotangents: Flat,
        operands: Flat,
        saved: Flat,
        function: Sweep,
        activity: Active,
        aux: None,
    ) -> Flat:
        """The gradient of the product of the cotangents with the sweep's results."""
        del saved, aux
        of_loop, of_saved, of_cts = function.take_apart(activity.operands)
        mask = [*of_loop, *[False] * len(of_saved), *of_cts]
        cotangents = spread(cotangents, activity.results)
        result = gradient_of(lambda flat: self.products(function, flat, cotangents), operands, mask)
        return pick(spread(result, mask), activity.operands)

    def products(self, sweep: Sweep, operands: Flat, cotangents: Flat, /) -> Flat:
        given = tuple(not (ct is None or is_zero(ct)) for ct in cotangents)

        def of_one(*flat: Any) -> Flat:
            flat, directions = flat[: len(operands)], flat[len(operands) :]
            if sweep.is_opaque:
                factors = pick(_nested(sweep, flat), given), directions
            else:
                primals, _, cts = sweep.take_apart(flat)
                along = spread(spread(directions, given), sweep.activity.operands)
                factors = cts, _values_and_tangents(sweep, primals, along)[1]
            return [jnp.sum(a * b) for a, b in zip(*factors, strict=True)]

        return summed(of_one, sweep.vmaps, given)(*operands, *pick(cotangents, given))

    def dce_jvp(self, used: list[bool], function: Sweep, activity: Active) -> Any:
        """In the direction of a loop's operand, the derivative makes a tape of its own, and need
        not compute all values: XLA would not find out in loops in loops."""
        of_loop, _, _ = function.take_apart(activity.operands)
        kept = [True] * len(activity.operands)
        if any(of_loop) and function.saved_indices.tape:
            for i in function.saved_indices.tape:
                kept[len(of_loop) + i] = False
            vmaps = tuple(v._replace(dims=tuple(pick(v.dims, kept))) for v in function.vmaps)
            function = function.without_tape()._replace(vmaps=vmaps)
        operands = [*kept, *pick(kept, activity.operands)]
        values = tuple(used[: len(function.output_types)])
        activity = activity._replace(operands=tuple(pick(activity.operands, kept)), values=values)
        return [True] * len(used), operands, {"function": function, "activity": activity}


_REVERSE = ReverseSweep(reverse_sweep_p)


def _into(*flat: Any, function: Sweep, mask: Mask) -> Flat:
    return _REVERSE.into(function, mask, *flat)


def _apart_from(*flat: Any, function: Sweep, mask: Mask) -> Flat:
    """The same, added afterwards."""
    flat, sums = flat[: len(flat) - sum(mask)], flat[len(flat) - sum(mask) :]
    found = reverse_sweep_p.bind(*flat, function=function)
    return [*map(added, spread(sums, mask), found), *found[len(mask) :]]


def _batch_into(axis: Any, flat: Flat, dims: Flat, **params: Any) -> Batched:
    return batch(axis, partial(_apart_from, **params), dims, *flat)


def _jvp_of_into(primals: Flat, tangents: Flat, **params: Any) -> Any:
    return jvp_of_nonzero(partial(_apart_from, **params), primals, tangents)


reverse_sweep_into_p = new_primitive(
    "checkpointed_loop_reverse_sweep_into",
    implementation=_into,
    output_types=lambda *_, function, mask: (function.output_types, function.effects),
    batch=_batch_into,
    jvp=_jvp_of_into,
    has_dead_code=False,
)
"""A reverse sweep that adds to what `mask` marks, in place: the contents of references in which the
user accumulates gradients."""
