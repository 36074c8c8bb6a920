"""A loop and its two sweeps as primitives, with the rules for each transformation.

The loop primitive stands for a whole loop. Its derivative in forward mode is the loop of values and
tangents. In reverse mode it is linearized by the forward sweep, which holds checkpoints, and pulled
back by the reverse sweep.

Both sweeps are primitives, too, and every derivative of a sweep consists of sweeps again. Write
`L(p)` for the loop as a function of its operands, `J(p)` for its derivative, `S(p, w) = J(p)^T w`
for the reverse sweep, and `T(p, p') = (L(p), J(p) p')` for the loop of values and tangents, which
is a loop like any other.

The derivative of the forward sweep of `L` is the forward sweep of `T`, whose slots hold pairs: the
values are what the sweep of `L` holds, and the tangents are the derivative of that. So a derivative
of a gradient finds the pairs there, and runs nothing twice.

Second derivatives of `<w, L>` are symmetric, so

    S' = J^T w' + d/dp <w, J p'>

is the cotangent of `p` if `T` is pulled back with the cotangents `w'` of the values and `w` of the
tangents. The cotangent of `p'` is `S` itself: one reverse sweep of `T` computes both. And `S'` is
linear in `p'` and `w'`. Since `<u, S'>` is the derivative of `<w, J(p) u>` in their direction, its
transpose at `u` is the gradient of that product with respect to `p` and `w`: the loop of values and
tangents once more, forward and in reverse.

The rule holds where derivative rules are derivatives. A step with a `custom_vjp` function has no
forward mode, and a `custom_jvp` rule of a user may be anything. And `T` is pulled back, so the
derivative of the step must have a reverse mode. The reverse sweep of other loops is differentiated
as the pullback of the nested engine.

A batched sweep is recorded as the sweep of one example and the axes that it is mapped over, so that
its derivative is the derivative of one example's, mapped over the same axes. The sweep of a batched
loop would not do: it adds up the cotangents of operands that are not batched, where `jax.vmap` of
a gradient returns one for each example.

Sweeps are primitives because a `jax.custom_jvp` function loses its rule in the body of a `lax.scan`
that is linearized: up to 0.10 JAX looks there for what is the same at every step by partial
evaluation, which takes such functions apart.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from operator import add, gt
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat.jaxprs import ClosedJaxpr, call_jaxpr, source_of_function
from jax_revolve._compat.memories import moves_of
from jax_revolve._compat.primitives import Primitive
from jax_revolve._compat.values import (
    as_array,
    cotangent_type,
    instantiate,
    is_symbolic,
    is_zero,
    tangent_type,
    vary,
    varying_axes,
    with_weak_type,
    zeros,
)
from jax_revolve.autodiff import check, log
from jax_revolve.autodiff.batching import (
    Batched,
    Vmap,
    batch_once,
    batched_dims,
    mapped,
    vmap_over,
    within,
)
from jax_revolve.autodiff.derivatives import Active, Flat, Rules, function_primitive
from jax_revolve.engine.nested import pull_back_nested
from jax_revolve.engine.offline import run_forward_offline, tape_the_last_block
from jax_revolve.engine.online import run_forward_online
from jax_revolve.engine.plain import run_plain
from jax_revolve.engine.reverse import run_reverse
from jax_revolve.engine.slots import Held
from jax_revolve.engine.tape.tape import sizes_of, taped_step
from jax_revolve.jaxprs.equations import has_rule_of_user
from jax_revolve.jaxprs.walk import with_equations
from jax_revolve.progress.listener import when_run_again
from jax_revolve.schedule.selection import Request
from jax_revolve.schedule.storage import Disk
from jax_revolve.schedule.two_level import AnyPlan
from jax_revolve.step.dead_code import known_part, prune_jvp, prune_loop
from jax_revolve.step.derived import Paired, paired
from jax_revolve.step.equation import run_around_loop
from jax_revolve.step.examples import run_examples
from jax_revolve.step.linearized import (
    Activity,
    Cotangents,
    Linearized,
    find_activity,
    find_reached,
    linearized,
    live_carry,
    primal_loop,
)
from jax_revolve.step.loop import (
    Loop,
    Mask,
    Operands,
    check_plan,
    once,
    pick,
    plan_of,
    spread,
    substitute,
)
from jax_revolve.step.steps import Steps
from jax_revolve.storage.buffers import read

# The loop


def run_loop(loop: Loop, operands: list[Any]) -> Flat:
    if loop.obstacle is not None:
        return run_plain(loop, loop.operands(operands))
    if loop.length == 0:
        inputs = loop.operands(operands)
        return run_plain(loop, inputs) if loop.condition is None else inputs.carry
    return loop_p.bind(*operands, function=loop)


def run_counted(loop: Loop, operands: list[Any]) -> tuple[jax.Array, Flat]:
    """The steps that a while loop takes, of each example under `vmap`, and the loop's results."""
    assert loop.condition is not None
    none = vary(jnp.int32(0), varying_axes(loop.condition.out_avals[0]))
    at = loop.num_consts
    # The same loop each time, so that it is compiled once where it runs outside `jax.jit`.
    counting = once(loop, ("counting",), lambda: _counting(loop, none))
    steps, *results = run_loop(counting, [*operands[:at], none, *operands[at:]])
    return steps, results


def _counting(loop: Loop, none: jax.Array) -> Loop:
    """A while loop with the number of its steps as the first carry."""
    one_more = jax.make_jaxpr(lambda steps: steps + 1)(none).jaxpr

    def counted(jaxpr: Any, num_consts: int, equations: list[Any], results: list[Any]) -> Any:
        variables = getattr(jaxpr, "jaxpr", jaxpr)
        invars = list(variables.invars)
        invars[num_consts:num_consts] = one_more.invars
        outvars = [*results, *variables.outvars]
        return with_equations(jaxpr, [*jaxpr.eqns, *equations], invars=invars, outvars=outvars)

    used = loop.num_consts - loop.num_condition_consts
    return loop._replace(
        jaxpr=counted(loop.jaxpr, used, one_more.eqns, one_more.outvars),
        condition=counted(loop.condition, loop.num_condition_consts, [], []),
        num_carry=loop.num_carry + 1,
        output_types=(jax.typeof(none), *loop.output_types),
    )


