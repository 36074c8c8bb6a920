"""Primitives, from Python functions in place of JAX's registries."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import jax
from jax.extend.core import Primitive, Var, primitives
from jax.interpreters import ad, batching, mlir
from jax.interpreters import partial_eval as pe

from jax_revolve._compat.interpreters import (
    Program,
    fancy_transposes,
    in_own_settings,
    linearizations,
    register,
    register_transpose,
    register_with_remat3,
)
from jax_revolve._compat.jaxprs import call_jaxpr, pruned
from jax_revolve._compat.values import AbstractValue, is_zero


def declare(name: str) -> Primitive:
    """A primitive without rules, for rules that call each other."""
    primitive = Primitive(name)
    primitive.multiple_results = True
    _EXACT.add(primitive)
    return primitive


def new_primitive(
    name: str | Primitive,
    *,
    implementation: Callable[..., Sequence[Any]],
    output_types: Callable[..., tuple[Sequence[AbstractValue], Any]],
    batch: Callable[..., Any],
    jvp: Callable[..., Any] | None = None,
    transpose: Callable[..., Any] | None = None,
    transpose_into: Callable[..., Any] | None = None,
    prune: Callable[..., "Part"] | None = None,
    known: Callable[..., "Part"] | None = None,
    keys: Callable[..., Sequence[Any]] | None = None,
    interpret: Callable[..., Any] | None = lambda run, params: run(params),
    has_dead_code: bool = True,
    recomputed: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Primitive:
    """A primitive with several results, new or declared before, from Python functions in place of
    JAX's registries.

    `implementation(*operands, **params)` is both run and lowered. `output_types(*avals, **params)`
    returns the types and the effects. `jvp(primals, tangents, **params)`, `batch(axis, operands,
    dims, **params)` and `transpose(cotangents, *operands, **params)` are JAX's own rules, and
    `transpose_into` that of `register_transpose`.
    `prune(used, **params)` returns which results to compute, given which are used, from which
    operands, with which parameters, and perhaps another primitive. `known(given, **params)` returns
    the same for the results that depend on given operands alone. `keys` and `interpret` are `keys`
    and `around` of a `Program`; without `interpret`, interpreters of programs leave the equation as
    it is. An implementation that `has_dead_code` computes values that nothing uses, which are not
    lowered. `recomputed(params)` are the parameters where `jax.checkpoint` runs an equation again.
    """

    implementation, batch = map(in_own_settings, (implementation, batch))

    @partial(jax.jit, static_argnums=0)
    def compiled(params: tuple[tuple[str, Any], ...], *operands: Any) -> Sequence[Any]:
        return implementation(*operands, **dict(params))

    primitive = declare(name) if isinstance(name, str) else name
    primitive.is_high = lambda *_, **__: False  # its lowering traces objects with methods for rules

    def run(*operands: Any, **params: Any) -> Sequence[Any]:
        # Under `jax.disable_jit`, a `cond` would be traced as one of its branches.
        with jax.disable_jit(False):
            return compiled(tuple(params.items()), *operands)

    primitive.def_impl(run)
    primitive.def_effectful_abstract_eval(output_types)
    batching.fancy_primitive_batchers[primitive] = batch

    def lowered(*operands: Any, **params: Any) -> Sequence[Any]:
        if not has_dead_code:
            return implementation(*operands, **params)
        # Remove dead code as `jax.jit` does: an unused value may not even have a lowering.
        traced = jax.make_jaxpr(partial(implementation, **params))(*operands)
        used, given = ([True] * len(ts) for ts in (traced.out_avals, operands))
        return call_jaxpr(pruned(traced, used, given)[0])(*operands)

    if interpret is not None:
        register(primitive, Program(implementation, keys, interpret))
    lower = mlir.lower_fun(lowered, multiple_results=True)
    mlir.register_lowering(primitive, in_own_settings(lower))
    if jvp is not None:
        ad.primitive_jvps[primitive] = in_own_settings(jvp)
    if transpose is not None:
        ad.primitive_transposes[primitive] = partial(_transpose_nonzero, in_own_settings(transpose))
    if transpose_into is not None:
        register_transpose(primitive, in_own_settings(transpose_into))
    if prune is not None:
        pe.dce_rules[primitive] = partial(_remove_dead_code, prune)
    if known is not None:
        pe.custom_partial_eval_rules[primitive] = partial(_split_results, primitive, known)
    if recomputed is not None:
        rule = partial(_split_equation, recomputed)
        pe.partial_eval_jaxpr_custom_rules[primitive] = rule

        def run_twice(_: Any, *operands: Any, **params: Any) -> Any:
            again = partial(primitive.bind, **recomputed(params))
            return primitive.bind(*operands, **params), (), lambda _, *operands: again(*operands)

        register_with_remat3(primitive, run_twice)
    return primitive


def _transpose_nonzero(
    rule: Callable[..., Any], cotangents: Sequence[Any], *operands: Any, **params: Any
) -> Sequence[Any]:
    """Skip zero cotangents, for which JAX calls the rule, too. For example, if only the gradient of
    a function is differentiated, the cotangent of its value is zero."""
    if all(map(is_zero, cotangents)):
        return [None] * len(operands)
    return rule(cotangents, *operands, **params)


Part: TypeAlias = Any
"""Which results of an equation to compute, from which operands, with which parameters, and perhaps
by another primitive."""


def _split_results(
    primitive: Primitive, known: Callable[..., Part], trace: Any, *tracers: Any, **params: Any
) -> Sequence[Any]:
    """Compute the results that depend on known values alone now, and all results later."""
    later = trace.default_process_primitive(primitive, tracers, params)
    given = [t.is_known() for t in tracers]
    if all(given) or not any(given):
        return later
    results, operands, known_params = known(given, **params)
    if not any(results):
        return later
    inputs = [t.pval.get_known() for t, take in zip(tracers, operands, strict=True) if take]
    values = iter(primitive.bind(*inputs, **known_params))
    return [next(values) if now else x for x, now in zip(later, results, strict=True)]


def _split_equation(
    recomputed: Callable[[dict[str, Any]], dict[str, Any]],
    saveable: Any,
    unknown: Sequence[bool],
    available: Sequence[bool],
    eqn: Any,
) -> tuple[Any, Any, list[bool], list[bool], list[Any]]:
    """As JAX splits an equation, but what runs again has other parameters."""
    del saveable
    kept = [v for v, a in zip(eqn.invars, available, strict=True) if not a and isinstance(v, Var)]
    later = [True] * len(eqn.outvars)
    if any(unknown):
        return None, eqn, later, later, kept
    return eqn, with_parameters(eqn, recomputed(eqn.params)), [False] * len(later), later, kept


def with_parameters(eqn: Any, params: dict[str, Any]) -> Any:
    """The equation with other parameters, on which its effects may depend."""
    _, effects = eqn.primitive.abstract_eval(*(v.aval for v in eqn.invars), **params)
    return eqn.replace(params=params, effects=frozenset(effects))


def _remove_dead_code(
    prune: Callable[..., Part], used: list[bool], *rest: Any
) -> tuple[list[bool], Any]:
    eqn = rest[-1]  # jax 0.12 also passes which inputs are live
    if not any(used) and not eqn.effects:
        return [False] * len(eqn.invars), None
    results, operands, params, *other = prune(used, **eqn.params)
    outvars = [v for v, keep in zip(eqn.outvars, results, strict=True) if keep]
    invars = [v for v, keep in zip(eqn.invars, operands, strict=True) if keep]
    (primitive,) = other or [eqn.primitive]
    new = eqn.replace(primitive=primitive, outvars=outvars, invars=invars, params=params)
    return list(operands), new


def has_own_transpose(eqn: Any) -> bool:
    """Whether an equation is of a primitive that another library registered with JAX as linear. Its
    transpose may be anything, such as the approximate adjoint of a projection."""
    return _is_in(eqn.primitive, ad.primitive_transposes, fancy_transposes)


def has_own_linearization(eqn: Any) -> bool:
    """Whether an equation is of a primitive that another library registered with JAX with a rule
    for reverse mode. It may have none for forward mode."""
    return _is_in(eqn.primitive, linearizations)


def _is_in(primitive: Any, *tables: Any) -> bool:
    """Whether another library registered a primitive in one of JAX's tables."""
    if primitive in _EXACT or not any(primitive in table for table in tables):
        return False
    is_exact = any(primitive is x for module in _libraries() for x in list(vars(module).values()))
    if is_exact:
        _EXACT.add(primitive)
    return not is_exact


_EXACT = {value for value in vars(primitives).values() if isinstance(value, Primitive)}
"""Primitives whose transposes are exact: JAX's own, Equinox's and ours."""


def _libraries() -> list[Any]:
    """Their modules, whose primitives are global values."""
    return [m for n, m in list(sys.modules.items()) if n.partition(".")[0] in ("jax", "equinox")]
