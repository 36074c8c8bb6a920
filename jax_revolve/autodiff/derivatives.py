"""The derivatives of a primitive that computes functions, and when JAX uses which.

A *function* primitive, such as a whole loop, comes with two others. The *jvp* primitive computes
the function and its tangents, the *tangent* primitive the tangents alone:

    function --jvp--> jvp primitive --run, vmap, jvp--> the loop of values and tangents
                            |
                            | partial evaluation (jax.vjp, jax.linearize, jax.checkpoint)
                            v
                      forward sweep, which saves arrays  +  tangent primitive(arrays, tangents)
                                                                  |
                                                                  | transpose
                                                                  v
                                                            the pullback

The operands of the tangent primitive are the function's, then the saved arrays, then the tangents
of the differentiated operands. Parameters are the `function`, a tuple that begins with a jaxpr and
has `output_types` and `effects`; its `activity`; and `aux`, whatever else the pullback needs. The
tangent primitive omits operands whose values it does not need, such as a buffer for results, and
has their types as `absent`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_revolve._compat.memories import is_on_host, to_host
from jax_revolve._compat.primitives import Primitive, Prune, Split, new_primitive
from jax_revolve._compat.values import (
    instantiate,
    is_linear_input,
    is_zero,
    symbolic_zero,
    with_weak_type,
    zeros,
)
from jax_revolve.autodiff.batching import (
    Batched,
    Vmap,
    batch,
    batch_once,
    batched_dims,
    mapped,
    vmap_over,
)
from jax_revolve.step.loop import Mask, is_inexact, pick, spread, substitute
from jax_revolve.step.reports import silenced

Flat = Sequence[Any]

_Absent = Sequence[Any] | None
"""The types of absent operands, and `None` for the others."""


class Active(NamedTuple):
    """Which operands are differentiated, and which results then have a tangent. A loop has an
    `Activity` instead, with more fields."""

    operands: Mask
    results: Mask
    values: Mask | None = None
    """Which results are used beside the tangents; `None` for all."""


class Rules(NamedTuple):
    """The rules of a function primitive. `run` is its implementation; `batch`, `prune`, `known`,
    `keys`, `interpret` and `has_dead_code` are as in `new_primitive`, and `prune_jvp` is the jvp
    primitive's."""

    run: Callable[..., Flat]
    batch: Callable[..., Batched]
    activity: Callable[[Any, Mask], Any]
    """`activity(function, differentiated)`"""
    jvp: Callable[..., Flat]
    """`jvp(function, activity, *operands, *tangents)` takes the tangents of active operands, and
    returns the results and the tangents of active results. JAX differentiates it."""
    pull_back: Callable[..., Flat]
    """`pull_back(cotangents, operands, arrays, function, activity, aux)` takes the cotangents of
    active results and the saved arrays, and returns the cotangents of active operands."""
    primal_half: Callable[[Any, Any], Any]
    """`primal_half(function, activity)` is the function that computes the linearized values."""
    explicit: Callable[..., tuple[Any, Flat, Flat] | None] = lambda *_: None
    """`explicit(function, activity, primals, tangents)`: if derivative rules close over tracers,
    the function of these as further operands, all its primals, and all its tangents."""
    refined: Callable[[Any, Any, Flat], Any] = lambda function, activity, operands: activity
    """`refined(function, activity, operands)` is the activity for operands of these types."""
    jvp_in_reverse: Callable[..., Flat] | None = None
    """The same function as `jvp`, of primitives that have a reverse mode. By default `jvp`."""
    products: Callable[..., Flat] | None = None
    """`products(function, operands, cotangents)`, of sweeps: scalars whose sum is the product of
    the results with cotangents (`None`: zero), as JAX differentiates it in reverse mode."""
    serve: Callable[..., tuple[Flat, Any]] = lambda *_: ([], None)
    """`serve(function, activity, active, operands, results)`, of a sweep and its tangents: saved
    arrays that serve its derivative, and the `aux` of `pull_back_pushed`; by default none, and
    `None`."""
    pull_back_pushed: Callable[..., Flat] | None = None
    """`pull_back_pushed(cotangents, operands, arrays, function, activity, active, aux)`"""
    is_pushed: bool = False
    linearize: Callable[..., tuple[Flat, Flat, Any, Any]] | None = None
    """`linearize(function, activity, operands)` returns the results, the arrays to save, and the
    `function` and `aux` of the pullback. By default it saves nothing."""
    needed: Callable[[Any, Any], Mask] | None = None
    """`needed(function, aux)` flags the operands on which the tangents depend. By default all."""
    effects: Callable[[Any, Any], Any] = lambda function, activity: function.effects
    """`effects(function, activity)` includes those of its derivative rules."""
    prune: Prune | None = None
    prune_jvp: Prune | None = None
    known: Prune | None = None
    keys: Callable[..., Flat] | None = None
    interpret: Callable[..., Any] = lambda run, params: run(params)
    has_dead_code: bool = True


