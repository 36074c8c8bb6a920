"""Every use of JAX outside its stable public API.

Tried on jax 0.7.2, 0.10.2 and 0.12.0.1. What each entry stands on:

- `jax.extend.core`: `Primitive`, and jaxprs with their equations, variables and literals.
- `jax.interpreters`: the registries of derivative, transposition, batching and lowering rules;
  symbolic zeros; the tracer class by which JAX linearises.
- the parameters of JAX's `scan` equation, whose names changed in 0.12 (`_read_scan`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.core import ShapedArray, eval_jaxpr
from jax.custom_derivatives import SymbolicZero as SymbolicZero
from jax.extend.core import ClosedJaxpr, Literal, Primitive, jaxpr_as_fun
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


def is_linearizing(tangents: Sequence[Any]) -> bool:
    """Whether JAX is linearising for reverse mode: it then calls derivative rules with tangents
    that are tracers of its partial evaluation."""
    return any(isinstance(t, pe.JaxprTracer) for t in tangents)


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
) -> Primitive:
    """A primitive with several results, from Python functions in place of JAX's registries.

    `implementation(*operands, **params)` is both run and lowered. `output_types(*avals, **params)`
    returns the types and the effects. `jvp(primals, tangents, **params)`, `batch(axis, operands,
    dims, **params)` and `transpose(cotangents, *operands, **params)` are JAX's own rules.
    `prune(used, **params)` says which results to keep computing, given which are used, and the
    parameters to that end.
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
        ad.primitive_jvps[primitive] = jvp
    if transpose is not None:
        ad.primitive_transposes[primitive] = transpose
    if prune is not None:
        pe.dce_rules[primitive] = partial(_remove_dead_code, prune)
    return primitive


def _remove_dead_code(
    prune: Callable[..., tuple[Sequence[bool], dict[str, Any]]], used: list[bool], *rest: Any
) -> tuple[list[bool], Any]:
    eqn = rest[-1]  # jax 0.12 also passes which inputs are live
    if not any(used) and not eqn.effects:
        return [False] * len(eqn.invars), None
    kept, params = prune(used, **eqn.params)
    outvars = [v for v, keep in zip(eqn.outvars, kept, strict=True) if keep]
    return [True] * len(eqn.invars), eqn.replace(outvars=outvars, params=params)


# lax's own scan equation


class ScanEquation(NamedTuple):
    """What `lax.scan` made of its arguments: operands are consts, then carry, then xs."""

    jaxpr: ClosedJaxpr
    num_consts: int
    num_carry: int
    length: int
    reverse: bool
    unroll: int
    split_transpose: bool
    output_types: tuple[AbstractValue, ...]
    body_effects: Any


def run_around_scan(
    fun: Callable[[], Any], run_scan: Callable[[ScanEquation, list[Any]], Sequence[Any]]
) -> Any:
    """`fun()`, which calls `lax.scan` once, with `run_scan(equation, operands)` in its place.

    `fun` takes no arguments, so that lax sees the caller's own values, Python scalars included. Its
    trace is what lax computes before the scan (promoted weak types, hoisted constants), the scan,
    and what comes after it (values that the body only passes on).
    """
    closed, shape = jax.make_jaxpr(fun, return_shape=True)()
    jaxpr, treedef = closed.jaxpr, jax.tree.structure(shape)
    at = next(i for i, eqn in enumerate(jaxpr.eqns) if eqn.primitive.name == "scan")
    before, scan, after = jaxpr.eqns[:at], jaxpr.eqns[at], jaxpr.eqns[at + 1 :]

    inputs = _variables(scan.invars)
    used_after = set(_variables([v for eqn in after for v in eqn.invars] + jaxpr.outvars))
    known_before = [*jaxpr.constvars, *(v for eqn in before for v in eqn.outvars)]
    passed_on = [v for v in known_before if v in used_after]

    prologue = jaxpr.replace(eqns=before, outvars=[*inputs, *passed_on])
    values = dict(zip([*inputs, *passed_on], eval_jaxpr(prologue, closed.consts), strict=True))
    operands = [v.val if isinstance(v, Literal) else values[v] for v in scan.invars]
    results = run_scan(_read_scan(scan), list(map(as_array, operands)))
    epilogue = jaxpr.replace(constvars=[], invars=[*passed_on, *scan.outvars], eqns=after)
    outputs = eval_jaxpr(epilogue, [], *(values[v] for v in passed_on), *results)
    return jax.tree.unflatten(treedef, outputs)


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [v for v in atoms if not isinstance(v, Literal)]


def _read_scan(eqn: Any) -> ScanEquation:
    params = eqn.params
    if "ft_in" in params:  # jax >= 0.12
        groups = params["ft_in"].update(list(eqn.invars)).unpack()
        num_consts, num_carry, _ = (len(list(group)) for group in groups)
    else:
        num_consts, num_carry = params["num_consts"], params["num_carry"]
    return ScanEquation(
        jaxpr=params["jaxpr"],
        num_consts=num_consts,
        num_carry=num_carry,
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
        split_transpose=params.get("_split_transpose", False),
        output_types=tuple(v.aval for v in eqn.outvars),
        body_effects=frozenset(eqn.effects),
    )
