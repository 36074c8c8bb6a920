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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_revolve import _compat
from jax_revolve._compat import ClosedJaxpr, as_array, call_jaxpr
from jax_revolve.autodiff.batching import batched_dims
from jax_revolve.autodiff.family import Family, Flat, function_types
from jax_revolve.autodiff.loop_primitive import loop_p
from jax_revolve.autodiff.mapped import Vmap, mapped
from jax_revolve.engine.nested import pull_back_nested
from jax_revolve.engine.offline import after_all_steps
from jax_revolve.engine.online import after_unknown_steps
from jax_revolve.engine.reverse import run_reverse
from jax_revolve.engine.slots import Held
from jax_revolve.progress.listener import when_run_again
from jax_revolve.schedule.two_level import AnyPlan
from jax_revolve.step.activity import Activity, Mask
from jax_revolve.step.loop import Loop, Operands, pick, plan_of, restart_of, substitute
from jax_revolve.step.once import Batched, once
from jax_revolve.step.pullback import Cotangents
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


class Active(NamedTuple):
    """Which operands of a sweep are differentiated; if any is, all of its results are."""

    operands: Mask
    results: Mask


def reverse_sweep(
    loop: Loop, activity: Activity, operands: Flat, held: Held, cotangents: Cotangents
) -> Flat:
    """The cotangents of the differentiated operands, from those of the active results."""
    leaves, treedef = jax.tree.flatten(held)
    ys = tuple(ct is not None for ct in cotangents.ys)
    types = tuple(map(_compat.tangent_type, pick(operands, activity.operands)))
    sweep = Sweep(loop.jaxpr, loop, activity, treedef, ys, output_types=types)
    given = [*cotangents.carry, *pick(cotangents.ys, ys)]
    return reverse_sweep_p.bind(*map(as_array, [*operands, *leaves, *given]), function=sweep)


def _run(sweep: Sweep, *flat: Any) -> Flat:
    """Of one example."""
    loop, activity = sweep.loop, sweep.activity
    operands, leaves, cotangents = sweep.take_apart(flat)
    plan, held = plan_of(loop), jax.tree.unflatten(sweep.held, leaves)
    steps = Steps.of(loop.run_again(), restart_of(loop), loop.operands(operands))
    held = _with_stack(plan, held)
    result = run_reverse(steps, plan, activity, held, sweep.cotangents(cotangents))
    types = map(_compat.tangent_type, pick(operands, activity.operands))
    return list(map(_compat.with_weak_type, _flat(result), types))


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


# Its rules


def _implementation(*flat: Any, function: Sweep) -> Flat:
    if not function.vmaps:
        return _run(function, *flat)
    return call_jaxpr(_traced(function, flat))(*flat)


def _traced(sweep: Sweep, flat: Flat) -> ClosedJaxpr:
    """A sweep that is mapped over axes."""

    def trace() -> ClosedJaxpr:
        return jax.make_jaxpr(mapped(partial(_run, sweep), sweep.vmaps))(*flat)

    return once(sweep, ("mapped", *map(jax.typeof, flat)), trace)


def _batch(axis: Any, flat: Flat, dims: Flat, function: Sweep) -> Batched:
    flat = list(map(as_array, flat))

    def find() -> Sweep:
        run = mapped(partial(_run, function), function.vmaps)
        dims_out = tuple(batched_dims(axis, run, flat, dims))
        vmaps = (*function.vmaps, Vmap(axis, tuple(dims), dims_out))
        sweep = function._replace(vmaps=vmaps, output_types=())
        return sweep._replace(output_types=tuple(_traced(sweep, flat).out_avals))

    sweep = once(function, ("batched", axis, tuple(dims), *map(jax.typeof, flat)), find)
    return reverse_sweep_p.bind(*flat, function=sweep), sweep.vmaps[-1].dims_out


reverse_sweep_p = _compat.new_primitive(
    "checkpointed_loop_reverse_sweep",
    implementation=_implementation,
    output_types=function_types,
    batch=_batch,
)


