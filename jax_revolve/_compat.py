"""Every use of JAX outside its stable public API.

Tried on jax 0.7.2, 0.10.2 and 0.12.0.1. What each entry stands on:

- `jax.extend.core`: `Primitive`, and jaxprs with their equations, variables and literals.
- `jax.interpreters`: the registries of derivative, transposition, partial evaluation, batching,
  dead code and lowering rules; dead-code elimination; symbolic zeros.
- the parameters of JAX's `scan` equation, whose names changed in 0.12 (`_read_scan`), and of its
  `while` equation.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.core import ShapedArray, eval_jaxpr
from jax.custom_derivatives import SymbolicZero as SymbolicZero
from jax.extend.core import ClosedJaxpr, Literal, Primitive, Var, jaxpr_as_fun
from jax.extend.core.primitives import convert_element_type_p
from jax.interpreters import ad, batching, mlir
from jax.interpreters import partial_eval as pe

AbstractValue: TypeAlias = Any
"""A `jax.core.ShapedArray`: shape, dtype, weak type, sharding, varying axes."""

call_jaxpr = jaxpr_as_fun


def is_jit_disabled() -> bool:
    """Whether this is run under `jax.disable_jit`."""
    return jax.config.jax_disable_jit  # pyright: ignore[reportAttributeAccessIssue]


# Derivatives


def is_zero(tangent: Any) -> bool:
    """Whether a tangent or cotangent is a symbolic zero, as derivative rules get them."""
    return isinstance(tangent, ad.Zero | SymbolicZero)


def is_linear_input(operand: Any) -> bool:
    """Whether a transposition rule is asked for the cotangent of this operand."""
    return ad.is_undefined_primal(operand)


def tangent_type(primal: Any) -> AbstractValue:
    """The type of the tangents of a value."""
    return jax.typeof(primal).to_tangent_aval()


def symbolic_zero(aval: AbstractValue) -> Any:
    """The symbolic zero tangent of values of type `aval`, as rules of primitives return it."""
    return ad.Zero(aval.to_tangent_aval())


def instantiate(tangent: Any) -> Any:
    """A tangent or cotangent as an array, whether or not it is a symbolic zero."""
    return ad.instantiate_zeros(tangent)


def zeros(aval: AbstractValue) -> jax.Array:
    """Zeros of the type `aval`, its sharding and varying axes included, PRNG keys too."""
    if not jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return ad.zeros_like_aval(aval)
    implementation: list[Any] = []

    def data_of(keys: jax.Array) -> jax.Array:
        implementation.append(jax.random.key_impl(keys))
        return jax.random.key_data(keys)

    data = jax.eval_shape(data_of, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
    bits = ad.zeros_like_aval(aval.update(shape=data.shape, dtype=data.dtype, sharding=None))
    return jax.random.wrap_key_data(bits, impl=implementation[0])


# Types


def is_array_type(aval: AbstractValue) -> bool:
    """Whether values of this type are arrays, rather than mutable references or tokens."""
    return isinstance(aval, ShapedArray)


def varying_axes(aval: AbstractValue) -> frozenset[str]:
    """The axes of a mesh over which values of this type may differ, inside of `jax.shard_map`."""
    manual = getattr(aval, "manual_axis_type", None)
    return getattr(aval, "vma", frozenset()) if manual is None else manual.varying


def vary(value: Any, axes: frozenset[str]) -> Any:
    """The value, as one that may differ over these axes, too."""
    missing = tuple(axes - varying_axes(jax.typeof(value)))
    if not missing:
        return value
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(value, missing, to="varying")
    return jax.lax.pvary(value, missing)  # jax 0.7  # pyright: ignore[reportAttributeAccessIssue]


class Result(NamedTuple):
    """A result of a function: its type, and its value where that was there before."""

    aval: AbstractValue
    passed_on: Any | None


def results_of(fun: Callable[[], Any]) -> list[Result]:
    """The results of `fun()`, which are not computed. Some may be values that it closes over."""
    closed = jax.make_jaxpr(fun)()
    known = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    return [
        Result(v.aval, v.val if isinstance(v, Literal) else known.get(v))
        for v in closed.jaxpr.outvars
    ]


def with_weak_type(value: Any, aval: AbstractValue) -> Any:
    """The value, weakly typed if `aval` is: loop variables, buffers and sums forget it."""
    if not aval.weak_type or jax.typeof(value).weak_type:
        return value
    return convert_element_type_p.bind(value, new_dtype=value.dtype, weak_type=True, sharding=None)


def as_array(value: Any) -> Any:
    """The value itself, or the array that a number stands for: constants of a trace, and primals of
    its tracers, may be Python numbers that know their dtype."""
    if isinstance(value, jax.Array) or not is_array_type(jax.typeof(value)):
        return value
    aval = jax.typeof(value)
    return with_weak_type(jnp.asarray(value, aval.dtype), aval)


def dependence(
    fun: Callable[[list[Any]], Sequence[Any]], inputs: list[Any]
) -> Callable[[Sequence[bool] | None], tuple[bool, ...]]:
    """Traces `fun(inputs)`, and tells for a mask of its results, or for all of them, which inputs
    they depend on."""
    jaxpr = jax.make_jaxpr(fun)(inputs).jaxpr

    def used(wanted: Sequence[bool] | None) -> tuple[bool, ...]:
        results = [True] * len(jaxpr.outvars) if wanted is None else list(wanted)
        return tuple(pe.dce_jaxpr(jaxpr, results)[1])

    return used


# Primitives


def new_primitive(
    name: str,
    *,
    implementation: Callable[..., Sequence[Any]],
    output_types: Callable[..., tuple[Sequence[AbstractValue], Any]],
    batch: Callable[..., Any],
    jvp: Callable[..., Any] | None = None,
    transpose: Callable[..., Any] | None = None,
    prune: Callable[..., tuple[Sequence[bool], dict[str, Any]]] | None = None,
    split: "Split | None" = None,
) -> Primitive:
    """A primitive with several results, from Python functions in place of JAX's registries.

    `implementation(*operands, **params)` is both run and lowered. `output_types(*avals, **params)`
    returns the types and the effects. `jvp(primals, tangents, **params)`, `batch(axis, operands,
    dims, **params)` and `transpose(cotangents, *operands, **params)` are JAX's own rules.
    `prune(used, **params)` says which results to keep computing, given which are used, and the
    parameters to that end. `split` is for a primitive that is linear in its last operands.
    """

    @partial(jax.jit, static_argnums=0)
    def compiled(params: tuple[tuple[str, Any], ...], *operands: Any) -> Sequence[Any]:
        return implementation(*operands, **dict(params))

    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(lambda *operands, **params: compiled(tuple(params.items()), *operands))
    primitive.def_effectful_abstract_eval(output_types)
    batching.fancy_primitive_batchers[primitive] = batch
    mlir.register_lowering(primitive, mlir.lower_fun(implementation, multiple_results=True))
    if jvp is not None:
        define_jvp(primitive, jvp)
    if transpose is not None:
        ad.primitive_transposes[primitive] = transpose
    if prune is not None:
        pe.dce_rules[primitive] = partial(_remove_dead_code, prune)
    if split is not None:
        pe.custom_partial_eval_rules[primitive] = partial(_split_values, primitive, split)
        pe.partial_eval_jaxpr_custom_rules[primitive] = partial(_split_equation, split)
    return primitive


def define_jvp(primitive: Primitive, jvp: Callable[..., Any]) -> None:
    """Give a primitive a derivative rule."""
    ad.primitive_jvps[primitive] = jvp


class Split(NamedTuple):
    """How JAX takes apart a primitive's values and their derivatives, in its partial evaluation.

    The operands are primals, then tangents; the results are those of `primal(*primals)`, then the
    tangents. JAX knows the primals but not the tangents when it linearises for reverse mode.
    `primal_params(**params)` are the parameters of `primal`. `linearize(primals, **params)` returns
    its results, residuals such that `linear(*primals, *residuals, *tangents)` are the tangents, and
    the parameters of `linear`.
    """

    num_primals: Callable[..., int]
    num_results: Callable[..., int]
    primal: Primitive
    primal_params: Callable[..., dict[str, Any]]
    linearize: Callable[..., tuple[Sequence[Any], Sequence[Any], dict[str, Any]]]
    linear: Primitive


def _split_values(
    primitive: Primitive, split: Split, trace: Any, *tracers: Any, **params: Any
) -> Sequence[Any]:
    """The rule for values of which some are known."""
    primals = tracers[: split.num_primals(**params)]
    tangents = tracers[len(primals) :]
    if all(t.is_known() for t in tangents) or not all(x.is_known() for x in primals):
        return trace.default_process_primitive(primitive, tracers, params)
    known = [x.pval.get_known() for x in primals]
    results, residuals, linear_params = split.linearize(known, **params)
    operands = [*primals, *map(trace.to_jaxpr_tracer, residuals), *tangents]
    return [*results, *trace.default_process_primitive(split.linear, operands, linear_params)]


def _split_equation(
    split: Split, saveable: Any, unknown: Sequence[bool], available: Sequence[bool], eqn: Any
) -> tuple[Any, Any, list[bool], list[bool], list[Any]]:
    """The rule for `jax.checkpoint`: the equation for what is known, the one that runs later, which
    of its results are unknown and which are available there, and what has to be kept to that end.
    Later everything is computed again."""
    del saveable
    num_primals = split.num_primals(**eqn.params)
    num_results = split.num_results(**eqn.params)
    kept = [v for v, a in zip(eqn.invars, available, strict=True) if not a and isinstance(v, Var)]
    later = [True] * len(eqn.outvars)
    if any(unknown[:num_primals]):
        return None, eqn, later, later, kept
    if not any(unknown):
        return eqn, eqn, [False] * len(later), later, kept
    known = eqn.replace(
        primitive=split.primal,
        invars=eqn.invars[:num_primals],
        outvars=eqn.outvars[:num_results],
        params=split.primal_params(**eqn.params),
    )
    unknown_results = [i >= num_results for i in range(len(later))]
    return known, eqn, unknown_results, later, kept


def _remove_dead_code(
    prune: Callable[..., tuple[Sequence[bool], dict[str, Any]]], used: list[bool], *rest: Any
) -> tuple[list[bool], Any]:
    eqn = rest[-1]  # jax 0.12 also passes which inputs are live
    if not any(used) and not eqn.effects:
        return [False] * len(eqn.invars), None
    kept, params = prune(used, **eqn.params)
    outvars = [v for v, keep in zip(eqn.outvars, kept, strict=True) if keep]
    return [True] * len(eqn.invars), eqn.replace(outvars=outvars, params=params)


# lax's own loop equations


class LoopEquation(NamedTuple):
    """What `lax.scan` or `lax.while_loop` made of its arguments.

    Operands are consts, then carry, then xs. Only a while loop has a condition; of its consts the
    first are those of the condition, it has no xs, and its length is not known.
    """

    jaxpr: ClosedJaxpr
    condition: ClosedJaxpr | None
    num_condition_consts: int
    num_consts: int
    num_carry: int
    length: int | None
    reverse: bool
    unroll: int
    split_transpose: bool
    output_types: tuple[AbstractValue, ...]
    body_effects: Any


def run_around_loop(
    fun: Callable[[], Any], run_loop: Callable[[LoopEquation, list[Any]], Sequence[Any]]
) -> Any:
    """`fun()`, which calls a loop of lax once, with `run_loop(equation, operands)` in its place.

    `fun` takes no arguments, so that lax sees the caller's own values, Python scalars included. Its
    trace is what lax computes before the loop (promoted weak types, hoisted constants), the loop,
    and what comes after it (values that the body only passes on).
    """
    closed, shape = jax.make_jaxpr(fun, return_shape=True)()
    jaxpr, treedef = closed.jaxpr, jax.tree.structure(shape)
    # The last one: a condition that is evaluated before may have loops of its own.
    at = max(i for i, eqn in enumerate(jaxpr.eqns) if eqn.primitive.name in _READ)
    before, loop, after = jaxpr.eqns[:at], jaxpr.eqns[at], jaxpr.eqns[at + 1 :]

    inputs = _variables(loop.invars)
    used_after = set(_variables([v for eqn in after for v in eqn.invars] + jaxpr.outvars))
    known_before = [*jaxpr.constvars, *(v for eqn in before for v in eqn.outvars)]
    passed_on = [v for v in known_before if v in used_after]

    prologue = jaxpr.replace(eqns=before, outvars=[*inputs, *passed_on])
    values = dict(zip([*inputs, *passed_on], eval_jaxpr(prologue, closed.consts), strict=True))
    operands = [v.val if isinstance(v, Literal) else values[v] for v in loop.invars]
    equation = _READ[loop.primitive.name](loop)
    results = run_loop(equation, list(map(as_array, operands)))
    epilogue = jaxpr.replace(constvars=[], invars=[*passed_on, *loop.outvars], eqns=after)
    outputs = eval_jaxpr(epilogue, [], *(values[v] for v in passed_on), *results)
    return jax.tree.unflatten(treedef, outputs)


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [v for v in atoms if not isinstance(v, Literal)]


def _read_scan(eqn: Any) -> LoopEquation:
    params = eqn.params
    if "ft_in" in params:  # jax >= 0.12
        groups = params["ft_in"].update(list(eqn.invars)).unpack()
        num_consts, num_carry, _ = (len(list(group)) for group in groups)
    else:
        num_consts, num_carry = params["num_consts"], params["num_carry"]
    return LoopEquation(
        jaxpr=params["jaxpr"],
        condition=None,
        num_condition_consts=0,
        num_consts=num_consts,
        num_carry=num_carry,
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
        split_transpose=params.get("_split_transpose", False),
        output_types=tuple(v.aval for v in eqn.outvars),
        body_effects=frozenset(eqn.effects),
    )


def _read_while(eqn: Any) -> LoopEquation:
    params = eqn.params
    return LoopEquation(
        jaxpr=params["body_jaxpr"],
        condition=params["cond_jaxpr"],
        num_condition_consts=params["cond_nconsts"],
        num_consts=params["cond_nconsts"] + params["body_nconsts"],
        num_carry=len(eqn.outvars),
        length=None,
        reverse=False,
        unroll=1,
        split_transpose=False,
        output_types=tuple(v.aval for v in eqn.outvars),
        body_effects=frozenset(eqn.effects),
    )


_READ = {"scan": _read_scan, "while": _read_while}