def function_primitive(name: str | Primitive, rules: Rules) -> Primitive:
    primitive = new_primitive(
        name,
        implementation=rules.run,
        output_types=lambda *_, function: (function.output_types, function.effects),
        batch=rules.batch,
        jvp=lambda *args, **params: _function_jvp(rules, primitive, jvp_p, *args, **params),
        transpose=lambda *args, **params: _function_transpose(rules, *args, **params),
        prune=rules.prune,
        known=rules.known,
        keys=rules.keys,
        interpret=rules.interpret,
        has_dead_code=rules.has_dead_code,
        recomputed=_recomputed,
    )
    if rules.linearize is None:
        rules = rules._replace(linearize=partial(_save_nothing, rules, primitive))
    tangent_p = new_primitive(
        f"{primitive.name}_tangent",
        implementation=partial(_tangent_impl, rules),
        output_types=partial(_tangent_types, rules),
        batch=partial(_tangent_batching, rules),
        jvp=partial(
            jvp_of_nonzero,
            partial(_tangent_impl, rules._replace(jvp=rules.jvp_in_reverse or rules.jvp)),
        ),
        transpose=partial(_tangent_transpose, rules),
    )
    pushed_p = None
    if rules.products is not None:
        pushed_p = (primitive, rules.batch) if rules.is_pushed else _pushed(primitive.name, rules)
    jvp_p = new_primitive(
        f"{primitive.name}_jvp",
        implementation=partial(_jvp_impl, rules),
        output_types=partial(_jvp_types, rules),
        batch=partial(_batch_pushed, pushed_p[1]) if pushed_p else partial(_jvp_batching, rules),
        jvp=partial(_jvp_of_pushed, pushed_p[0])
        if pushed_p
        else partial(jvp_of_nonzero, partial(_jvp_impl, rules)),
        transpose=partial(_jvp_transpose, rules),
        prune=rules.prune_jvp,
        keys=rules.keys and partial(_jvp_keys, rules.keys),
        recomputed=_recomputed,
        split=Split(
            primitive,
            rules.primal_half,
            partial(_linearize, rules),
            tangent_p,
        ),
    )
    return primitive


def _recomputed(params: dict[str, Any]) -> dict[str, Any]:
    return {**params, "function": silenced(params["function"])}


class Pushed(NamedTuple):
    """A sweep and its tangents, which is a function of its own, mapped over axes."""

    jaxpr: Any
    function: Any
    activity: Active
    output_types: tuple[Any, ...]
    transfers: Any
    vmaps: tuple[Vmap, ...] = ()

    @classmethod
    def of(cls, function: Any, activity: Active) -> "Pushed":
        types = (*function.output_types, *_tangents_of(function, activity))
        return cls(function.jaxpr, function, activity, types, function.transfers)

    @property
    def effects(self) -> Any:
        return self.function.effects

    @property
    def is_read_once(self) -> bool:
        return self.function.is_read_once

    @property
    def has_rule(self) -> bool:
        return self.function.has_rule


