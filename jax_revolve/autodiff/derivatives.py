"""The derivatives of a primitive that computes functions, and which of them JAX asks for when.

A *function* primitive, such as a whole loop, gets two others: the *jvp* primitive is the
function with its tangents, and the *tangent* primitive the tangents alone.

- Differentiated, the function is the jvp primitive.
- Run, lowered, batched or differentiated again, the jvp primitive is a function of values and
  tangents, which has derivatives in its turn: of a loop, the loop of values and tangents.
- Linearized for reverse mode, by JAX's partial evaluation, the jvp primitive is a sweep, which may
  hold something for the reverse pass, and the tangent primitive, which is linear and takes what is
  held as well.
- Transposed, the tangent primitive is the pullback.

Operands are the function's, then what is held, then the tangents of the operands that are
differentiated. Parameters are the `function`, a tuple that begins with a jaxpr and has
`output_types` and `effects`; its `activity`; and what else the pullback has to know of the sweep,
as `held`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax

from jax_revolve._compat.primitives import Primitive, Split, define_derivative, new_primitive
from jax_revolve._compat.values import (
    instantiate,
    is_linear_input,
    is_zero,
    symbolic_zero,
    with_weak_type,
)
from jax_revolve._compat.values import zeros as zeros_of
from jax_revolve.autodiff.batching import Batched, batch_once, batched_dims, vmap_over
from jax_revolve.progress.listener import when_run_again
from jax_revolve.step.loop import Mask, pick, spread, substitute

Flat = Sequence[Any]


class Active(NamedTuple):
    """Which operands are differentiated, and which results have a tangent then. A loop's
    `Activity`, which knows more, takes its place."""

    operands: Mask
    results: Mask


class Rules(NamedTuple):
    """What is particular to the functions of a primitive."""

    primitive: Primitive
    activity: Callable[[Any, Mask], Any]
    """`activity(function, differentiated)`"""
    jvp: Callable[..., tuple[Flat, Flat]]
    """`jvp(function, activity, operands, tangents)` returns the results, and the tangents of the
    active ones, from the active operands' tangents. JAX differentiates it."""
    linearize: Callable[..., tuple[Flat, Flat, dict[str, Any]]]
    """`linearize(function, activity, operands)` returns the results, the arrays that are held, and
    the parameters `function` and `held` of the pullback."""
    pull_back: Callable[..., Flat]
    """`pull_back(cotangents, operands, arrays, function, activity, held)` returns the cotangents of
    the active operands, from the active results' cotangents."""
    primal_half: Callable[[Any, Any], Any] = lambda function, activity: function
    """The function, given its activity, that computes the values once it is linearized."""
    with_progress: Callable[[Any, Callable[[Any], Any]], Any] = lambda function, change: function
    """The function with its progress changed."""


def derive(rules: Rules, prune_jvp: Any = None) -> None:
    """Give a primitive its derivatives."""
    primitive = rules.primitive
    tangent_p = new_primitive(
        f"{primitive.name}_tangent",
        implementation=partial(_tangent_impl, rules),
        output_types=_tangent_types,
        jvp=partial(jvp_of_nonzero, partial(_tangent_impl, rules)),
        batch=partial(_tangent_batching, rules),
        transpose=partial(_tangent_transpose, rules),
    )
    jvp_p = new_primitive(
        f"{primitive.name}_jvp",
        implementation=partial(_jvp_impl, rules),
        output_types=_jvp_types,
        jvp=partial(jvp_of_nonzero, partial(_jvp_impl, rules)),
        batch=partial(_jvp_batching, rules),
        transpose=partial(_jvp_transpose, rules),
        prune=prune_jvp,
        split=Split(
            num_primals=lambda function, activity: len(activity.operands),
            num_results=lambda function, activity: len(function.output_types),
            primal=primitive,
            primal_params=lambda function, activity: {
                "function": rules.primal_half(function, activity)
            },
            # Run by `jax.checkpoint` after the values were.
            later_params=lambda function, activity: {
                "function": rules.with_progress(function, when_run_again),
                "activity": activity,
            },
            linearize=partial(_linearize, rules),
            linear=tangent_p,
        ),
    )
    jvp, transpose = partial(_function_jvp, rules, jvp_p), partial(_function_transpose, rules)
    define_derivative(primitive, jvp, transpose)


def jvp_of_nonzero(run: Callable[..., Flat], primals: Flat, tangents: Flat, **params: Any) -> Any:
    """`jax.jvp` of `run` in those primals alone whose tangents are not symbolically zero."""
    mask = [not is_zero(t) for t in tangents]
    return jax.jvp(
        lambda chosen: run(*substitute(primals, mask, chosen), **params),
        (pick(primals, mask),),
        (pick(tangents, mask),),
    )


def function_types(*_: Any, function: Any) -> Any:
    """The types and effects of a function primitive."""
    return function.output_types, function.effects


# The function primitive


def _function_jvp(
    rules: Rules, jvp_p: Primitive, primals: Flat, tangents: Flat, *, function: Any
) -> Any:
    activity = rules.activity(function, tuple(not is_zero(t) for t in tangents))
    zeros = [symbolic_zero(t) for t in function.output_types]
    if not any(activity.results):
        return rules.primitive.bind(*primals, function=function), zeros
    chosen = map(instantiate, pick(tangents, activity.operands))
    flat = jvp_p.bind(*primals, *chosen, function=function, activity=activity)
    results, active = flat[: len(zeros)], flat[len(zeros) :]
    return results, substitute(zeros, activity.results, active)


