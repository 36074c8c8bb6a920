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

from jax_revolve._compat.primitives import Primitive, Prune, Split, new_primitive
from jax_revolve._compat.values import (
    instantiate,
    is_linear_input,
    is_zero,
    symbolic_zero,
    with_weak_type,
    zeros,
)
from jax_revolve.autodiff.batching import Batched, batch, batch_once
from jax_revolve.jaxprs.walk import jaxprs_in
from jax_revolve.progress.listener import when_run_again
from jax_revolve.step.loop import Mask, pick, spread, substitute
from jax_revolve.step.mixing import tells_examples_apart

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
    linearize: Callable[..., tuple[Flat, Flat, Any, Any]] | None = None
    """`linearize(function, activity, operands)` returns the results, the arrays to save, and the
    `function` and `aux` of the pullback. By default it saves nothing."""
    needed: Callable[[Any, Any], Mask] | None = None
    """`needed(function, aux)` flags the operands on which the tangents depend. By default all."""
    with_progress: Callable[[Any, Callable[[Any], Any]], Any] = lambda function, change: function
    """The function with its progress changed."""
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
    )
    if rules.linearize is None:
        rules = rules._replace(linearize=partial(_save_nothing, rules, primitive))
    tangent_p = new_primitive(
        f"{primitive.name}_tangent",
        implementation=partial(_tangent_impl, rules),
        output_types=_tangent_types,
        batch=partial(_tangent_batching, rules),
        jvp=partial(jvp_of_nonzero, partial(_tangent_impl, rules)),
        transpose=partial(_tangent_transpose, rules),
    )
    jvp_p = new_primitive(
        f"{primitive.name}_jvp",
        implementation=partial(_jvp_impl, rules),
        output_types=_jvp_types,
        batch=partial(_jvp_batching, rules),
        jvp=partial(jvp_of_nonzero, partial(_jvp_impl, rules)),
        transpose=partial(_jvp_transpose, rules),
        prune=rules.prune_jvp,
        keys=rules.keys and partial(_jvp_keys, rules.keys),
        split=Split(
            primitive,
            rules.primal_half,
            # `jax.checkpoint` runs this after it has computed the values.
            lambda function: rules.with_progress(function, when_run_again),
            partial(_linearize, rules),
            tangent_p,
        ),
    )
    return primitive


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


def _jvp_types(*_: Any, function: Any, activity: Active) -> Any:
    tangents, _ = _tangent_types(function=function, activity=activity)
    return [*function.output_types, *tangents], function.effects


def _jvp_impl(rules: Rules, *flat: Any, function: Any, activity: Active) -> Flat:
    types, _ = _jvp_types(function=function, activity=activity)
    return list(map(with_weak_type, rules.jvp(function, activity, *flat), types))


def _jvp_keys(keys: Callable[..., Flat], *flat: Any, function: Any, activity: Active) -> Flat:
    """The keys that the values use. Tangents use the same random numbers."""
    return keys(*flat[: len(activity.operands)], function=function)


def _jvp_batching(
    rules: Rules, axis: Any, flat: Flat, dims: Flat, function: Any, activity: Active
) -> Batched:
    """Several directions at one point, as in `jax.jacfwd`, share the values, unless the function
    tells examples apart."""
    at_same_point = all(dim is None for dim in dims[: len(activity.operands)])
    is_same = at_same_point and not any(map(tells_examples_apart, jaxprs_in(function)))
    same = len(function.output_types) if is_same else 0
    run = partial(_jvp_impl, rules, function=function, activity=activity)
    rule = partial(batch, axis, run, dims, same)
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


def _tangent_types(*_: Any, function: Any, activity: Active, **__: Any) -> Any:
    active = pick(function.output_types, activity.results)
    return [t.to_tangent_aval() for t in active], frozenset()


def _tangent_impl(
    rules: Rules, *flat: Any, function: Any, activity: Active, aux: Any, absent: _Absent
) -> Flat:
    """The values are already computed, so progress stays silent."""
    del aux
    silent = rules.with_progress(function, lambda _: None)
    operands, _, tangents = _take_apart(flat, activity, absent)
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