def _pushed(name: str, base: Rules) -> tuple[Primitive, Callable[..., Batched]]:
    def rules_of(function: Any) -> Rules:
        return rules if isinstance(function, Pushed) else base

    def run(*flat: Any, function: Pushed, by_loops: bool = False) -> Flat:
        own = rules_of(function.function)
        own = own._replace(jvp=own.jvp_in_reverse) if by_loops else own
        of_one = partial(_jvp_impl, own, function=function.function, activity=function.activity)
        return mapped(of_one, function.vmaps, wanted=lambda vmap: vmap.dims_out)(*flat)

    def batch(axis: Any, flat: Flat, dims: Flat, function: Pushed) -> Batched:
        found = batched_dims(axis, partial(run, function=function), flat, dims)
        if function.is_read_once:  # in several directions at one point, each example reads files
            of_values, count = function.function, len(function.activity.operands)
            results = len(of_values.output_types)
            vmaps = [
                v._replace(dims=v.dims[:count], dims_out=v.dims_out[:results])
                for v in function.vmaps
            ]
            alone = partial(rules_of(of_values).run, function=of_values)
            alone = mapped(alone, vmaps, wanted=lambda vmap: vmap.dims_out)
            values = batched_dims(axis, alone, flat[:count], dims[:count])
            found[: len(values)] = values
        vmaps = (*function.vmaps, Vmap(axis, tuple(dims), tuple(found)))
        mapped_ = function._replace(vmaps=vmaps)
        types = tuple(jax.make_jaxpr(partial(run, function=mapped_))(*flat).out_avals)
        return primitive.bind(*flat, function=mapped_._replace(output_types=types)), found

    def activity(function: Pushed, mask: Mask) -> Active:
        return Active(mask, tuple(is_inexact(t) and any(mask) for t in function.output_types))

    def jvp(function: Pushed, active: Active, *flat: Any, by_loops: bool = False) -> Flat:
        operands, dots = flat[: len(active.operands)], list(flat[len(active.operands) :])
        at = lambda chosen: substitute(operands, active.operands, chosen)  # noqa: E731
        own = partial(run, function=function, by_loops=by_loops)
        results, dots = jax.jvp(lambda c: own(*at(c)), (pick(operands, active.operands),), (dots,))
        return [*results, *pick(dots, active.results)]

    def linearize(
        function: Pushed, active: Active, operands: Flat
    ) -> tuple[Flat, Flat, Pushed, Any]:
        # With a rule, results may be others once they are linearized. They are computed by loops,
        # where saved arrays have no tangents, and so must their tangents be (`_tangent_impl`).
        if function.has_rule:
            own = partial(run, function=function, by_loops=True)

            def chosen_results(chosen: Flat) -> tuple[list[Any], list[Any]]:
                results = list(own(*substitute(operands, active.operands, chosen)))
                return pick(results, active.results), results

            primals = pick(operands, active.operands)
            _, pullback, results = jax.vjp(chosen_results, primals, has_aux=True)
            arrays, tree = jax.tree.flatten(pullback)
            return results, arrays, function, tree
        results = primitive.bind(*operands, function=function)
        if function.vmaps:
            return results, [], function, None
        serve, of_one = rules_of(function.function).serve, (function.function, function.activity)
        arrays, aux = serve(*of_one, active, operands, results)
        return results, arrays, function, aux

    def products(function: Pushed, flat: Flat, cts: Flat) -> Flat:
        """The products of results with cotangents, `None` for zeros, of all examples."""
        inner, mask = function.function, function.activity.operands
        given = [c is not None for c in cts]

        def of_one(*flat: Any) -> Flat:
            operands, dots = flat[: len(mask)], flat[len(mask) :][: sum(mask)]
            chosen = spread(flat[len(mask) + sum(mask) :], given)
            values, tangents = chosen[: len(inner.output_types)], chosen[len(inner.output_types) :]
            own = rules_of(inner).products
            assert own is not None
            if all(c is None for c in tangents):
                return list(own(inner, operands, values))
            # <a, F> and the derivative of <b, F>, from one evaluation: that of <b + t a, F>.
            cts = spread(tangents, function.activity.results)
            has_value = [a is not None for a in values]
            pairs = zip(values, cts, strict=True)
            cts = [jnp.zeros_like(a) if b is None and a is not None else b for a, b in pairs]

            def at(chosen: Flat, moved: Flat) -> list[Any]:
                all_cts = substitute(cts, has_value, moved)
                return list(own(inner, substitute(operands, mask, chosen), all_cts))

            primals = (pick(operands, mask), pick(cts, has_value))
            return jax.jvp(at, primals, (list(dots), pick(values, has_value)))[1]

        return summed(of_one, function.vmaps, given)(*flat, *pick(cts, given))

    def pull_back(
        cotangents: Flat, operands: Flat, arrays: Flat, function: Any, activity: Any, aux: Any
    ) -> Flat:
        mask = activity.operands
        if function.has_rule:
            (result,) = jax.tree.unflatten(aux, arrays)(list(map(instantiate, cotangents)))
        elif aux is not None:
            back = rules_of(function.function).pull_back_pushed
            assert back is not None
            of_one = function.function, function.activity, activity
            result = back(cotangents, operands, arrays, *of_one, aux)
        else:
            cts = spread(cotangents, activity.results)
            cts = [None if ct is None or is_zero(ct) else ct for ct in cts]
            result = gradient_of(lambda flat: products(function, flat, cts), operands, mask)
        # Saved arrays may be in the host's memory, and their cotangents are zeros anywhere.
        pairs = zip(result, pick(operands, mask), strict=True)
        return [to_host(ct) if is_on_host(x) and not is_on_host(ct) else ct for ct, x in pairs]

    rules = Rules(
        run=run,
        batch=batch,
        activity=activity,
        jvp=jvp,
        jvp_in_reverse=partial(jvp, by_loops=True),
        pull_back=pull_back,
        primal_half=lambda function, _: function,
        linearize=linearize,
        products=products,
        is_pushed=True,
    )
    primitive = function_primitive(f"{name}_pushed", rules)
    return primitive, batch