def _as_loop(loop: Loop, fun: Callable[[Loop], Any]) -> Any:
    """`fun(loop)`, which runs a loop of lax with as many steps, with the loop primitive for it.

    The bound of a while loop is left out of its condition here, and belongs to the result again. So
    does its progress.
    """

    def run(equation: Loop, operands: list[Any]) -> Flat:
        own = equation.with_plan(loop.length, loop.plan, loop.progress)
        own = own._replace(has_examples=loop.has_examples, trust=loop.trust)
        return run_loop(own, operands)

    length = None if loop.condition is not None else loop.length
    bare = loop._replace(length=length, progress=None)
    return run_around_loop(lambda: fun(bare), run)


def _run_plain_loop(*operands: Any, function: Loop) -> Flat:
    return run_plain(function, function.operands(operands))


def _loop_batching(axis: Any, operands: Flat, dims: Flat, function: Loop) -> Batched:
    def run(loop: Loop, *operands: Any) -> Flat:
        inputs = loop.operands(operands)
        if loop.condition is None:
            return run_plain(loop, inputs)
        return run_examples(loop, inputs)

    def batch_loop(*operands: Any) -> Batched:
        if function.condition is not None and function.body_effects:
            # lax refuses a batched condition beside some effects.
            as_lax = partial(_run_plain_loop, function=function._replace(progress=None))
            jax.eval_shape(vmap_over(axis, as_lax, dims), *operands)

        def run_and_look(*flat: Any) -> Flat:
            results, consts = list(run(function, *flat)), function.operands(flat).consts
            return [*results, function.condition is not None and function.holds(consts, results)]

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


def _batch_reversible(axis: Any, loop: Loop, dims: Flat, *operands: Any) -> Batched:
    """The loop of the batched step and the batched inverse. A leaf of the carry is batched if
    either of them makes it so."""
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
        inputs, flags = [*own, *init, *read(own_xs, 0)], [*consts, *carry, *xs]
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
        jax.make_jaxpr(vmap_over(axis, run, axes(flags), axes(out)))(*inputs)
        for run, inputs, flags, out in zip(runs, inputs, flags, ([*carry, *ys], carry), strict=True)
    ]
    dims, dims_out = [*axes([*consts, *carry]), *axes(xs, 1)], [*axes(carry), *axes(ys, 1)]
    run_all = vmap_over(axis, partial(_run_plain_loop, function=loop), dims, dims_out)
    batched = loop._replace(
        jaxpr=both[0],
        inverse=both[1],
        output_types=tuple(jax.make_jaxpr(run_all)(*moved).out_avals),
        trust=loop.trust._replace(examples=tuple(map(add, loop.trust.examples, carry))),
    )
    return loop_p.bind(*moved, function=batched), dims_out


def _interpret_loop(run: Callable[..., Any], params: dict[str, Any]) -> Any:
    """What an interpreter makes of the loop of lax is a loop with the same plan."""
    if params["function"].inverse is not None:
        raise NotImplementedError(
            "inverse must be None under checkify, jet and other interpreters of programs: they "
            "make another step of a loop's, which it does not reverse."
        )
    return _as_loop(params["function"], lambda loop: run({"function": loop}))


def _loop_jvp(loop: Loop, activity: Activity, *flat: Any) -> Flat:
    """The loop of values and tangents."""
    count, pairs = len(activity.operands), paired(loop, activity)
    inputs = pairs.operands(loop.operands(flat[:count]), flat[count:])
    results = loop_p.bind(*inputs, function=pairs.loop)
    values, tangents = _halves(pairs, results, len(activity.ys))
    return [*values, *tangents]


def _halves(pairs: Paired, results: Flat, num_ys: int) -> tuple[Flat, Flat]:
    """The values, with so many ys, and the tangents, from the results of the loop of both."""
    num_carry = len(pairs.activity.carry)
    carry, ys = pairs.loop.results(results)
    return [*carry[:num_carry], *ys[:num_ys]], [*carry[num_carry:], *ys[num_ys:]]


def _loop_linearize(
    loop: Loop, activity: Activity, operands: Flat
) -> tuple[Flat, Flat, Loop, "Sweep"]:
    """All that is to know of the loop is found here, once for a signature."""
    check_plan(loop)
    inputs = loop.operands(operands)
    _check_collectives(loop, activity, inputs)
    step = linearized(loop, activity, inputs)
    loop = loop._replace(plan=_plan(loop, step, inputs))
    log.show(loop, step, inputs)
    has_rule = has_rule_of_user(loop.jaxpr)
    sweep = Sweep(
        loop.jaxpr, loop, activity, step.restart, step.record, loop.all_ys, True, has_rule
    )
    results, arrays, sweep = _run_forward_sweep(sweep, operands)
    return results, arrays, loop, sweep


def _plan(loop: Loop, step: Linearized, operands: Operands) -> AnyPlan:
    """The loop's plan, chosen if it is a request."""
    request = loop.plan
    if not isinstance(request, Request):
        return plan_of(loop)

    shapes = [t.shape for t in operands.types if is_symbolic(t)]
    if request.memory is not None and shapes:
        raise ValueError(
            f"memory must be None where sizes are symbolic, but is {request.memory} for operands "
            f"of shapes such as {shapes[0]}: their sizes are unknown. Pass checkpoints."
        )
    resolve = lambda: request.resolve(sizes_of(loop, step, operands))  # noqa: E731
    return once(loop, ("plan", step.activity, operands.types), resolve)


