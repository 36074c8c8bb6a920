"""Jaxprs: what a function computes, what depends on what, and parts of it."""

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import jax
import numpy as np
from jax import lax
from jax.core import eval_jaxpr
from jax.extend.core import Literal, jaxpr_as_fun
from jax.interpreters import partial_eval as pe

from jax_revolve._compat.values import as_array
from jax_revolve._compat.walk import (
    ClosedJaxpr,
    any_equation,
    inner_jaxprs,
    name_of,
    parameters_of,
)

T = TypeVar("T")

call_jaxpr = jaxpr_as_fun


def without_dead_code(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The jaxpr without equations that nothing depends on, nested ones included: the same one each
    time for the same jaxpr."""
    if closed in _LIVE:
        return _LIVE[closed]
    outputs, inputs = ([True] * len(vs) for vs in (closed.jaxpr.outvars, closed.jaxpr.invars))
    # Threads may find the same at once: all of them get what is stored first.
    return _LIVE.setdefault(closed, pruned(closed, outputs, inputs)[0])


_LIVE: WeakKeyDictionary[ClosedJaxpr, ClosedJaxpr] = WeakKeyDictionary()


def pruned(
    closed: ClosedJaxpr, outputs: Sequence[bool], inputs: Sequence[bool]
) -> tuple[ClosedJaxpr, list[bool]]:
    """The jaxpr with these outputs alone, and which inputs it then takes: these, and those that the
    outputs depend on."""
    jaxpr, used = pe.dce_jaxpr(closed.jaxpr, list(outputs), instantiate=list(inputs))
    return ClosedJaxpr(jaxpr, closed.consts), list(used)


def varying_variables(jaxpr: Any, inputs: Sequence[Any]) -> set[Any]:
    """The variables of a jaxpr that depend on these inputs, and the inputs."""
    varying = set(inputs)
    for eqn in jaxpr.eqns:
        if not varying.isdisjoint(variables(eqn.invars)):
            varying.update(eqn.outvars)
    return varying


def is_literal(atom: Any) -> bool:
    """Whether an operand of an equation is a constant, rather than a variable."""
    return isinstance(atom, Literal)


def source_of_function(closed: ClosedJaxpr) -> str:
    """The name, file and line of the function that was traced, "step at model.py:42"."""
    return closed.jaxpr.debug_info.func_src_info


def with_outputs(closed: ClosedJaxpr, outputs: Sequence[Any]) -> Callable[..., list[Any]]:
    """The function of the jaxpr's inputs whose results are these variables of it, without what
    neither those nor effects need."""
    whole = ClosedJaxpr(closed.jaxpr.replace(outvars=list(outputs)), closed.consts)
    part, used = pruned(whole, [True] * len(outputs), [False] * len(closed.jaxpr.invars))
    return lambda values: call_jaxpr(part)(*(x for x, u in zip(values, used, strict=True) if u))


def part_of(
    closed: ClosedJaxpr, inputs: Sequence[Any], results: Sequence[Any]
) -> Callable[[Sequence[Any]], list[Any]]:
    """The function that computes the results, variables or literals of the jaxpr, from the values
    of its variables `inputs`."""
    jaxpr = closed.jaxpr.replace(
        invars=list(inputs), eqns=between(closed.jaxpr, inputs, results), outvars=list(results)
    )
    return lambda values: eval_jaxpr(jaxpr, closed.consts, *values)


def between(jaxpr: Any, inputs: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """The equations that compute results from variables of the jaxpr."""
    return _backwards(jaxpr, inputs, results, [])


def up_to(jaxpr: Any, equations: Sequence[Any]) -> list[Any]:
    """These equations and all that their operands depend on."""
    return _backwards(jaxpr, [], [], equations)


def _backwards(
    jaxpr: Any, inputs: Sequence[Any], results: Sequence[Any], equations: Sequence[Any]
) -> list[Any]:
    wanted = set(variables(results)).difference(inputs)
    kept, always = list[Any](), set(map(id, equations))
    for eqn in reversed(jaxpr.eqns):
        if id(eqn) in always or not wanted.isdisjoint(eqn.outvars):
            kept.append(eqn)
            wanted.update(variables(eqn.invars))
            wanted.difference_update(inputs)
    return kept[::-1]


def filled_with_a_number(closed: ClosedJaxpr) -> list[bool]:
    """Which results are arrays of one number that stands in the jaxpr, such as zeros."""
    filled = {
        eqn.outvars[0]
        for eqn in closed.jaxpr.eqns
        if eqn.primitive.name == "broadcast_in_dim" and not variables(eqn.invars)
    }
    return [not is_literal(v) and v in filled for v in closed.jaxpr.outvars]


def run_equation(eqn: Any, operands: Sequence[Any], **changed: Any) -> Any:
    """The result of an equation with other operands, and perhaps other parameters."""
    return eqn.primitive.bind(*operands, **{**eqn.params, **changed})


def variables(atoms: Sequence[Any]) -> list[Any]:
    """Those that are not constants."""
    return [v for v in atoms if not isinstance(v, Literal)]


def without_consts(closed: ClosedJaxpr) -> tuple[ClosedJaxpr, list[Any]]:
    """The jaxpr with its consts as its first inputs, and those."""
    jaxpr = closed.jaxpr
    jaxpr = jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars])
    return ClosedJaxpr(jaxpr, []), list(closed.consts)


def kept_whole(fun: Callable[[], T], number: Any) -> T:
    """`fun()`, which JAX's linearization of a scan leaves whole, whatever is the same in all steps.

    It is the only branch of a conditional on `number`, the step's, an int32. XLA removes it.
    """
    closed, shape = jax.make_jaxpr(fun, return_shape=True)()
    branch, consts = without_consts(closed)
    results = lax.cond_p.bind(number, *map(as_array, consts), branches=(branch,))
    return jax.tree.unflatten(jax.tree.structure(shape), results)


def has_rule_of_user(closed: ClosedJaxpr) -> bool:
    """Whether a function with a derivative rule that is not JAX's own is called anywhere in it.

    JAX's own `custom_jvp` rules are derivatives, which others need not be. A function with a
    `custom_vjp` has no forward mode, whoever wrote it.
    """

    def is_of_user(eqn: Any) -> bool:
        name = name_of(eqn)
        is_jvp = name.startswith("custom_jvp")
        return name.startswith("custom_vjp") or (is_jvp and not _has_jax_rule(eqn))

    return any_equation(closed, is_of_user)


def _has_jax_rule(eqn: Any) -> bool:
    """Whether the rule of a `custom_jvp` function is JAX's own; not if that cannot be found out.

    The function tells nothing: a user may write a rule for one of JAX's. So the rule is looked for
    in what the equation keeps of it, which is wrapped in JAX's closures.
    """
    params = parameters_of(eqn)
    rules, seen = set[Path](), set[int]()
    rest = [params.get("jvp_jaxpr_fun", params.get("jvp_rule"))]
    while rest:
        each = rest.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, FunctionType):
            rules.add(Path(each.__code__.co_filename))
            for cell in each.__closure__ or ():
                with suppress(ValueError):  # of a variable that is assigned later
                    rest.append(cell.cell_contents)
        elif isinstance(each, tuple):
            rest += each
        elif isinstance(each, partial):
            rest.append(each.func)
        elif hasattr(each, "transforms"):  # a `WrappedFun`
            rest.append(each.f)
        elif callable(each) and not isinstance(each, jax.custom_jvp):
            rest.append(getattr(each, "__wrapped__", None) or FunctionType(_UNKNOWN, {}))
    rules -= _CLOSURES
    return bool(rules) and all(_JAX in file.parents for file in rules)


_UNKNOWN = compile("0", "unknown", "eval")
_JAX = Path(jax.__file__).parent
_CLOSURES = {
    _JAX / "_src" / name
    for name in (
        *("custom_derivatives.py", "hijax.py", "linear_util.py"),
        *("interpreters/partial_eval.py", "traceback_util.py", "api.py"),
    )
}
"""The files of the closures around a rule."""


def structure(jaxpr: Any) -> Hashable:
    """What is equal only for jaxprs that are the same program, open or closed, as long as both
    exist. Functions and constants in them are the same if they are one object, other parameters if
    they say so, which JAX relies on, too. It has no hash if a parameter has none."""
    numbers: dict[Any, int] = {}

    def of_atoms(atoms: Sequence[Any]) -> Hashable:
        return tuple(
            (
                of(np.asarray(a.val)) if is_literal(a) else numbers.setdefault(a, len(numbers)),
                a.aval,
            )
            for a in atoms
        )

    def of(value: Any) -> Hashable:
        if hasattr(value, "eqns"):
            return structure(value)
        if isinstance(value, tuple):
            return type(value), *map(of, value)
        if isinstance(value, float | complex | np.generic | np.ndarray):  # 0.0 == -0.0
            return (
                type(value),
                np.shape(value),
                np.asarray(value).dtype,
                np.asarray(value).tobytes(),
            )
        return type(value), value  # 1 == True

    def params_of(eqn: Any) -> Hashable:
        return of(tuple(sorted(eqn.params.items())))

    inner = getattr(jaxpr, "jaxpr", jaxpr)
    return (
        of_atoms([*inner.constvars, *inner.invars]),
        tuple(map(id, getattr(jaxpr, "consts", ()))),
        *(
            (e.primitive, of_atoms(e.invars), params_of(e), e.ctx, of_atoms(e.outvars))
            for e in inner.eqns
        ),
        of_atoms(inner.outvars),
    )


def num_equations(closed: ClosedJaxpr) -> int:
    """The equations in it, at any depth."""
    return sum(1 + sum(map(num_equations, inner_jaxprs(eqn))) for eqn in closed.eqns)