def _function_transpose(rules: Rules, cotangents: Flat, *operands: Any, function: Any) -> Flat:
    """A linear function is its own derivative, at zero as anywhere."""
    linear = tuple(map(is_linear_input, operands))
    zeros = [zeros_of(x.aval) for x in pick(operands, linear)]
    activity = rules.activity(function, linear)
    result = [None] * sum(activity.operands)
    if any(activity.results):
        point, cotangents = substitute(operands, linear, zeros), pick(cotangents, activity.results)
        result = _pull_back(rules, cotangents, point, function, activity)
    result = spread(result, activity.operands)
    return [ct if asked else None for ct, asked in zip(result, linear, strict=True)]


def _pull_back(
    rules: Rules, cotangents: Flat, operands: Flat, function: Any, activity: Active
) -> Flat:
    _, arrays, params = rules.linearize(function, activity, operands)
    return rules.pull_back(cotangents, operands, arrays, activity=activity, **params)


# The jvp primitive


def _jvp_types(*_: Any, function: Any, activity: Active) -> Any:
    tangents, _ = _tangent_types(function=function, activity=activity)
    return [*function.output_types, *tangents], function.effects


def _jvp_impl(rules: Rules, *flat: Any, function: Any, activity: Active) -> Flat:
    operands, _, tangents = _take_apart(flat, activity)
    results, results_dot = rules.jvp(function, activity, operands, tangents)
    types, _ = _jvp_types(function=function, activity=activity)
    return list(map(with_weak_type, [*results, *results_dot], types))


def _jvp_batching(
    rules: Rules, axis: Any, flat: Flat, dims: Flat, function: Any, activity: Active
) -> Batched:
    """Values are batched only if an operand is: several directions at the same point, as in
    `jax.jacfwd`, share them."""

    def batch_jvp(*flat: Any) -> Batched:
        run = partial(_jvp_impl, rules, function=function, activity=activity)
        found = batched_dims(axis, run, flat, dims)
        results = vmap_over(axis, run, dims, found)(*flat)
        if any(dim is not None for dim in dims[: len(activity.operands)]):
            return results, found
        # Values that are read from files together with tangents are the same for all.
        first = len(function.output_types)
        values = [x if d is None else x[0] for x, d in zip(results[:first], found, strict=False)]
        return [*values, *results[first:]], [*[None] * first, *found[first:]]

    return batch_once(function, (axis, activity), batch_jvp, flat, dims)


def _jvp_transpose(
    rules: Rules, cotangents: Flat, *flat: Any, function: Any, activity: Active
) -> Flat:
    operands, _, tangents = _take_apart(flat, activity)
    cotangents = cotangents[len(function.output_types) :]
    result = _pull_back(rules, cotangents, operands, function, activity)
    return [*[None] * len(operands), *_of_linear(tangents, result)]


def _linearize(
    rules: Rules, operands: Flat, function: Any, activity: Active
) -> tuple[Flat, Flat, dict[str, Any]]:
    results, arrays, params = rules.linearize(function, activity, operands)
    return results, arrays, {"activity": activity, **params}


# The tangent primitive


def _tangent_types(*_: Any, function: Any, activity: Active, **__: Any) -> Any:
    active = pick(function.output_types, activity.results)
    return [t.to_tangent_aval() for t in active], frozenset()


def _tangent_impl(rules: Rules, *flat: Any, function: Any, activity: Active, held: Any) -> Flat:
    """No progress is shown, as the values were computed before."""
    del held
    silent = rules.with_progress(function, lambda _: None)
    return _jvp_impl(rules, *flat, function=silent, activity=activity)[len(silent.output_types) :]


def _tangent_batching(
    rules: Rules, axis: Any, flat: Flat, dims: Flat, function: Any, activity: Active, held: Any
) -> Batched:
    del held
    flat, dims = (
        [*operands, *tangents]
        for operands, _, tangents in (_take_apart(x, activity) for x in (flat, dims))
    )
    silent = rules.with_progress(function, lambda _: None)
    results, dims_out = _jvp_batching(rules, axis, flat, dims, silent, activity)
    first = len(function.output_types)
    return results[first:], dims_out[first:]


def _tangent_transpose(
    rules: Rules, cotangents: Flat, *flat: Any, activity: Active, **params: Any
) -> Flat:
    operands, arrays, tangents = _take_apart(flat, activity)
    result = rules.pull_back(cotangents, operands, arrays, activity=activity, **params)
    return [*[None] * (len(operands) + len(arrays)), *_of_linear(tangents, result)]


def _take_apart(flat: Flat, activity: Active) -> tuple[Flat, Flat, Flat]:
    """Operands, what is held, and tangents."""
    first, last = len(activity.operands), len(flat) - sum(activity.operands)
    return list(flat[:first]), list(flat[first:last]), list(flat[last:])


def _of_linear(tangents: Flat, cotangents: Flat) -> list[Any]:
    """The cotangents of those tangents that a transposition rule is asked for."""
    return [
        ct if is_linear_input(tangent) else None
        for ct, tangent in zip(cotangents, tangents, strict=True)
    ]
