"""The classes of jaxprs, and JAX's functions for them that are not public."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeGuard

import jax
from jax.core import eval_jaxpr as eval_jaxpr
from jax.extend.core import Jaxpr as Jaxpr
from jax.extend.core import Literal, jaxpr_as_fun
from jax.extend.core import Var as Var
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


def is_high(eqn: Any) -> bool:
    """Whether an equation is an object with rules as methods."""
    return eqn.primitive.name == "call_hi_primitive"


def name_of(eqn: Any) -> str:
    """The name of an equation's operation."""
    if not is_high(eqn):
        return eqn.primitive.name
    name = type(eqn.params["_prim"]).__name__
    return _HIGH.get(name, name)


def parameters_of(eqn: Any) -> Mapping[str, Any]:
    return eqn.params["_prim"].params if is_high(eqn) else eqn.params


def has_methods_of_user(eqn: Any) -> bool:
    """Whether an equation is an object whose methods may be a user's."""
    if not is_high(eqn) or name_of(eqn) in _HIGH.values():
        return False
    module = type(eqn.params["_prim"]).__module__
    return not module.startswith(("jax._src.numpy.", "jax._src.lax.", "jax._src.ad_checkpoint"))


def has_jax_rule(eqn: Any) -> bool:
    """Whether the rule of a `custom_jvp` function is certainly JAX's own.

    The function does not show this, because a user may write a rule for one of JAX's functions. So
    we look for the rule's code in the closures that the equation keeps.
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