def gradient_of(products: Callable[[Flat], Flat], operands: Flat, mask: Sequence[bool]) -> Flat:
    """The gradient of the sum of products of operands, with respect to those that the mask marks.
    They are differentiated one by one, because an addition would be another kernel."""
    of = lambda chosen: list(products(substitute(operands, mask, chosen)))  # noqa: E731
    found, pullback = jax.vjp(of, pick(operands, mask))
    return pullback(list(map(jnp.ones_like, found)))[0]


def summed(run: Callable[..., Flat], vmaps: Sequence[Vmap], given: Sequence[bool]) -> Any:
    """Products of one example, from its operands and the given cotangents, summed over examples."""
    for vmap in vmaps:
        run = partial(_summed_over, run, vmap, given)
    return run


def _summed_over(run: Any, vmap: Vmap, given: Sequence[bool], *flat: Any) -> Flat:
    dims = pick(vmap.dims_out, given)
    first = len(flat) - len(dims)
    # One example's share of the cotangent of a result that all share.
    cts = [
        ct / vmap.axis.size if d is None else ct for ct, d in zip(flat[first:], dims, strict=True)
    ]
    found = vmap_over(vmap.axis, run, (*vmap.dims, *dims), 0)(*flat[:first], *cts)
    return [jnp.sum(x, 0) for x in found]