def _check_collectives(loop: Loop, activity: Activity, operands: Operands) -> None:
    """Refuse a loop of which devices run different numbers of reversed steps, each of which adds up
    cotangents over the devices: they would wait for each other for ever."""
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


def _loop_pull_back(
    cotangents: Flat, operands: Flat, arrays: Flat, held: "Sweep", activity: Activity, **_: Any
) -> Flat:
    """Results that have no cotangents, such as what a loss returns beside its value, cost nothing,
    and what computes them needs no reverse mode."""
    sweep, loop, checkpoints = held, held.loop, held.tree(arrays)
    part = find_reached(loop, activity, [not (ct is None or is_zero(ct)) for ct in cotangents])
    if part != activity:
        needed = linearized(loop, part, loop.operands(operands)).restart
        if not any(map(gt, needed, sweep.restart)):  # the last block is taped again
            sweep, checkpoints = sweep._replace(activity=part), checkpoints._replace(tape=None)
    carry, ys = loop.results(spread(cotangents, activity.results))
    cts = Cotangents(
        [instantiate(ct) for ct in pick(carry, sweep.activity.carry)],
        [None if is_zero(ct) else ct for ct in pick(ys, sweep.activity.ys)],
    )
    result = _run_reverse_sweep(sweep, operands, checkpoints, cts)
    return pick(spread(result, sweep.activity.operands), activity.operands)


def _with_progress(function: Any, change: Callable[[Any], Any]) -> Any:
    """A loop, or a sweep, with the progress of the loop changed."""
    if isinstance(function, Sweep):
        return function._replace(loop=_with_progress(function.loop, change))
    return function._replace(progress=change(function.progress))


loop_p = function_primitive(
    "checkpointed_loop",
    Rules(
        run=_run_plain_loop,
        batch=_loop_batching,
        activity=find_activity,
        jvp=_loop_jvp,
        pull_back=_loop_pull_back,
        primal_half=primal_loop,
        linearize=_loop_linearize,
        needed=lambda _, sweep: sweep.needed,
        with_progress=_with_progress,
        prune=prune_loop,
        prune_jvp=prune_jvp,
        known=known_part,
        keys=_run_plain_loop,
        interpret=_interpret_loop,
    ),
)


# What sweeps have in common


class Sweep(NamedTuple):
    """A sweep over a loop, forward or in reverse.

    The forward sweep takes the loop's operands. It returns the carry, the ys that `ys` marks, and
    the leaves of what is `held` for a reverse sweep of this activity. If it `tapes`, the last
    block's tape is among them.

    The operands of the reverse sweep are the loop's, the leaves of what is `held`, and the
    cotangents: of each active carry, and of those active ys that `ys` marks.
    """

    jaxpr: ClosedJaxpr
    """The loop's: JAX and this library look for jaxprs among the fields of a parameter."""
    loop: Loop
    activity: Activity
    restart: Mask
    """Which leaves of the carry a checkpoint holds."""
    record: Mask
    """Which ys are held for an inverse."""
    ys: Mask
    tapes: bool
    has_rule: bool
    """Whether the step has a derivative rule of a user, which need not be a derivative."""
    held: Any = None
    output_types: tuple[Any, ...] = ()
    moves: ClosedJaxpr | None = None
    vmaps: tuple[Vmap, ...] = ()
    """The axes that it is mapped over, the innermost first."""
    is_mapped: bool = False
    """Whether `jax.vmap` maps a while loop, whose examples may be done before others."""
    later: tuple[Mask, ...] = ()
    """If the sweep was linearized itself, the operands of the loop that were differentiated."""

    @property
    def asked(self) -> "Sweep":
        """What is known before it is traced: the rest follows from this and the operands."""
        return self._replace(held=None, output_types=(), moves=None, vmaps=())

    def of_loop(self, loop: Loop, **fields: Any) -> "Sweep":
        """The sweep over another loop, with other fields as well."""
        return self._replace(jaxpr=loop.jaxpr, loop=loop, **fields)

    @property
    def effects(self) -> Any:
        return self.loop.effects

    @property
    def num_held(self) -> int:
        return self.held.num_leaves

    def tree(self, arrays: Flat) -> Held:
        return jax.tree.unflatten(self.held, arrays)

    @property
    def numbers_held(self) -> Held:
        """The numbers of the leaves that are held, in their places."""
        return self.tree(range(self.num_held))

    @property
    def is_on_disk(self) -> bool:
        """Whether it holds tickets of files, which have no tangents."""
        return isinstance(getattr(self.loop.plan, "storage", None), Disk)

    @property
    def holds_pairs(self) -> bool:
        """Whether the forward sweep's derivative is a sweep of values and tangents."""
        return not (self.is_on_disk or self.has_rule)

    def of_results(self, values: Flat) -> list[Any]:
        """Of values with one entry for each result of the loop, the forward sweep's."""
        carry, ys = self.loop.results(values)
        return [*carry, *pick(ys, self.ys)]

    @property
    def needed(self) -> Mask:
        """The operands of the loop on which its linearization depends. A rule of a user may depend
        on more once it is differentiated."""
        first, count = self.loop.num_consts, self.loop.num_carry
        every = self.has_rule or self.loop.inverse is not None
        carry = [every or stored for stored in self.restart]
        num_xs = len(self.activity.operands) - first - count
        return (*[True] * first, *carry, *[True] * num_xs)

    def take_apart(self, flat: Flat) -> tuple[list[Any], list[Any], list[Any]]:
        """Operands of the loop, what is held, and cotangents, of the reverse sweep's operands."""
        first = len(self.activity.operands)
        last = first + self.num_held
        return list(flat[:first]), list(flat[first:last]), list(flat[last:])

    def cotangents(self, flat: Flat) -> Cotangents:
        """The reverse sweep's, with `None` for the ys that have none."""
        num_carry = sum(self.activity.carry)
        return Cotangents(list(flat[:num_carry]), spread(flat[num_carry:], self.ys))

    def steps(self, operands: Flat, *, again: bool = False) -> Steps:
        """The steps that it runs, perhaps `again`."""
        loop, inputs = self.loop.run_again() if again else self.loop, self.loop.operands(operands)
        step = linearized(loop, self.activity, inputs, self.later, is_mapped=self.is_mapped)
        if any(map(gt, (*step.restart, *step.record), (*self.restart, *self.record))):
            raise NotImplementedError(
                f"A second derivative of {source_of_function(loop.jaxpr)} needs values of the "
                "carry that the first one does not, because a custom_jvp or custom_vjp rule in it "
                "uses them only if it is differentiated itself. Use jax.lax.scan for this loop."
            )
        return Steps.of(loop, self.restart, inputs, step, self.record)

    def when_mapped(self) -> "Sweep":
        """The sweep under `jax.vmap`. A scan has the same steps there, and is not traced again."""
        return self._replace(is_mapped=self.loop.condition is not None)

    def held_of(self, name: str, of_loop: Any) -> list[Any]:
        """Of values for each leaf of the carry and for each y, those that a part of what is held
        has entries for."""
        if name == "record":
            return pick(of_loop.ys, self.record)
        return pick(of_loop.carry, self.restart)

    @property
    def primal(self) -> Loop:
        """The loop whose derivatives are the derivatives of the forward sweep's results."""
        loop = primal_loop(self.loop, self.activity)
        for mask in self.later:
            loop = primal_loop(loop, find_activity(loop, mask))
        return loop

    def without_tape(self) -> "Sweep":
        held = jax.tree.structure(self.numbers_held._replace(tape=None))
        return self._replace(tapes=False, held=held)


