"""The slots engine's reverse sweep as a primitive, with derivatives of any order.

Write `L(p)` for the loop as a function of its operands, `J(p)` for its derivative, `S(p, w) =
J(p)^T w` for the reverse sweep, and `T(p, p') = (L(p), J(p) p')` for the loop of values and
tangents, which is a loop like any other. Second derivatives of `<w, L>` are symmetric, so

    S' = J^T w' + d/dp <w, J p'>

is the cotangent of `p` if `T` is pulled back with the cotangents `w'` of the values and `w` of the
tangents. The cotangent of `p'` is `S` itself: one reverse sweep of `T` computes both.

`S'` is linear in `p'` and `w'`. Since `<u, S'>` is the derivative of `<w, J(p) u>` in their
direction, its transpose at `u` is the gradient of that product with respect to `p` and `w`:
the loop of values and tangents once more, forward and in reverse. So every derivative of a sweep
consists of sweeps.

The rule holds where derivative rules are derivatives. A step with a `custom_vjp` function has no
forward mode, and a `custom_jvp` rule of a user may be anything. The reverse sweep of such a loop is
differentiated as the pullback of the nested engine.
"""

from collections.abc import Sequence
from functools import partial
from operator import gt
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_revolve import _compat
from jax_revolve._compat import ClosedJaxpr
from jax_revolve.autodiff.family import Flat
from jax_revolve.autodiff.loop_primitive import loop_activity, loop_p
from jax_revolve.autodiff.sweep import Active, SweepFamily, Vmap, mapped, of_one_example, once_more
from jax_revolve.engine.nested import pull_back_nested
from jax_revolve.engine.offline import after_all_steps
from jax_revolve.engine.online import after_unknown_steps
from jax_revolve.engine.reverse import run_reverse
from jax_revolve.engine.slots import Held
from jax_revolve.schedule.storage import Disk
from jax_revolve.schedule.two_level import AnyPlan
from jax_revolve.step.activity import Activity, Mask
from jax_revolve.step.loop import Loop, Operands, pick, plan_of, restart_of, substitute
from jax_revolve.step.paired import paired
from jax_revolve.step.pullback import Cotangents
from jax_revolve.step.restart import restart_mask
from jax_revolve.step.steps import Steps