def _batch_pushed(
    rule: Callable[..., Batched],
    axis: Any,
    flat: Flat,
    dims: Flat,
    function: Any,
    activity: Active,
) -> Batched:
    return rule(axis, flat, dims, function=Pushed.of(function, activity))


def _jvp_of_pushed(
    pushed_p: Primitive, primals: Flat, tangents: Flat, function: Any, activity: Active
) -> Any:
    run = partial(pushed_p.bind, function=Pushed.of(function, activity))
    return jvp_of_nonzero(run, primals, tangents)


def jvp_of_nonzero(run: Callable[..., Flat], primals: Flat, tangents: Flat, **params: Any) -> Any:
    """`jax.jvp` of `run` in the primals whose tangents are not symbolic zeros."""
    mask = [not is_zero(t) for t in tangents]
    return jax.jvp(
        lambda chosen: run(*substitute(primals, mask, chosen), **params),
        (pick(primals, mask),),
        (pick(tangents, mask),),
    )


# The function primitive


def _function_jvp(
    rules: Rules,
    primitive: Primitive,
    jvp_p: Primitive,
    primals: Flat,
    tangents: Flat,
    function: Any,
) -> Any:
    activity = rules.activity(function, tuple(not is_zero(t) for t in tangents))
    dots = [symbolic_zero(t) for t in function.output_types]
    if not any(activity.results):
        return primitive.bind(*primals, function=function), dots
    if explicit := rules.explicit(function, activity, primals, tangents):
        function, primals, tangents = explicit
        activity = rules.activity(function, tuple(not is_zero(t) for t in tangents))
    activity = rules.refined(function, activity, primals)
    chosen = map(instantiate, pick(tangents, activity.operands))
    flat = jvp_p.bind(*primals, *chosen, function=function, activity=activity)
    return flat[: len(dots)], substitute(dots, activity.results, flat[len(dots) :])


def _function_transpose(rules: Rules, cotangents: Flat, *operands: Any, function: Any) -> Flat:
    """A linear function is its own derivative, at zero as everywhere."""
    activity = rules.activity(function, tuple(map(is_linear_input, operands)))
    result = [None] * sum(activity.operands)
    if any(activity.results):
        point = [zeros(x.aval) if is_linear_input(x) else x for x in operands]
        cotangents = pick(cotangents, activity.results)
        result = _pull_back(rules, cotangents, point, function, activity)
    return _of_linear(operands, spread(result, activity.operands))


def _save_nothing(
    rules: Rules, primitive: Primitive, function: Any, activity: Active, operands: Flat
) -> tuple[Flat, Flat, Any, None]:
    results = primitive.bind(*operands, function=rules.primal_half(function, activity))
    return results, [], function, None


# The jvp primitive


def _jvp_types(rules: Rules, *_: Any, function: Any, activity: Active) -> Any:
    tangents = _tangents_of(function, activity)
    return [*function.output_types, *tangents], rules.effects(function, activity)


def _jvp_impl(rules: Rules, *flat: Any, function: Any, activity: Active) -> Flat:
    types = [*function.output_types, *_tangents_of(function, activity)]
    return list(map(with_weak_type, rules.jvp(function, activity, *flat), types))


def _jvp_keys(keys: Callable[..., Flat], *flat: Any, function: Any, activity: Active) -> Flat:
    """The keys that the values use. Tangents use the same random numbers."""
    return keys(*flat[: len(activity.operands)], function=function)


def _jvp_batching(
    rules: Rules, axis: Any, flat: Flat, dims: Flat, function: Any, activity: Active
) -> Batched:
    """Several directions at one point, as in `jax.jacfwd`, share what JAX finds equal."""
    run = partial(_jvp_impl, rules, function=function, activity=activity)
    rule = partial(batch, axis, run, dims, 0)
    return batch_once(function, ("jvp", axis, activity), rule, flat, dims)