def _sweep_primitive(
    name: str, of_one: Callable[..., Flat], jvp_of_one: Callable[..., Flat], **rules: Any
) -> Primitive:
    """The primitive of sweeps, from `of_one(sweep, *operands)`, the results of a sweep of one
    example, and `jvp_of_one(sweep, active, *operands, *tangents)`, the results and then the
    tangents of the active ones."""

    def run(*flat: Any, function: Sweep) -> Flat:
        return mapped(partial(of_one, function), function.vmaps)(*map(as_array, flat))

    def batch(axis: Any, flat: Flat, dims: Flat, function: Sweep) -> Batched:
        """The sweep mapped over one more axis."""
        flat, function = list(map(as_array, flat)), function.when_mapped()

        def find() -> tuple[Vmap, tuple[Any, ...]]:
            run_all = partial(run, function=function)
            dims_out = batched_dims(axis, run_all, flat, dims)
            types = jax.make_jaxpr(vmap_over(axis, run_all, dims, dims_out))(*flat).out_avals
            return Vmap(axis, tuple(dims), tuple(dims_out)), tuple(types)

        key = ("batched sweep", name, axis, tuple(dims), *map(jax.typeof, flat))
        vmap, types = once(function, key, find)
        batched = function._replace(vmaps=(*function.vmaps, vmap), output_types=types)
        return primitive.bind(*flat, function=batched), vmap.dims_out

    def jvp(function: Sweep, active: Active, *flat: Any) -> Flat:
        run_all = mapped(
            partial(jvp_of_one, function, active),
            function.vmaps,
            lambda vmap: pick(vmap.dims, active.operands),
            lambda vmap: [*vmap.dims_out, *pick(vmap.dims_out, active.results)],
        )
        return run_all(*flat)

    same = {"primal_half": _sweep_primal_half, "with_progress": _with_progress}
    primitive = function_primitive(name, Rules(run=run, batch=batch, jvp=jvp, **same, **rules))
    return primitive


def _again(loop: Loop) -> Loop:
    """The loop of a sweep, to be run and differentiated again."""
    return _with_progress(loop.run_again(), when_run_again)


def _sweep_primal_half(sweep: Sweep, activity: Active) -> Sweep:
    """What computes the sweep's results once it is linearized: derivative rules that this
    derivative needs, but not the sweep, are applied in its steps, too."""
    mask = activity.operands[: len(sweep.activity.operands)]
    return sweep._replace(later=(*sweep.later, mask)) if sweep.has_rule and any(mask) else sweep


# The forward sweep


def _run_forward_sweep(asked: Sweep, operands: Flat) -> tuple[Flat, Flat, Sweep]:
    """The loop's results that are kept, the leaves of what is held for the reverse sweep, and the
    sweep."""
    operands = list(map(as_array, operands))
    traced, held = _trace_forward_sweep(asked, operands)
    types = tuple(traced.out_avals)
    fields = {"held": held, "output_types": types, "moves": moves_of(types), "vmaps": ()}
    sweep = asked._replace(**fields)
    flat = forward_sweep_p.bind(*operands, function=sweep)
    count = len(flat) - held.num_leaves
    return flat[:count], flat[count:], sweep


def _trace_forward_sweep(sweep: Sweep, operands: Flat) -> tuple[ClosedJaxpr, Any]:
    """The forward sweep of one example, and the tree of what it holds."""
    loop = sweep.loop

    def run(*operands: Any) -> tuple[Flat, Held]:
        plan, steps = plan_of(loop), sweep.steps(operands)
        if loop.condition is None:
            results, held = run_forward_offline(steps, plan, sweep.ys, tapes=sweep.tapes)
        else:
            results, held = run_forward_online(steps, plan)
        return list(map(with_weak_type, results, sweep.of_results(loop.output_types))), held

    def trace() -> tuple[ClosedJaxpr, Any]:
        traced, shape = jax.make_jaxpr(run, return_shape=True)(*operands)
        return traced, jax.tree.structure(shape[1])

    return once(sweep.asked, ("forward sweep", *map(jax.typeof, operands)), trace)


