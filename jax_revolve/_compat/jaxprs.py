"""The classes of jaxprs, and JAX's functions for them that are not public."""

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard
from weakref import WeakKeyDictionary

import jax
from jax.core import eval_jaxpr as eval_jaxpr
from jax.extend.core import Jaxpr as Jaxpr
from jax.extend.core import Literal, jaxpr_as_fun
from jax.extend.core import Var as Var
from jax.extend.core.primitives import closed_call_p as closed_call_p
from jax.extend.core.primitives import cond_p as cond_p
from jax.interpreters import partial_eval as pe

if TYPE_CHECKING:  # JAX 0.12 has one class, and does not export its other name
    from jax.extend.core import Jaxpr as ClosedJaxpr
else:
    from jax.extend.core import ClosedJaxpr

_HIGH = {
    "CustomJVPTraced": "custom_jvp_call",
    "CustomVJPTraced": "custom_vjp_call",
    "RematTraced": "remat2",
}
"""JAX 0.12 begins to replace primitives by objects with rules as methods. These are the old names
of objects for which our code for the old primitives is right."""

call_jaxpr = jaxpr_as_fun


def trace_tree(fun: Callable[..., Any], *args: Any) -> tuple[ClosedJaxpr, Any]:
    """The jaxpr of a function of pytrees, and the structure of its results. `jax.make_jaxpr` would
    make the results of types, which a user's class may not take."""
    structure: list[Any] = []

    def flat(*args: Any) -> list[Any]:
        leaves, tree = jax.tree.flatten(fun(*args))
        structure[:] = [tree]
        return leaves

    return jax.make_jaxpr(flat)(*args), structure[0]


class _WithFacts(list[Any]):
    """The equations of a jaxpr. They hold what is known of it, because a jaxpr takes no attributes,
    and values in a dictionary of weak keys that refer to their key would keep it alive for ever."""

    def __init__(self, equations: list[Any]) -> None:
        super().__init__(equations)
        self.of = WeakKeyDictionary[
            ClosedJaxpr, dict[Hashable, Any]
        ]()  # jaxprs may share equations


def facts_of(closed: ClosedJaxpr) -> dict[Hashable, Any]:
    """What is known of a jaxpr, which is forgotten with it."""
    jaxpr: Any = closed.jaxpr
    if not isinstance(jaxpr.eqns, _WithFacts):
        jaxpr._eqns = _WithFacts(jaxpr.eqns)
    return jaxpr.eqns.of.setdefault(closed, {})


def is_literal(atom: Any) -> TypeGuard[Literal]:
    """Whether an operand of an equation is a constant, rather than a variable."""
    return isinstance(atom, Literal)


def variables(atoms: Sequence[Any]) -> list[Any]:
    """The atoms that are not constants."""
    return [v for v in atoms if not isinstance(v, Literal)]


def pruned(
    closed: ClosedJaxpr, outputs: Sequence[bool], inputs: Sequence[bool]
) -> tuple[ClosedJaxpr, list[bool]]:
    """The jaxpr with these outputs alone, and which inputs it takes: `inputs` and needed ones."""
    jaxpr, used = pe.dce_jaxpr(closed.jaxpr, list(outputs), instantiate=list(inputs))
    return ClosedJaxpr(jaxpr, closed.consts), list(used)


def source_of_function(closed: ClosedJaxpr) -> str:
    """The name, file and line of the function that was traced, "step at model.py:42"."""
    return closed.jaxpr.debug_info.func_src_info


def name_of_function(closed: ClosedJaxpr) -> str:
    return closed.jaxpr.debug_info.func_name


def is_high(eqn: Any) -> bool:
    """Whether an equation is an object with rules as methods."""
    return eqn.primitive.name == "call_hi_primitive"


def is_high_for(eqn: Any) -> bool:
    """Whether JAX must treat an equation, or what is in it, as such an object."""
    return eqn.primitive.is_high(*(v.aval for v in eqn.invars), **eqn.params)


def with_equations(jaxpr: Any, equations: Sequence[Any], **changed: Any) -> Any:
    """The jaxpr with other equations, and perhaps variables; the same object if nothing changes."""
    if not changed and [*map(id, equations)] == [*map(id, jaxpr.eqns)]:
        return jaxpr
    # JAX lowers objects with rules as methods only in jaxprs that are marked `is_high`.
    is_high = any(map(is_high_for, equations))

    def replace(jaxpr: Any) -> Any:
        return jaxpr.replace(eqns=list(equations), is_high=is_high, **changed)

    return jaxpr.map_jaxpr(replace) if hasattr(jaxpr, "map_jaxpr") else replace(jaxpr)


def context_of(eqn: Any) -> Any:
    """The settings under which an equation was traced."""
    return eqn.ctx


def name_of(eqn: Any) -> str:
    """The name of an equation's operation."""
    if not is_high(eqn):
        return eqn.primitive.name
    name = type(eqn.params["_prim"]).__name__
    return _HIGH.get(name, name)


def parameters_of(eqn: Any) -> Mapping[str, Any]:
    return eqn.params["_prim"].params if is_high(eqn) else eqn.params


def owner_of_rule(eqn: Any) -> Any:
    """The object whose method wrote the reverse rule of a `custom_vjp_call`: the `self` that the
    rule closes over, also where `jax.vmap` has batched it. `None` if there is none."""
    rule = eqn.params.get("bwd")
    while True:
        rule = getattr(rule, "f", rule)  # JAX keeps a function with its transformations
        if not inspect.isfunction(rule):
            return None
        around = inspect.getclosurevars(rule).nonlocals
        if not (rule.__module__ or "").startswith("jax."):
            return around.get("self")
        rule = around.get("bwd")