def _jvp_transpose(
    rules: Rules, cotangents: Flat, *flat: Any, function: Any, activity: Active
) -> Flat:
    operands, _, tangents = _take_apart(flat, activity)
    cotangents = cotangents[len(function.output_types) :]
    result = _pull_back(rules, cotangents, operands, function, activity)
    return [*[None] * len(operands), *_of_linear(tangents, result)]


def _pull_back(
    rules: Rules, cotangents: Flat, operands: Flat, function: Any, activity: Active
) -> Flat:
    _, residuals, params = _linearize(rules, operands, function, activity)
    return _pull_back_from(rules, cotangents, residuals, **params)


def _linearize(
    rules: Rules, operands: Flat, function: Any, activity: Active
) -> tuple[Flat, Flat, dict[str, Any]]:
    assert rules.linearize is not None
    results, arrays, function, aux = rules.linearize(function, activity, operands)
    needed = rules.needed(function, aux) if rules.needed else [True] * len(operands)
    types = map(jax.typeof, operands)
    absent = tuple(None if need else t for t, need in zip(types, needed, strict=True))
    params = {"function": function, "activity": activity, "aux": aux, "absent": absent}
    return results, [*pick(operands, needed), *arrays], params


# The tangent primitive


def _tangent_types(rules: Rules, *_: Any, function: Any, activity: Active, **__: Any) -> Any:
    return _tangents_of(function, activity), rules.effects(function, activity)


def _tangents_of(function: Any, activity: Active) -> list[Any]:
    return [t.to_tangent_aval() for t in pick(function.output_types, activity.results)]


def _tangent_impl(
    rules: Rules, *flat: Any, function: Any, activity: Active, aux: Any, absent: _Absent
) -> Flat:
    """The values are already computed, so progress stays silent."""
    del aux
    silent = silenced(function)
    operands, _, tangents = _take_apart(flat, activity, absent)
    if rules.is_pushed and function.has_rule:  # as the values, by loops: see `_pushed`
        rules = rules._replace(jvp=rules.jvp_in_reverse or rules.jvp)
    both = _jvp_impl(rules, *operands, *tangents, function=silent, activity=activity)
    return both[len(silent.output_types) :]


def _tangent_batching(rules: Rules, axis: Any, flat: Flat, dims: Flat, **params: Any) -> Batched:
    rule = partial(batch, axis, partial(_tangent_impl, rules, **params), dims, 0)
    key = ("tangent", axis, params["activity"])
    return batch_once(params["function"], key, rule, flat, dims)


def _tangent_transpose(
    rules: Rules, cotangents: Flat, *flat: Any, activity: Active, **params: Any
) -> Flat:
    count = len(flat) - sum(activity.operands)
    result = _pull_back_from(rules, cotangents, flat[:count], activity=activity, **params)
    return [*[None] * count, *_of_linear(flat[count:], result)]


def _pull_back_from(
    rules: Rules,
    cotangents: Flat,
    residuals: Flat,
    activity: Active,
    absent: _Absent,
    **params: Any,
) -> Flat:
    operands, arrays, _ = _take_apart(residuals, activity, absent, are_linear=False)
    return rules.pull_back(cotangents, operands, arrays, activity=activity, **params)


def _take_apart(
    flat: Flat, activity: Active, absent: _Absent = None, *, are_linear: bool = True
) -> tuple[Flat, Flat, Flat]:
    """Operands, with zeros for the absent ones, saved arrays, and tangents, if any."""
    rest = iter(flat)
    types = absent or [None] * len(activity.operands)
    operands = [next(rest) if type_ is None else zeros(type_) for type_ in types]
    arrays = list(rest)
    last = len(arrays) - (sum(activity.operands) if are_linear else 0)
    return operands, arrays[:last], arrays[last:]


def _of_linear(operands: Flat, cotangents: Flat) -> list[Any]:
    """The cotangents of linear operands, which a transposition rule returns."""
    return [ct if is_linear_input(x) else None for x, ct in zip(operands, cotangents, strict=True)]