def _forward_sweep_of_one(sweep: Sweep, *operands: Any) -> Flat:
    if not (sweep.later and sweep.numbers_held.tape):
        return call_jaxpr(_trace_forward_sweep(sweep, operands)[0])(*operands)
    # The residuals are others once the step is linearized again. The reverse sweep tapes those
    # itself; a reverse sweep that is not linearized again finds what it was made for.
    bare = sweep.without_tape()
    results = _forward_sweep_of_one(bare, *operands)
    held = bare.tree(results[len(results) - bare.num_held :])
    steps = sweep._replace(later=()).steps(operands, again=True)
    tape = tape_the_last_block(steps, plan_of(sweep.loop), held)
    kept = results[: len(results) - bare.num_held]
    return [*kept, *jax.tree.leaves(held._replace(tape=tape))]


def _forward_sweep_keys(*operands: Any, function: Sweep) -> Flat:
    return mapped(partial(_run_plain_loop, function=function.loop), function.vmaps)(*operands)


def _without_unused(sweep: Sweep, used: Sequence[bool]) -> tuple[list[bool], Sweep]:
    """Which results a sweep keeps, and the sweep with those alone. Unused ys are not computed: XLA
    does not find out by itself that a loop inside a loop only carries a buffer along. The last
    block is taped apart from all else. The same loop computes all of the carry and of what else is
    held."""
    num_carry, first = sweep.loop.num_carry, len(sweep.output_types) - sweep.num_held
    ys, tape = used[num_carry:first], sweep.numbers_held.tape or []
    is_taped = any(used[first + number] for number in tape)
    held = [is_taped or number not in tape for number in range(sweep.num_held)]
    kept = [*[True] * num_carry, *ys, *held]
    smaller = sweep._replace(
        ys=tuple(substitute(sweep.ys, sweep.ys, ys)),
        output_types=tuple(pick(sweep.output_types, kept)),
        vmaps=tuple(v._replace(dims_out=tuple(pick(v.dims_out, kept))) for v in sweep.vmaps),
    )
    return kept, smaller if is_taped or not tape else smaller.without_tape()


def _forward_sweep_prune(used: list[bool], function: Sweep) -> Any:
    """A sweep whose checkpoints nobody takes is the loop. So are inner loops where an outer loop
    advances."""
    count = len(used) - function.num_held
    as_loop = not (function.vmaps or function.has_rule or function.is_on_disk)
    as_loop &= function.loop.inverse is None or all(function.ys)  # it computes all ys
    if as_loop and not any(used[count:]):
        carry, ys = used[: function.loop.num_carry], used[function.loop.num_carry : count]
        wanted = [*carry, *map(bool, spread(ys, function.ys))]
        results, operands, params = prune_loop(wanted, function.loop)
        kept = [*function.of_results(results), *[False] * function.num_held]
        return kept, operands, params, loop_p
    kept, smaller = _without_unused(function, used)
    every = [True] * len(function.activity.operands)
    # The last block's tape is of the whole carry.
    may_shrink = not function.has_rule and smaller.numbers_held.tape is None
    if may_shrink and function.loop.inverse is None:
        carry = list(map(max, used[: function.loop.num_carry], function.restart))
        if not all(live_carry(function.loop, carry, smaller.ys)):
            results, operands, smaller = _without_dead_carry(smaller, carry)
            return spread(results, kept), operands, {"function": smaller}
    return kept, every, {"function": smaller}


def _without_dead_carry(sweep: Sweep, used: list[bool]) -> tuple[list[bool], Mask, Sweep]:
    """The sweep without the carry on which neither the used one nor a checkpoint depends."""
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
            Vmap(v.axis, tuple(pick(v.dims, operands)), tuple(pick(v.dims_out, kept_results)))
            for v in sweep.vmaps
        ),
    )
    return kept_results, operands, smaller


def _forward_sweep_activity(sweep: Sweep, differentiated: Mask) -> Active:
    """Also what the reverse sweep differentiates: its derivative needs the pairs of that."""
    directed = tuple(map(max, differentiated, sweep.activity.operands))
    activity = within(sweep.vmaps, lambda: find_activity(sweep.loop, directed))
    held = sweep.tree([False] * sweep.num_held)
    if sweep.holds_pairs:
        held = _in_checkpoints(lambda name, _: sweep.held_of(name, activity), held)
    results = (*sweep.of_results(activity.results), *jax.tree.leaves(held))
    return Active(activity.operands, results)


CHECKPOINTS = ("slots", "start", "stores", "last", "end", "record")
"""The parts of what is held that have an entry for each leaf of a checkpoint, or for each y that an
inverse reads."""


def _in_checkpoints(change: Callable[..., list[Any]], held: Held, *others: Held) -> Held:
    """What is held with its checkpoints changed, given other checkpoints as well."""
    names = [name for name in CHECKPOINTS if getattr(held, name)]
    parts = {name: [getattr(each, name) for each in (held, *others)] for name in names}
    return held._replace(**{name: change(name, *part) for name, part in parts.items()})


