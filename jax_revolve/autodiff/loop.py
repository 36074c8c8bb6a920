"""The loop primitive: lax's own loop until it is differentiated.

| transformation | result |
|---|---|
| none, `jax.jit` | the plain engine |
| `jax.jvp` | the loop of values and tangents, another loop |
| `jax.vjp` | a forward sweep now, and a reverse sweep of what that saved (`_linearize`) |
| `jax.vmap` | the loop of the batched step; a while loop then runs until all examples are done |
| `checkify` and others | their version of lax's loop, with the same plan |
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import add
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_revolve._compat.functions import Batched, Flat, Mask, jvp_in
from jax_revolve._compat.interpreters import Logs, at_this_line
from jax_revolve._compat.jaxprs import call_jaxpr
from jax_revolve._compat.values import (
    int32,
    is_symbolic,
    pick,
    symbolic_zero,
    vary,
    varying_axes,
)
from jax_revolve.autodiff import log
from jax_revolve.autodiff.batching import batch_once, batched_dims, vmap_over
from jax_revolve.autodiff.derivatives import Function
from jax_revolve.autodiff.forward import run_forward_sweep
from jax_revolve.autodiff.reverse import pull_back_loop
from jax_revolve.autodiff.sweeps import Sweep, loop_p, run_plain_loop
from jax_revolve.engine.plain import run_plain
from jax_revolve.engine.tape.tape import sizes_of
from jax_revolve.jaxprs.equations import calls_rules
from jax_revolve.jaxprs.parts import without_dead_code
from jax_revolve.progress.meters import Listener
from jax_revolve.schedule import cost
from jax_revolve.schedule.arguments import TooLittleMemory
from jax_revolve.schedule.cost import Sizes
from jax_revolve.schedule.options import Options
from jax_revolve.schedule.plan import Plan
from jax_revolve.step.dead_code import known_part, prune_jvp, prune_loop
from jax_revolve.step.derived import paired
from jax_revolve.step.equation import run_around_loop
from jax_revolve.step.examples import run_examples
from jax_revolve.step.journal import Journal, cheaper, histories, journal_of
from jax_revolve.step.linearized import (
    Activity,
    Linearized,
    active_inputs,
    find_activity,
    forward_mode,
    linearized,
    primal_loop,
)
from jax_revolve.step.loop import Loop, Operands, check_plan, once, plan_of, with_carries
from jax_revolve.step.policies import keeping
from jax_revolve.step.reports import run_reporting
from jax_revolve.step.rules import with_explicit_rules
from jax_revolve.storage.buffers import first_of


def run_loop(loop: Loop, operands: list[Any], progress: Listener | None = None) -> Flat:
    if loop.obstacle is not None:
        return run_plain(loop, loop.operands(operands))
    if loop.length == 0:
        inputs = loop.operands(operands)
        return run_plain(loop, inputs) if loop.condition is None else inputs.carry
    if progress is not None:
        return run_reporting(loop, operands, progress, run_loop)[1]
    with at_this_line():
        return loop_p.bind(*operands, function=loop)


def run_counted(
    loop: Loop, operands: list[Any], progress: Listener | None = None
) -> tuple[jax.Array, Flat]:
    """The number of steps that a while loop takes, for each example under `vmap`, and its
    results."""
    assert loop.condition is not None
    if progress is not None:
        return run_reporting(loop, operands, progress, run_loop)
    none = vary(int32(0), varying_axes(loop.condition.out_avals[0]))
    # The same object each time, so that it is compiled once where it runs outside `jax.jit`.
    add, subtract = (lambda count: [count + 1]), (lambda count: [count - 1])
    counting = once(loop, ("counting",), lambda: with_carries(loop, [none], add, subtract))
    *results, steps = run_loop(counting, [*operands, none])
    return steps, results


def _as_loop(loop: Loop, fun: Callable[[Loop], Any]) -> Any:
    """`fun(loop)`, which runs a loop of lax with as many steps, with the loop primitive in its
    place. `fun` sees the loop without a bound; the result has it again."""

    def run(equation: Loop, operands: list[Any]) -> Flat:
        own = equation.with_plan(loop.length, loop.plan)
        own = own._replace(has_examples=loop.has_examples, trust=loop.trust)
        return run_loop(own, operands)

    length = None if loop.condition is not None else loop.length
    return run_around_loop(lambda: fun(loop._replace(length=length)), run)


def _batch_reversible(axis: Any, loop: Loop, dims: Flat, *operands: Any) -> Batched:
    """The loop of the batched step and inverse. A leaf of the carry is batched if either of them
    batches it."""
    assert loop.inverse is not None
    assert loop.trust is not None
    runs = call_jaxpr(loop.jaxpr), call_jaxpr(loop.inverse)
    consts, carry, xs = loop.operands([d is not None for d in dims])
    moved = [
        x if d is None else jnp.moveaxis(x, d, int(i >= loop.num_consts + loop.num_carry))
        for i, (x, d) in enumerate(zip(operands, dims, strict=True))
    ]

    def axes(batched: Flat, axis: int = 0) -> list[Any]:
        return [axis if b else None for b in batched]

    while True:
        own, init, own_xs = loop.operands(moved)
        inputs, flags = [*own, *init, *first_of(own_xs)], [*consts, *carry, *xs]
        found = batched_dims(axis, runs[0], inputs, axes(flags))
        after, ys = loop.results([d is not None for d in found])
        results = jax.eval_shape(vmap_over(axis, runs[0], axes(flags), found), *inputs)
        inputs, flags = (inputs, [*inputs, *loop.results(results)[1]]), (flags, [*flags, *ys])
        before = batched_dims(axis, runs[1], inputs[1], axes(flags[1]))
        grown = [c or a or b is not None for c, a, b in zip(carry, after, before, strict=True)]
        if carry == grown:
            break
        init = [
            jnp.broadcast_to(x, (axis.size, *x.shape)) if g and not c else x
            for x, g, c in zip(init, grown, carry, strict=True)
        ]
        moved, carry = [*own, *init, *own_xs], grown
    both = [
        without_dead_code(jax.make_jaxpr(vmap_over(axis, run, axes(flags), axes(out)))(*inputs))
        for run, inputs, flags, out in zip(runs, inputs, flags, ([*carry, *ys], carry), strict=True)
    ]
    dims, dims_out = [*axes([*consts, *carry]), *axes(xs, 1)], [*axes(carry), *axes(ys, 1)]
    run_all = vmap_over(axis, partial(run_plain_loop, function=loop), dims, dims_out)
    batched = loop._replace(
        jaxpr=both[0],
        inverse=both[1],
        output_types=tuple(jax.make_jaxpr(run_all)(*moved).out_avals),
        trust=loop.trust._replace(examples=tuple(map(add, loop.trust.examples, carry))),
    )
    return loop_p.bind(*moved, function=batched), dims_out


class _Choice(NamedTuple):
    plan: Plan
    sizes: Sizes
    journal: Journal | None


def _plan(loop: Loop, step: Linearized, operands: Operands) -> tuple[Plan, Journal | None]:
    """The loop's plan, chosen if it depends on sizes, and the journal of the histories for which
    the plan takes fewer bytes than with checkpoints of them."""
    request, is_while = loop.plan, loop.condition is not None
    shapes = [t.shape for t in operands.types if is_symbolic(t)]
    memory = request.memory if isinstance(request, Options) else None
    if memory is not None and shapes:
        raise ValueError(
            f"memory must be None where sizes are symbolic, but is {memory} for operands "
            f"of shapes such as {shapes[0]}: their sizes are unknown. Pass checkpoints."
        )
    leaves = (False,) * loop.num_carry if shapes else histories(loop, step)
    if not isinstance(request, Options) and not any(leaves):
        return plan_of(loop), None

    def choice(mask: Mask = ()) -> _Choice:
        journal = journal_of(loop, mask)
        sizes, plan = sizes_of(loop, step, operands, journal), request
        if isinstance(plan, Options):
            plan = plan.resolve(loop.length, sizes, is_while=is_while)
        assert plan is not None
        return _Choice(plan, sizes, journal)

    def cost_of(choice: _Choice) -> tuple[float, ...]:
        plan, sizes, _ = choice
        size = cost.memory(plan, sizes) - sizes.checkpoint  # slot 0 is an operand
        return (size,) if memory is None else (cost.time(plan, sizes, is_while=is_while), size)

    def find() -> tuple[Plan, Journal | None]:
        found = list[_Choice]()
        with suppress(TooLittleMemory):
            found.append(choice())
        if any(leaves):
            with suppress(TooLittleMemory):
                found.append(choice(cheaper(loop, leaves, choice(leaves).plan, operands)))
        plan, _, journal = min(found or [choice()], key=cost_of)
        return plan, journal

    return once(loop, ("plan", step.activity, operands.types), find)


def _check_collectives(loop: Loop, activity: Activity, operands: Operands) -> None:
    """Refuse a loop whose reversed steps sum cotangents over devices that take different numbers of
    steps: the devices would wait for each other forever."""
    if loop.condition is None:
        return
    going = jax.make_jaxpr(lambda: loop.holds(operands.consts, operands.carry))()
    axes = varying_axes(going.out_avals[0])
    consts = pick(operands.consts, activity.consts)
    if not all(axes <= varying_axes(jax.typeof(c)) for c in consts):
        raise NotImplementedError(
            f"Inside jax.shard_map, a while loop whose condition varies over {sorted(axes)} "
            "cannot be reversed with respect to a closed-over value that does not vary. Pass the "
            "value through jax.lax.pcast(value, axes, to='varying') before the loop."
        )


class LoopPrimitive(Function):
    has_dead_code = False  # no loop has any: see `Loop.with_plan`

    def run(self, *operands: Any, function: Loop) -> Flat:
        return run_plain_loop(*operands, function=function)

    keys = run

    def keeping(self, function: Loop, policy: Any, types: Flat, /) -> tuple[Loop, Loop] | None:
        if (found := keeping(function, policy)) is None:
            return None
        first, rest = found
        run = partial(run_plain_loop, function=first)
        return first._replace(output_types=tuple(jax.make_jaxpr(run)(*types).out_avals)), rest

    def activity(self, function: Loop, differentiated: Mask, /) -> Activity:
        return find_activity(function, differentiated)

    def primal_half(self, function: Loop, activity: Activity, /) -> Loop:
        return primal_loop(function, activity)

    dce = staticmethod(prune_loop)

    @staticmethod
    def dce_jvp(used: list[bool], function: Loop, activity: Activity) -> Any:
        """Without tangents, it is the loop of the values that rules in it return."""
        count = len(activity.results)
        if any(used[count:]) or function.inverse is not None:
            return prune_jvp(used, function, activity)
        results, operands, params = prune_loop(used[:count], primal_loop(function, activity))
        none = [False] * sum(activity.results), [False] * sum(activity.operands)
        return (*results, *none[0]), (*operands, *none[1]), params, loop_p

    known = staticmethod(known_part)

    def jvp(self, loop: Loop, activity: Activity, /, *flat: Any) -> Flat:
        """The loop of values and tangents, which is what lax makes of its loop."""
        count = len(activity.operands)
        if loop.inverse is not None:
            pairs = paired(loop, activity)
            inputs = pairs.operands(loop.operands(flat[:count]), flat[count:])
            results = loop_p.bind(*inputs, function=pairs.loop)
            values, tangents = pairs.halves(results, len(activity.ys))
            return [*values, *tangents]

        def run(plain: Loop) -> Flat:
            call = partial(run_plain_loop, function=plain)
            values, dots = jvp_in(call, flat[:count], activity.operands, flat[count:])
            return [*values, *pick(dots, activity.results)]

        return _as_loop(loop, run)

    def vjp_fwd(
        self, loop: Loop, activity: Activity, operands: Flat, /
    ) -> tuple[Flat, Flat, Loop, Sweep]:
        """Run the forward sweep. All that we derive from a loop (activity, restart set, plan) is
        computed here, once per signature."""
        check_plan(loop)
        inputs = loop.operands(operands)
        _check_collectives(loop, activity, inputs)
        step = linearized(loop, activity, inputs)
        plan, journal = _plan(loop, step, inputs)
        loop = loop._replace(plan=plan)
        log.show(loop, step, inputs, journal)
        has_rule = calls_rules(loop.jaxpr)
        primal_loop(loop, activity)  # found now, while its axes are bound, for `forward.dce`
        masks = step.restart, step.record, loop.all_ys
        sweep = Sweep(loop.jaxpr, loop, activity, *masks, True, has_rule, journal=journal)
        results, arrays, sweep = run_forward_sweep(sweep, operands)
        return results, arrays, loop, sweep

    def needed(self, function: Loop, aux: Sweep, operands: Flat, /) -> Sequence[bool]:
        del function
        needed, inputs = aux.needed, aux.loop.operands(operands)
        if not aux.is_any_needed:
            read = aux.linearized_step(aux.loop, inputs).read
            needed = (*needed[: len(needed) - len(read)], *read)
        return needed

    def vjp_bwd_into(
        self,
        cotangents: Flat,
        sums: Flat,
        operands: Flat,
        saved: Flat,
        function: Loop,
        activity: Activity,
        aux: Sweep,
    ) -> tuple[Flat, Logs]:
        del function
        return pull_back_loop(cotangents, sums, operands, saved, aux, activity)

    def explicit(
        self, loop: Loop, activity: Activity, primals: Flat, tangents: Flat, /
    ) -> tuple[Loop, Flat, Flat] | None:
        found = with_explicit_rules(loop, activity, loop.operands(primals))
        if found is None:
            return None
        (explicit, consts), at = found, loop.num_condition_consts
        nothing = [symbolic_zero(jax.typeof(c)) for c in consts]
        return (
            explicit,
            [*primals[:at], *consts, *primals[at:]],
            [*tangents[:at], *nothing, *tangents[at:]],
        )

    def effects(self, loop: Loop, activity: Activity, /) -> Any:
        return loop.effects | forward_mode(loop, active_inputs(loop, activity)).effects

    def batch(self, axis: Any, operands: Flat, dims: Flat, function: Loop) -> Batched:
        def run(loop: Loop, *operands: Any) -> Flat:
            inputs = loop.operands(operands)
            if loop.condition is None:
                return run_plain(loop, inputs)
            return run_examples(loop, inputs)

        def batch_loop(*operands: Any) -> Batched:
            if function.condition is not None and function.effects:
                # Let lax raise its error for effects that it refuses under a batched condition.
                as_lax = partial(run_plain_loop, function=function)
                jax.eval_shape(vmap_over(axis, as_lax, dims), *operands)

            def run_and_look(*flat: Any) -> Flat:
                results, consts = list(run(function, *flat)), function.operands(flat).consts
                return [
                    *results,
                    function.condition is not None and function.holds(consts, results),
                ]

            *dims_out, dim = batched_dims(axis, run_and_look, operands, dims)
            loop = function._replace(has_examples=function.has_examples or dim is not None)
            results = _as_loop(
                loop, lambda loop: vmap_over(axis, partial(run, loop), dims, dims_out)(*operands)
            )
            return results, dims_out

        rule = batch_loop
        if function.inverse is not None and function.condition is None:
            rule = partial(_batch_reversible, axis, function, dims)
        return batch_once(function, ("loop", axis), rule, operands, dims)

    def interpret(self, run: Callable[..., Any], params: dict[str, Any]) -> Any:
        """Give the plan to the loop that an interpreter makes of lax's loop."""
        if params["function"].inverse is not None:
            raise NotImplementedError(
                "inverse must be None under checkify and other interpreters of programs: they make "
                "another step of a loop's, which it does not reverse."
            )
        return _as_loop(params["function"], lambda loop: run({"function": loop}))


LoopPrimitive(loop_p)
