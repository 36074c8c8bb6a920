"""Whether a function's derivative rule is JAX's own."""

from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import jax

from jax_revolve._compat.jaxprs import parameters_of


def has_jax_rule(eqn: Any) -> bool:
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