def _forward_sweep_jvp(sweep: Sweep, active: Active, *flat: Any) -> Flat:
    """The results of a sweep of one example, then the tangents of the active ones."""
    loop, count = sweep.loop, len(active.operands)
    operands, tangents = flat[:count], flat[count:]
    activity = find_activity(loop, active.operands)
    if not sweep.holds_pairs:
        return _forward_sweep_jvp_without_pairs(sweep, activity, operands, tangents)
    pairs = paired(loop, activity)
    both = sweep.of_loop(
        pairs.loop,
        activity=find_activity(pairs.loop, pairs.of_operands(sweep.activity)),
        restart=pairs.of_carry(sweep.restart),
        record=pairs.of_ys(sweep.record),
        ys=pairs.of_ys(sweep.ys),
        tapes=False,
    )
    inputs = pairs.operands(loop.operands(operands), tangents)
    results, arrays, both = _run_forward_sweep(both, inputs)
    results, results_dot = _halves(pairs, results, sum(sweep.ys))
    held = both.tree(arrays)
    count_of = lambda name: len(sweep.held_of(name, activity))  # noqa: E731
    held_dot = [dot for n in CHECKPOINTS for dot in (getattr(held, n) or [])[count_of(n) :]]
    held = _in_checkpoints(lambda name, part: part[: count_of(name)], held)
    if sweep.numbers_held.tape is not None:
        # It has no derivative here: the derivative of the reverse sweep tapes pairs.
        given, at = jax.tree.map(lax.stop_gradient, (list(operands), held))
        tape = tape_the_last_block(sweep.steps(given, again=True), plan_of(loop), at)
        held = held._replace(tape=tape)
    return [*results, *jax.tree.leaves(held), *results_dot, *held_dot]


def _forward_sweep_jvp_without_pairs(
    sweep: Sweep, activity: Activity, operands: Flat, tangents: Flat
) -> Flat:
    primals, half = pick(operands, activity.operands), partial(loop_p.bind, function=sweep.primal)
    flat = lambda chosen: substitute(operands, activity.operands, chosen)  # noqa: E731
    run = lambda chosen: sweep.of_results(half(*flat(chosen)))  # noqa: E731
    results, dots = jax.jvp(run, (primals,), (list(tangents),))
    silent = _with_progress(sweep, lambda _: None)  # the results' loop shows it
    _, arrays, _ = _run_forward_sweep(silent, operands)
    return [*results, *arrays, *pick(dots, sweep.of_results(activity.results))]


def _forward_sweep_linearize(
    sweep: Sweep, activity: Active, operands: Flat
) -> tuple[Flat, Flat, Sweep, bool]:
    """What is held serves this derivative, too, if it is of the same loop in the same operands."""
    results = forward_sweep_p.bind(*operands, function=_sweep_primal_half(sweep, activity))
    # A step with a `custom_vjp` has, once it is linearized, the results of its forward rule, and
    # the derivative is theirs.
    serves = activity.operands == sweep.activity.operands
    serves &= not (sweep.has_rule or sweep.vmaps)
    serves &= not sweep.is_on_disk  # files are there to be read once
    held = results[len(results) - sweep.num_held :] if serves else []
    return results, held, sweep, serves


def _forward_sweep_pull_back(
    cotangents: Flat, operands: Flat, arrays: Flat, function: Sweep, activity: Active, held: bool
) -> Flat:
    """What is held has no cotangents, or zeros: the reverse sweep's result depends on the operands
    and its cotangents alone, the slots only make it cheap."""
    sweep, count = function, len(function.output_types) - function.num_held
    cts = spread(cotangents, activity.results[:count])
    if held:
        of_loop, first = sweep.activity, sweep.loop.num_carry
        ys = spread(cts[first:], sweep.ys)
        of_results = [*pick(cts[:first], of_loop.carry), *pick(ys, of_loop.ys)]
        return _loop_pull_back(of_results, operands, arrays, sweep, of_loop)
    loop = _again(within(sweep.vmaps, lambda: sweep.primal))

    def run(*operands: Any) -> Flat:
        return sweep.of_results(loop_p.bind(*operands, function=loop))

    def results(chosen: Flat) -> Flat:
        run_all = mapped(run, sweep.vmaps, wanted=lambda vmap: vmap.dims_out[:count])
        flat = run_all(*substitute(operands, activity.operands, chosen))
        return pick(flat, activity.results[:count])

    _, pullback = jax.vjp(results, pick(operands, activity.operands))
    return pullback([instantiate(ct) for ct in cts if ct is not None])[0]


def _forward_sweep_prune_jvp(used: list[bool], function: Sweep, activity: Active) -> Any:
    """A result is kept if its tangent is used."""
    dots = spread(used[len(activity.results) :], activity.results)
    wanted = [bool(u or dot) for u, dot in zip(used[: len(dots)], dots, strict=True)]
    kept, smaller = _without_unused(function, wanted)
    results = [*kept, *pick(kept, activity.results)]
    num_operands = len(activity.operands) + sum(activity.operands)
    activity = activity._replace(results=tuple(pick(activity.results, kept)))
    return results, [True] * num_operands, {"function": smaller, "activity": activity}


forward_sweep_p = _sweep_primitive(
    "checkpointed_loop_forward_sweep",
    _forward_sweep_of_one,
    _forward_sweep_jvp,
    activity=_forward_sweep_activity,
    pull_back=_forward_sweep_pull_back,
    linearize=_forward_sweep_linearize,
    needed=lambda sweep, held: sweep.needed if held else (True,) * len(sweep.activity.operands),
    prune=_forward_sweep_prune,
    keys=_forward_sweep_keys,
    prune_jvp=_forward_sweep_prune_jvp,
)


# The reverse sweep


def _run_reverse_sweep(forward: Sweep, operands: Flat, held: Held, cotangents: Cotangents) -> Flat:
    """The cotangents of the differentiated operands of the loop of a forward sweep, from what that
    held, and from the active results' cotangents."""
    arrays, tree = jax.tree.flatten(held)
    sweep = forward._replace(
        ys=tuple(ct is not None for ct in cotangents.ys),
        tapes=False,
        held=tree,
        output_types=tuple(map(cotangent_type, pick(operands, forward.activity.operands))),
        moves=moves_of(map(jax.typeof, arrays)),
        vmaps=(),
    )
    flat = [*operands, *arrays, *cotangents.carry, *pick(cotangents.ys, sweep.ys)]
    return reverse_sweep_p.bind(*map(as_array, flat), function=sweep)