class Sweep(NamedTuple):
    """The reverse sweep of a loop. Its operands are those of the loop, the leaves of what the
    forward sweep `held`, and the cotangents: of each active carry, and of those active ys that `ys`
    marks."""

    jaxpr: ClosedJaxpr
    """The loop's: JAX and this library look for jaxprs among the fields of a parameter."""
    loop: Loop
    activity: Activity
    held: Any
    ys: Mask
    vmaps: tuple[Vmap, ...] = ()
    output_types: tuple[Any, ...] = ()
    moves: ClosedJaxpr | None = None

    @property
    def effects(self) -> Any:
        return self.loop.effects

    @property
    def results(self) -> Mask:
        """Which of the loop's results have a cotangent."""
        return (*self.activity.carry, *substitute(self.activity.ys, self.activity.ys, self.ys))

    def take_apart(self, flat: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Operands of the loop, what is held, and cotangents."""
        first = len(self.activity.operands)
        last = len(flat) - sum(self.activity.carry) - sum(self.ys)
        return list(flat[:first]), list(flat[first:last]), list(flat[last:])

    def cotangents(self, flat: Sequence[Any]) -> Cotangents:
        """With `None` for the ys that have none."""
        num_carry = sum(self.activity.carry)
        ys = substitute([None] * len(self.ys), self.ys, flat[num_carry:])
        return Cotangents(list(flat[:num_carry]), ys)


def reverse_sweep(
    loop: Loop, activity: Activity, operands: Flat, held: Held, cotangents: Cotangents
) -> Flat:
    """The cotangents of the differentiated operands, from those of the active results."""
    leaves, treedef = jax.tree.flatten(held)
    ys = tuple(ct is not None for ct in cotangents.ys)
    types = tuple(map(_compat.tangent_type, pick(operands, activity.operands)))
    moves = _compat.moves_of(map(jax.typeof, leaves))
    sweep = Sweep(loop.jaxpr, loop, activity, treedef, ys, output_types=types, moves=moves)
    return _reverse.run(sweep, [*operands, *leaves, *cotangents.carry, *pick(cotangents.ys, ys)])


def _with_stack(plan: AnyPlan, held: Held) -> Held:
    """What is held, with what the plan tells of it."""
    if held.steps is None:
        return after_all_steps(plan, held)
    return after_unknown_steps(plan, held) if held.positions is None else held


def _flat(parts: Sequence[Flat]) -> list[Any]:
    return [value for part in parts for value in part]


def check_collectives(loop: Loop, activity: Activity, operands: Operands) -> None:
    """Refuse a loop of which devices run different numbers of reversed steps, each of which adds up
    cotangents over the devices: they would wait for each other for ever."""
    if loop.condition is None:
        return
    (going,) = _compat.results_of(lambda: [loop.holds(operands.consts, operands.carry)])
    axes = _compat.varying_axes(going.aval)
    consts = pick(operands.consts, activity.consts)
    if not all(axes <= _compat.varying_axes(jax.typeof(c)) for c in consts):
        raise NotImplementedError(
            f"Inside of jax.shard_map, a while loop whose condition varies over {sorted(axes)} "
            "cannot be reversed with respect to a closed-over value that does not vary. Pass the "
            "value through jax.lax.pcast(value, axes, to='varying') before the loop."
        )


def _prune(used: list[bool], function: Sweep) -> Any:
    """Cotangents that nobody uses are not computed, unless there is a tape, which is made for
    them."""
    held: Held = jax.tree.unflatten(function.held, range(function.held.num_leaves))
    num_operands = len(function.activity.operands) + function.held.num_leaves
    num_operands += sum(function.activity.carry) + sum(function.ys)
    if held.tape is not None:
        used = [True] * len(used)
    operands = substitute(function.activity.operands, function.activity.operands, used)
    consts, init, xs = map(tuple, function.loop.operands(operands))
    vmaps = (v._replace(dims_out=tuple(pick(v.dims_out, used))) for v in function.vmaps)
    smaller = function._replace(
        activity=function.activity._replace(consts=consts, init=init, xs=xs),
        vmaps=tuple(vmaps),
        output_types=tuple(pick(function.output_types, used)),
    )
    return used, [True] * num_operands, {"function": smaller}


def _prune_jvp(used: list[bool], function: Sweep, activity: Active) -> Any:
    """The derivative in the direction of a loop's operand makes a tape of its own."""
    count, params = len(activity.operands), {"function": function, "activity": activity}
    kept = [True] * count
    of_loop, _, _ = function.take_apart(activity.operands)
    held: Held = jax.tree.unflatten(function.held, range(function.held.num_leaves))
    if held.tape and any(of_loop):
        for number in held.tape:
            kept[len(of_loop) + number] = False
        vmaps = (v._replace(dims=tuple(pick(v.dims, kept))) for v in function.vmaps)
        structure = jax.tree.structure(held._replace(tape=None))
        params["function"] = function._replace(held=structure, vmaps=tuple(vmaps))
        params["activity"] = activity._replace(operands=tuple(pick(activity.operands, kept)))
    return [True] * len(used), [*kept, *pick(kept, activity.operands)], params


class _Reverse(SweepFamily[Sweep]):
    """See the head of this file."""

    def of_one(self, function: Sweep, *flat: Any) -> Flat:
        loop, activity = function.loop, function.activity
        operands, leaves, cotangents = function.take_apart(flat)
        plan, held = plan_of(loop), jax.tree.unflatten(function.held, leaves)
        steps = Steps.of(loop.run_again(), restart_of(loop), loop.operands(operands))
        held = _with_stack(plan, held)
        result = run_reverse(steps, plan, activity, held, function.cotangents(cotangents))
        types = map(_compat.tangent_type, pick(operands, activity.operands))
        return list(map(_compat.with_weak_type, _flat(result), types))

    def find_activity(self, function: Sweep, operands: Flat, differentiated: Mask) -> Active:
        first, _, cts = function.take_apart(differentiated)
        return Active(differentiated, (any([*first, *cts]),) * len(function.output_types))

    def run_jvp(
        self, function: Sweep, activity: Active, operands: Flat, tangents: Flat
    ) -> tuple[Flat, Flat]:
        directions: list[Any] = [None] * len(operands)
        directions = substitute(directions, activity.operands, tangents)
        of_loop, of_held, _ = function.take_apart(activity.operands)
        if any(of_loop):
            run = partial(_jvp_of_one, function, activity.operands)
            flat = mapped(
                run,
                function.vmaps,
                lambda vmap: pick(vmap.dims, activity.operands),
                lambda vmap: [*vmap.dims_out, *vmap.dims_out],
            )(*operands, *tangents)
            return flat[: len(function.output_types)], flat[len(function.output_types) :]
        # It is linear in the cotangents.
        first = len(of_loop) + len(of_held)
        along = [
            _compat.zeros(jax.typeof(x)) if d is None else d
            for x, d in zip(operands[first:], directions[first:], strict=True)
        ]
        run = partial(self.run, function)
        return run(operands), run([*operands[:first], *along])

    def pull_back(
        self, function: Sweep, activity: Active, operands: Flat, held: Any, cotangents: Flat
    ) -> Flat:
        """The gradient of the product of the cotangents with the sweep's results. What is held has
        none, as it follows from the operands."""
        nonzero, vmaps = tuple(not _compat.is_zero(ct) for ct in cotangents), function.vmaps
        directions = [
            of_one_example(ct, vmaps, number)
            for number, (ct, wanted) in enumerate(zip(cotangents, nonzero, strict=True))
            if wanted
        ]
        run = partial(_product_of_one, function, nonzero)
        run = mapped(run, vmaps, lambda _: [0] * len(directions))
        of_loop, of_held, of_cts = function.take_apart(activity.operands)
        mask = [*of_loop, *[False] * len(of_held), *of_cts]

        def product(chosen: Flat) -> Flat:
            flat = substitute(operands, mask, chosen)
            return list(map(jnp.sum, run(*flat, *directions)))

        products, pullback = jax.vjp(product, pick(operands, mask))
        (result,) = pullback(list(map(jnp.ones_like, products)))
        return pick(substitute([None] * len(mask), mask, result), activity.operands)


def _jvp_of_one(sweep: Sweep, mask: Mask, *flat: Any) -> Flat:
    """The results of a sweep of one example, then their tangents, from its operands and the
    tangents of those in `mask`."""
    flat, tangents = flat[: len(mask)], flat[len(mask) :]
    if _compat.has_rule_of_user(sweep.loop.jaxpr):
        run = lambda chosen: _nested(sweep, substitute(flat, mask, chosen))  # noqa: E731
        results, dots = jax.jvp(run, (pick(flat, mask),), (list(tangents),))
        return [*results, *dots]
    primals, leaves, cts = sweep.take_apart(flat)
    directions, leaves_dot, cts_dot = sweep.take_apart(
        substitute([None] * len(mask), mask, tangents)
    )
    active = sweep.activity.operands
    directions = [
        _compat.zeros(_compat.tangent_type(x)) if a and d is None else d
        for x, d, a in zip(primals, directions, active, strict=True)
    ]
    held, held_dot = (jax.tree.unflatten(sweep.held, x) for x in (leaves, leaves_dot))
    pulled_back = _from_pairs(sweep, primals, directions, held, held_dot, cts, cts_dot)
    if pulled_back is not None:
        return pulled_back
    have_cts_dot = [ct is not None for ct in cts_dot]

    def pairs(active_primals: Flat, active_directions: Flat) -> tuple[Flat, Flat]:
        at = substitute(primals, active, active_primals)
        along = substitute(directions, active, active_directions)
        values, tangents = _values_and_tangents(sweep, at, along)
        return pick(values, have_cts_dot), tangents

    _, pullback = jax.vjp(pairs, pick(primals, active), pick(directions, active))
    tangent, value = pullback((pick(cts_dot, have_cts_dot), cts))
    return [*value, *tangent]


def _from_pairs(
    sweep: Sweep,
    primals: Flat,
    directions: Flat,
    held: Held,
    held_dot: Held,
    cts: Flat,
    cts_dot: Flat,
) -> Flat | None:
    """The sweep and its derivative from the pairs that the derivative of the forward sweep holds;
    `None` if it holds less than the loop of values and tangents needs."""
    loop, of_loop = sweep.loop, sweep.activity
    if isinstance(getattr(plan_of(loop), "storage", None), Disk):
        return None  # the tickets of files have no tangents
    activity = loop_activity(loop, tuple(d is not None for d in directions))
    pairs = paired(loop, activity)
    both = pairs.loop._replace(restart=pairs.of_carry(restart_of(loop)))
    operands = pairs.operands(loop.operands(primals), pick(directions, activity.operands))
    activity = loop_activity(both, pairs.of_operands(of_loop))
    if any(map(gt, restart_mask(both, activity, operands), restart_of(both))):
        return None
    is_paired = pick(pairs.activity.carry, restart_of(loop))

    def with_tangents(values: Any, dots: Any) -> Any:
        if not values:
            return values
        chosen = zip(pick(values, is_paired), pick(dots, is_paired), strict=True)
        return [*values, *(_dot(value, dot) for value, dot in chosen)]

    held = held._replace(
        tape=None,  # it is taped again, with what the derivative needs
        slots=with_tangents(held.slots, held_dot.slots),
        start=with_tangents(held.start, held_dot.start),
        stores=with_tangents(held.stores, held_dot.stores),
    )
    of_values, of_tangents = sweep.cotangents(cts_dot), sweep.cotangents(cts)
    carry_types, _ = both.results(both.output_types)
    carry = [
        *_spread(of_loop.carry, of_values.carry),
        *pick(_spread(of_loop.carry, of_tangents.carry), pairs.activity.carry),
    ]
    ys = [
        *_spread(of_loop.ys, of_values.ys),
        *pick(_spread(of_loop.ys, of_tangents.ys), pairs.activity.ys),
    ]
    carry = [
        _compat.zeros(t.to_tangent_aval()) if ct is None and active else ct
        for ct, t, active in zip(carry, carry_types, activity.carry, strict=True)
    ]
    cotangents = Cotangents(pick(carry, activity.carry), pick(ys, activity.ys))
    flat = reverse_sweep(both, activity, operands, held, cotangents)
    parts = iter(flat)
    value, tangent = [], []
    for part in (of_loop.consts, of_loop.init, of_loop.xs):
        tangent += [next(parts) for active in part if active]
        value += [next(parts) for active in part if active]
    return [*value, *tangent]


def _spread(mask: Mask, values: Flat) -> list[Any]:
    return substitute([None] * len(mask), mask, values)


def _dot(value: Any, dot: Any) -> Any:
    """A tangent, which may be zero."""
    return _compat.zeros(_compat.tangent_type(value)) if dot is None else dot


def _product_of_one(sweep: Sweep, wanted: Mask, *flat: Any) -> Flat:
    """The product of the wanted results of a sweep of one example with the directions that come
    after its operands, as products of each with a number of elements."""
    count = len(flat) - sum(wanted)
    flat, directions = flat[:count], flat[count:]
    if _compat.has_rule_of_user(sweep.loop.jaxpr):
        return list(map(jnp.multiply, pick(_nested(sweep, flat), wanted), directions))
    primals, _, cts = sweep.take_apart(flat)
    nothing, active = [None] * len(primals), sweep.activity.operands
    along = substitute(nothing, substitute(active, active, wanted), directions)
    return list(map(jnp.multiply, cts, _values_and_tangents(sweep, primals, along)[1]))


def _values_and_tangents(sweep: Sweep, primals: Flat, directions: Flat) -> tuple[Flat, Flat]:
    """The loop's results that have cotangents, and their derivatives in the given directions."""
    loop, given = once_more(sweep.loop), [d is not None for d in directions]

    def run(chosen: Flat) -> Flat:
        return pick(loop_p.bind(*substitute(primals, given, chosen), function=loop), sweep.results)

    return jax.jvp(run, (pick(primals, given),), (pick(directions, given),))


def _nested(sweep: Sweep, flat: Flat) -> Flat:
    """The results of a sweep of one example, as the nested engine computes them."""
    operands, _, cotangents = sweep.take_apart(flat)
    loop = sweep.loop.run_again()
    result = pull_back_nested(
        loop, sweep.activity, loop.operands(operands), sweep.cotangents(cotangents)
    )
    return _flat(result)


_reverse = _Reverse("checkpointed_loop_reverse_sweep", _prune, _prune_jvp)