class _Sweeps(Family[Sweep]):
    """The derivatives of sweeps: see the head of this file."""

    def run(self, function: Sweep, operands: Flat) -> Flat:
        return reverse_sweep_p.bind(*operands, function=function)

    def batch(self, axis: Any, operands: Flat, dims: Flat, function: Sweep) -> Batched:
        return _batch(axis, operands, dims, function)

    def run_as_one(self, function: Sweep, run: Any, operands: Flat) -> Flat:
        return run(function, operands)

    def find_activity(self, function: Sweep, operands: Flat, differentiated: Mask) -> Active:
        first, held, cts = function.take_apart(differentiated)
        mask = (*first, *[False] * len(held), *cts)  # what is held follows from the operands
        return Active(mask, (any(mask),) * len(function.output_types))

    def primal_half(self, function: Sweep, activity: Active) -> Sweep:
        return function

    def run_jvp(
        self, function: Sweep, activity: Active, operands: Flat, tangents: Flat
    ) -> tuple[Flat, Flat]:
        of_loop, held, cts = function.take_apart(activity.operands)
        if any(of_loop):
            run, vmaps = partial(_jvp_of_one, function, activity.operands), []
            for axis, dims, dims_out in function.vmaps:
                vmaps.append(Vmap(axis, (*dims, *pick(dims, activity.operands)), dims_out))
            flat, count = mapped(run, vmaps)(*operands, *tangents), len(function.output_types)
            return flat[:count], flat[count:]
        # It is linear in the cotangents.
        given = iter(tangents)
        first = len(of_loop) + len(held)
        directions = [
            next(given) if active else _compat.zeros(jax.typeof(x))
            for x, active in zip(operands[first:], cts, strict=True)
        ]
        run = partial(self.run, function)
        return run(operands), run([*operands[:first], *directions])

    def pull_back(
        self, function: Sweep, activity: Active, operands: Flat, held: Any, cotangents: Flat
    ) -> Flat:
        """The gradient of the product of the cotangents with the sweep's results."""
        nonzero = [not _compat.is_zero(ct) for ct in cotangents]
        directions, vmaps = pick(cotangents, nonzero), []
        for axis, dims, dims_out in function.vmaps:
            vmaps.append(Vmap(axis, (*dims, *pick(dims_out, nonzero)), ()))
        run = mapped(partial(_product_of_one, function, nonzero), vmaps)

        def product(chosen: Flat) -> Flat:
            flat = substitute(operands, activity.operands, chosen)
            return list(map(jnp.sum, run(*flat, *directions)))

        products, pullback = jax.vjp(product, pick(operands, activity.operands))
        (result,) = pullback(list(map(jnp.ones_like, products)))
        return result

    def _batch_jvp(
        self, axis: Any, flat: Flat, dims: Flat, function: Sweep, activity: Any
    ) -> Batched:
        return self._batch_directions(axis, flat, dims, function, activity)


def _jvp_of_one(sweep: Sweep, mask: Mask, *flat: Any) -> Flat:
    """The results of a sweep of one example, then their tangents, from its operands and the
    tangents of those in `mask`."""
    flat, tangents = flat[: len(mask)], flat[len(mask) :]
    if _compat.has_rule_of_user(sweep.loop.jaxpr):
        run = lambda chosen: _nested(sweep, substitute(flat, mask, chosen))  # noqa: E731
        results, dots = jax.jvp(run, (pick(flat, mask),), (list(tangents),))
        return [*results, *dots]
    primals, _, cts = sweep.take_apart(flat)
    directions, _, cts_dot = sweep.take_apart(substitute([None] * len(mask), mask, tangents))
    active = sweep.activity.operands
    directions = [
        _compat.zeros(_compat.tangent_type(x)) if a and d is None else d
        for x, d, a in zip(primals, directions, active, strict=True)
    ]
    have_cts_dot = [ct is not None for ct in cts_dot]

    def pairs(active_primals: Flat, active_directions: Flat) -> tuple[Flat, Flat]:
        at = substitute(primals, active, active_primals)
        along = substitute(directions, active, active_directions)
        values, tangents = _values_and_tangents(sweep, at, along)
        return pick(values, have_cts_dot), tangents

    _, pullback = jax.vjp(pairs, pick(primals, active), pick(directions, active))
    tangent, value = pullback((pick(cts_dot, have_cts_dot), cts))
    return [*value, *tangent]


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
    loop = sweep.loop.run_again()
    loop = loop._replace(progress=when_run_again(loop.progress), restart=None)
    given = [d is not None for d in directions]

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


_Sweeps(reverse_sweep_p)