def _reverse_sweep_of_one(sweep: Sweep, *flat: Any) -> Flat:
    def run(*flat: Any) -> Flat:
        operands, arrays, cotangents = sweep.take_apart(flat)
        steps, cts = sweep.steps(operands, again=True), sweep.cotangents(cotangents)
        plan = plan_of(sweep.loop)
        held = sweep.tree(arrays)
        held = held._replace(tape=None) if sweep.later else held
        result = run_reverse(steps, plan, held, cts)
        if check.is_on():
            result = check.checked(steps, plan, cts, result, is_plain=not sweep.later)
        result = jax.tree.leaves(result)
        types = map(cotangent_type, pick(operands, sweep.activity.operands))
        return list(map(with_weak_type, result, types))

    key = ("reverse sweep", check.is_on(), sweep.held, *map(jax.typeof, flat))
    return call_jaxpr(once(sweep.asked, key, lambda: jax.make_jaxpr(run)(*flat)))(*flat)


def _reverse_sweep_activity(sweep: Sweep, differentiated: Mask) -> Active:
    """What is held follows from the operands."""
    of_loop, _, of_cotangents = sweep.take_apart(differentiated)
    return Active(differentiated, (any([*of_loop, *of_cotangents]),) * len(sweep.output_types))


def _reverse_sweep_jvp(sweep: Sweep, active: Active, *flat: Any) -> Flat:
    """The results of a sweep of one example, then their tangents."""
    mask = active.operands
    flat, tangents = flat[: len(mask)], flat[len(mask) :]
    primals, arrays, cts = sweep.take_apart(flat)
    held = sweep.tree(arrays)
    along, arrays_dot, cts_dot = sweep.take_apart(spread(tangents, mask))
    if all(dot is None for dot in along):  # it is linear in the cotangents
        dots = [_tangent(x, dot) for x, dot in zip(cts, cts_dot, strict=True)]
        run = lambda cts: _run_reverse_sweep(sweep, primals, held, sweep.cotangents(cts))  # noqa: E731
        if sweep.is_on_disk:  # files are there to be read once
            both = jax.vmap(run)([jnp.stack(pair) for pair in zip(cts, dots, strict=True)])
            return [x[i] for i in range(2) for x in both]
        return [*run(cts), *run(dots)]
    active_operands = sweep.activity.operands
    along = [
        _tangent(x, dot) if is_active else dot
        for x, dot, is_active in zip(primals, along, active_operands, strict=True)
    ]
    both = None if sweep.has_rule else _pairs_of(sweep, primals, along)
    # The derivative of `jax.random.gamma` is a while loop, which has no reverse mode.
    if both is None or not taped_step(both[-1]).is_transposable:
        _refuse_inverse(sweep)
        run = lambda chosen: _nested(sweep, substitute(flat, mask, chosen))  # noqa: E731
        results, dots = jax.jvp(run, (pick(flat, mask),), (list(tangents),))
        return [*results, *dots]
    if not sweep.is_on_disk:
        held_dot = sweep.tree(arrays_dot)
        pulled_back = _reverse_sweep_of_pairs(sweep, *both, held, held_dot, cts, cts_dot)
        if pulled_back is not None:
            return pulled_back
    have_cts_dot = [ct is not None for ct in cts_dot]

    def pairs(active_primals: Flat, active_directions: Flat) -> tuple[Flat, Flat]:
        at = substitute(primals, active_operands, active_primals)
        directions = substitute(along, active_operands, active_directions)
        values, tangents = _values_and_tangents(sweep, at, directions)
        return pick(values, have_cts_dot), tangents

    _, pullback = jax.vjp(pairs, pick(primals, active_operands), pick(along, active_operands))
    tangent, value = pullback((pick(cts_dot, have_cts_dot), cts))
    return [*value, *tangent]


def _pairs_of(sweep: Sweep, primals: Flat, along: Flat) -> tuple[Paired, list[Any], Linearized]:
    """The loop of values and tangents whose reverse sweep is the derivative of this one in these
    directions, `None` where there is none; its operands; and its step in that sweep."""
    loop, own = sweep.loop, sweep.activity
    pairs = paired(loop, find_activity(loop, tuple(d is not None for d in along)))
    operands = pairs.operands(loop.operands(primals), pick(along, pairs.activity.operands))
    ys = tuple(map(bool, spread(sweep.ys, own.ys)))
    given = [*pairs.of_carry(own.carry), *pairs.of_ys(ys)]
    activity = find_activity(pairs.loop, pairs.of_operands(own))
    activity = find_reached(pairs.loop, activity, pick(given, activity.results))
    step = linearized(pairs.loop, activity, pairs.loop.operands(operands))
    return pairs, operands, step


def _reverse_sweep_of_pairs(
    sweep: Sweep,
    pairs: Paired,
    operands: list[Any],
    step: Linearized,
    held: Held,
    held_dot: Held,
    cts: Flat,
    cts_dot: Flat,
) -> Flat | None:
    """The sweep and its derivative, from the pairs that the derivative of the forward sweep holds;
    `None` if that is less than the loop of values and tangents needs."""
    both, own, activity = pairs.loop, sweep.activity, step.activity
    restart, record = pairs.of_carry(sweep.restart), pairs.of_ys(sweep.record)
    if any(map(gt, (*step.restart, *step.record), (*restart, *record))):
        return None

    def with_tangents(name: str, values: list[Any], dots: list[Any]) -> list[Any]:
        is_paired = sweep.held_of(name, pairs.activity)
        chosen = zip(pick(values, is_paired), pick(dots, is_paired), strict=True)
        return [*values, *(_tangent(value, dot) for value, dot in chosen)]

    # It is taped again, with what the derivative needs.
    held = _in_checkpoints(with_tangents, held, held_dot)._replace(tape=None)
    # The cotangents of values are the derivative's, and the other way round.
    of_values, of_tangents = sweep.cotangents(cts_dot), sweep.cotangents(cts)

    def of_results(part: str) -> list[Any]:
        own_mask, mask = getattr(own, part), getattr(pairs.activity, part)
        values, dots = (spread(getattr(ct, part), own_mask) for ct in (of_values, of_tangents))
        return pick([*values, *pick(dots, mask)], getattr(activity, part))

    types = pick(both.results(both.output_types)[0], activity.carry)
    carry = [
        zeros(t.to_tangent_aval()) if ct is None else ct
        for ct, t in zip(of_results("carry"), types, strict=True)
    ]
    cotangents = Cotangents(carry, of_results("ys"))
    sweep = sweep.of_loop(both, activity=activity, restart=restart, record=record)
    flat = iter(_run_reverse_sweep(sweep, operands, held, cotangents))
    value, tangent = [], []
    for part in (own.consts, own.init, own.xs):
        tangent += [next(flat) for active in part if active]
        value += [next(flat) for active in part if active]
    return [*value, *tangent]


def _refuse_inverse(sweep: Sweep) -> None:
    if sweep.loop.inverse is not None:
        raise NotImplementedError(
            "inverse must be None where the gradient of a loop is differentiated whose step calls "
            "a function with a custom_vjp or a custom_jvp rule that is not JAX's own, or has a "
            "derivative without reverse mode: its second derivatives take nested scans under "
            "jax.checkpoint, which walk nothing back."
        )


def _tangent(value: Any, dot: Any) -> Any:
    """A tangent, which may be zero."""
    return zeros(tangent_type(value)) if dot is None else dot


def _values_and_tangents(sweep: Sweep, primals: Flat, along: Flat) -> tuple[Flat, Flat]:
    """The loop's results that have cotangents, and their derivatives in the given directions."""
    loop, given = _again(sweep.loop), [d is not None for d in along]
    own = sweep.activity

    def run(chosen: Flat) -> Flat:
        carry, ys = loop.results(loop_p.bind(*substitute(primals, given, chosen), function=loop))
        return [*pick(carry, own.carry), *pick(pick(ys, own.ys), sweep.ys)]

    return jax.jvp(run, (pick(primals, given),), (pick(along, given),))


def _nested(sweep: Sweep, flat: Flat) -> Flat:
    """The results of a sweep of one example, as the nested engine computes them."""
    operands, _, cotangents = sweep.take_apart(flat)
    # JAX may map it without a rule of ours.
    steps = sweep.when_mapped().steps(operands, again=True)
    return jax.tree.leaves(pull_back_nested(steps, sweep.cotangents(cotangents)))


def _reverse_sweep_pull_back(
    cotangents: Flat, operands: Flat, arrays: Flat, function: Sweep, activity: Active, held: None
) -> Flat:
    """The gradient of the product of the cotangents with the sweep's results."""
    del arrays, held
    vmaps, of_loop, of_held, of_cts = function.vmaps, *function.take_apart(activity.operands)
    nonzero = tuple(not is_zero(ct) for ct in cotangents)

    def part(ct: Any, number: int) -> Any:
        """Of the cotangent of a result that is the same for several examples, the part of one."""
        examples = prod(vmap.axis.size for vmap in vmaps if vmap.dims_out[number] is None)
        return ct if examples <= 1 else ct / examples

    directions = [part(ct, number) for number, ct in enumerate(cotangents) if nonzero[number]]
    num_products = len(directions) if function.has_rule else len(of_cts)
    run = mapped(
        partial(_product_of_one, function, nonzero),
        vmaps,
        lambda vmap: pick(vmap.dims_out, nonzero),
        lambda _: [0] * num_products,
    )
    mask = [*of_loop, *[False] * len(of_held), *of_cts]

    def product(chosen: Flat) -> Flat:
        flat = substitute(operands, mask, chosen)
        return list(map(jnp.sum, run(*flat, *directions)))

    products, pullback = jax.vjp(product, pick(operands, mask))
    (result,) = pullback(list(map(jnp.ones_like, products)))
    return pick(spread(result, mask), activity.operands)


def _product_of_one(sweep: Sweep, wanted: Mask, *flat: Any) -> Flat:
    """The product of the wanted results of a sweep of one example with the directions that come
    after its operands, as products of each with a number of elements."""
    count = len(flat) - sum(wanted)
    flat, directions = flat[:count], flat[count:]
    if sweep.has_rule:
        _refuse_inverse(sweep)
        return list(map(jnp.multiply, pick(_nested(sweep, flat), wanted), directions))
    primals, _, cts = sweep.take_apart(flat)
    along = spread(spread(directions, wanted), sweep.activity.operands)
    return list(map(jnp.multiply, cts, _values_and_tangents(sweep, primals, along)[1]))


def _reverse_sweep_prune_jvp(used: list[bool], function: Sweep, activity: Active) -> Any:
    """The derivative in the direction of a loop's operand makes a tape of its own."""
    of_loop, _, _ = function.take_apart(activity.operands)
    kept = [True] * len(activity.operands)
    if any(of_loop) and function.numbers_held.tape:
        for number in function.numbers_held.tape:
            kept[len(of_loop) + number] = False
        vmaps = tuple(v._replace(dims=tuple(pick(v.dims, kept))) for v in function.vmaps)
        function = function.without_tape()._replace(vmaps=vmaps)
    operands = [*kept, *pick(kept, activity.operands)]
    activity = activity._replace(operands=tuple(pick(activity.operands, kept)))
    return [True] * len(used), operands, {"function": function, "activity": activity}


reverse_sweep_p = _sweep_primitive(
    "checkpointed_loop_reverse_sweep",
    _reverse_sweep_of_one,
    _reverse_sweep_jvp,
    activity=_reverse_sweep_activity,
    pull_back=_reverse_sweep_pull_back,
    prune_jvp=_reverse_sweep_prune_jvp,
)
